"""One process's Python stacks through py-spy: bounded in time, typed in outcome, the target left as it was.

py-spy runs as a process of its own, leading its own group, with its output in memory files: one that hangs is
killed with its group, one that even the kernel cannot kill is abandoned, and nothing of ours waits for it.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from snapshotter.capture.dump import (
    UnreadableDump,
    explain_failure,
    looks_whole,
    parse_dump,
    same_foreign_roots,
)
from snapshotter.stacks.model import Outcome, Thread

_STOPPED = frozenset("Tt")
_BLOCKING_FORBIDDEN = frozenset("DTt")  # it would hang on D and fail on a process that is stopped already
_LARGEST_OUTPUT = 64 * 1024 * 1024  # bytes
_LARGEST_COMPLAINT = 64 * 1024  # bytes of its stderr
_LARGEST_PIECE = 4 * 1024 * 1024  # bytes; a write goes page by page, of up to so much
_LOOK_INTERVAL = 0.001  # seconds between two looks at a target that may be stopped
_KILL_WAIT = 1.0  # seconds given to a killed py-spy to go, and to its target to run again


@dataclass(frozen=True, slots=True)
class Look:
    """What /proc/PID/stat says now: the state letter, and the start time that makes a pid one process."""

    state: str
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Dump:
    """What became of one try to read one process."""

    outcome: Outcome
    threads: tuple[Thread, ...] = ()
    error: str | None = None
    pause_seconds: float | None = None  # how long the target was stopped at most; None: it was not


class PySpyMissing(RuntimeError):
    """There is no py-spy to run."""


def find_binary() -> Path:
    """py-spy beside this interpreter, else on PATH. Raises PySpyMissing."""
    beside = Path(sys.executable).parent / "py-spy"
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("py-spy")
    if found is None:
        raise PySpyMissing("py-spy is neither beside this Python nor on PATH: pip install py-spy")
    return Path(found)


@dataclass(frozen=True, slots=True)
class _Run:
    code: int | None  # None: it was killed at its time limit
    stdout: bytes
    stderr: str
    pause_seconds: float
    overflowed: bool = False  # it wrote more than it may


class PySpy:
    """Reads processes. Safe to use from many threads at once; each call waits for its own py-spy alone."""

    def __init__(
        self,
        look: Callable[[int], Look | None],
        *,
        thread_states: Callable[[int], Iterable[str]] = lambda pid: (),
        binary: Path | None = None,
        timeout: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look` reads a pid's state, None when it is gone, `thread_states` the states of all its threads.

        Both see the pids that py-spy sees: this process's. `timeout` seconds bound all tries of one call.
        """
        self._look = look
        self._thread_states = thread_states
        self._binary = find_binary() if binary is None else binary
        self.timeout = timeout
        self._clock = clock
        self._lock = threading.Lock()
        self._abandoned: list[subprocess.Popen[bytes]] = []

    def dump(self, pid: int, start_ticks: int, *, native: bool = False, timeout: float | None = None) -> Dump:
        """Read the process that is `pid` since `start_ticks`; never raises for what the target does.

        Without stopping it, twice if need be; stopping it only where that gave no whole stack, and no thread
        of it is in state D or stopped. `native` adds C frames, for which py-spy has to stop it.
        """
        deadline = self._clock() + (self.timeout if timeout is None else timeout)
        before = self._look(pid)
        if before is None or before.start_ticks != start_ticks:
            return Dump("gone", error="the process ended before its stack was read")
        if before.state in "ZX":
            return Dump("gone", error="the process has ended; its parent has not collected it yet")
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return Dump("gone", error="the process ended before its stack was read")
        try:
            return self._try_all(pid, before, handle, deadline, native)
        finally:
            os.close(handle)

    def _try_all(self, pid: int, before: Look, handle: int, deadline: float, native: bool) -> Dump:
        partial: Dump | None = None
        failure = Dump("error", error="py-spy was not run")
        pauses: list[float] = []
        plan = ("--native",) * 2 if native else ("--nonblocking", "--nonblocking", "", "")
        for option in plan:
            blocking = option != "--nonblocking"
            now = self._look(pid)
            if now is None or now.start_ticks != before.start_ticks or now.state in "ZX":
                return Dump("gone", error="the process ended while its stack was read")
            if blocking and (state := self._unstoppable(pid, now)):
                if native:
                    failure = Dump("error", error=f"native frames cannot be read in state {state}")
                break
            dump = self._try_once(pid, now, handle, deadline, option)
            if dump.pause_seconds is not None:
                pauses.append(dump.pause_seconds)
            if dump.outcome == "ok":
                again = partial is not None and same_foreign_roots(partial.threads, dump.threads)
                if blocking or looks_whole(dump.threads) or again:
                    return _with_pause(dump, pauses)
                partial = dump
            else:
                failure = dump
                if dump.outcome != "error":
                    break
        return _with_pause(failure if partial is None else partial, pauses)

    def _unstoppable(self, pid: int, now: Look) -> str | None:
        """The state of the process or of a thread of it for which py-spy would wait for ever, or fail."""
        states = (now.state, *self._thread_states(pid))
        return next((state for state in states if state in _BLOCKING_FORBIDDEN), None)

    def _try_once(self, pid: int, before: Look, handle: int, deadline: float, option: str) -> Dump:
        blocking = option != "--nonblocking"
        limit = deadline - self._clock()
        if limit <= 0:
            return Dump("timeout", error="no time was left to read its stack")
        try:
            run = self._run(pid, option, deadline, watch=blocking)
        except OSError as error:
            return Dump("error", error=f"{self._binary} cannot be run: {error.strerror}")
        if blocking or run.code != 0:
            self._undo_stop(pid, before, handle)
        pause = run.pause_seconds if blocking else None
        if run.code is None:
            return Dump("timeout", error=f"py-spy gave no answer in {limit:.1f} s", pause_seconds=pause)
        if run.overflowed:
            most = (_LARGEST_OUTPUT - _LARGEST_PIECE) >> 20
            return Dump("error", error=f"py-spy printed more than {most} MiB", pause_seconds=pause)
        if run.code == 0:
            try:
                threads = parse_dump(run.stdout)
            except UnreadableDump as error:
                return Dump("error", error=str(error), pause_seconds=pause)
            if not any(thread.frames for thread in threads):
                return Dump("error", error="no thread of it runs Python code", pause_seconds=pause)
            return Dump("ok", threads=threads, pause_seconds=pause)
        after = self._look(pid)
        if after is None or after.start_ticks != before.start_ticks or after.state in "ZX":
            return Dump("gone", error="the process ended while its stack was read", pause_seconds=pause)
        outcome, sentence = explain_failure(run.stderr, run.code)
        if outcome == "gone":
            outcome, sentence = "error", "py-spy does not see this pid: is it in another PID namespace?"
        return Dump(outcome, error=sentence, pause_seconds=pause)

    def _run(self, pid: int, option: str, deadline: float, *, watch: bool) -> _Run:
        self._forget_ended()
        command = [str(self._binary), "dump", "--json", *([option] if option else []), "--pid", str(pid)]
        with ExitStack() as stack:
            out = stack.enter_context(_file_of(_LARGEST_OUTPUT))
            err = stack.enter_context(_file_of(_LARGEST_COMPLAINT))
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "RUST_BACKTRACE": "0"},
            )
            ended, pause = self._wait(process, pid, deadline, watch=watch)
            # After a regular end too, nothing of its group may outlive it. It is not collected yet, so that
            # its number cannot have become another group's.
            self._kill(process)
            return _Run(
                code=process.returncode if ended else None,
                stdout=_written(out),
                stderr=_written(err).decode(errors="replace"),
                pause_seconds=pause,
                overflowed=_is_full(out),
            )

    def _wait(
        self, process: subprocess.Popen[bytes], pid: int, deadline: float, *, watch: bool
    ) -> tuple[bool, float]:
        """Wait for py-spy to end, until `deadline` at most: whether it did, and how long the target stood.

        The pause is in seconds and never too short: it runs from the last look that saw the target running
        to the first that saw it run again.
        """
        ended = select.poll()
        handle = os.pidfd_open(process.pid)
        try:
            ended.register(handle, select.POLLIN)
            if not watch:
                return bool(ended.poll(max(0.0, deadline - self._clock()) * 1000)), 0.0
            paused = 0.0
            last_running = self._clock()
            while not (done := ended.poll(_LOOK_INTERVAL * 1000)) and self._clock() < deadline:
                seen = self._look(pid)
                if seen is None or seen.state not in _STOPPED:
                    now = self._clock()
                    paused, last_running = max(paused, now - last_running), now
            return bool(done), max(paused, self._clock() - last_running)
        finally:
            os.close(handle)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # all gone, or it took other rights: nothing to be done
            pass
        try:
            process.wait(_KILL_WAIT)
        except subprocess.TimeoutExpired:  # in state D itself
            with self._lock:
                self._abandoned.append(process)

    def _forget_ended(self) -> None:
        with self._lock:
            self._abandoned = [process for process in self._abandoned if process.poll() is None]

    def _undo_stop(self, pid: int, before: Look, handle: int) -> None:
        """Let the target run on if it is stopped now and was not before: py-spy was killed in between."""
        if before.state in _STOPPED:
            return
        give_up = self._clock() + _KILL_WAIT
        while self._clock() < give_up:
            now = self._look(pid)
            if now is None or now.start_ticks != before.start_ticks or now.state not in _STOPPED:
                return
            if now.state == "T":
                try:
                    signal.pidfd_send_signal(handle, signal.SIGCONT)
                except (ProcessLookupError, PermissionError):
                    return
            time.sleep(_LOOK_INTERVAL)


def _file_of(size: int) -> BinaryIO:
    """A file in memory that takes so many bytes at most, full of zeros: what runs wild cannot fill memory."""
    descriptor = os.memfd_create("py-spy", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    file = os.fdopen(descriptor, "r+b", buffering=0)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return file


def _written(file: BinaryIO) -> bytes:
    """What was written through any copy of the descriptor: all of them share one place in the file."""
    return os.pread(file.fileno(), os.lseek(file.fileno(), 0, os.SEEK_CUR), 0)


def _is_full(file: BinaryIO) -> bool:
    """Whether so little room is left that a page may have been refused."""
    free = os.fstat(file.fileno()).st_size - os.lseek(file.fileno(), 0, os.SEEK_CUR)
    return free < _LARGEST_PIECE


def _with_pause(dump: Dump, pauses: list[float]) -> Dump:
    return Dump(dump.outcome, dump.threads, dump.error, max(pauses) if pauses else None)
