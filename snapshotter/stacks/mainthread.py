"""Which thread of a process runs the program, and what of its stack is Python's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from snapshotter.stacks.model import Frame

# Ray Train 2.0 to 2.55 trains in a thread of an actor whose main thread serves calls.
_ACTOR = "/ray/_private/workers/default_worker.py"
_HOSTS = (("_run_target", "/worker_group/thread_runner.py"), ("run", "/ray/air/_internal/util.py"))


class ThreadLike(Protocol):
    """A thread as the model has it, or as a reader of dumps decoded it."""

    @property
    def thread_id(self) -> int: ...
    @property
    def thread_name(self) -> str | None: ...
    @property
    def os_thread_id(self) -> int | None: ...
    @property
    def active(self) -> bool: ...
    @property
    def frames(self) -> tuple[Frame, ...]: ...


T = TypeVar("T", bound=ThreadLike)


def main_thread(threads: Sequence[T], pid: int) -> T | None:
    """The thread that runs the program: by name, by thread id, or the one whose stack begins in a module.

    In an actor that runs the program in a thread of its own, that one.
    """
    if not threads:
        return None
    if len(threads) == 1:
        return threads[0]
    for thread in threads:
        if thread.thread_name == "MainThread":
            return _hosted(threads, thread) if _of_actor(thread.frames) else thread
    for thread in threads:
        if thread.os_thread_id == pid:
            return thread
    for thread in threads:
        outermost = _outermost(thread.frames)
        if outermost is not None and outermost.name == "<module>":
            return thread
    return threads[-1]


def _of_actor(frames: tuple[Frame, ...]) -> bool:
    outermost = _outermost(frames)
    return outermost is not None and outermost.filename.endswith(_ACTOR)


def _hosted(threads: Sequence[T], main: T) -> T:
    for thread in threads:
        if thread is not main and any(_hosts(frame) for frame in thread.frames):
            return thread
    return main


def _hosts(frame: Frame) -> bool:
    name = frame.name.rsplit(".", 1)[-1]
    return any(name == function and frame.filename.endswith(path) for function, path in _HOSTS)


def _outermost(frames: tuple[Frame, ...]) -> Frame | None:
    for frame in reversed(frames):
        if frame.module is None:
            return frame
    return None


def pythons(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The stack without the C frames that `py-spy dump --native` puts between Python's."""
    return tuple(frame for frame in frames if frame.module is None)
