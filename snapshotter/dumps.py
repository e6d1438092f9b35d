"""Folders of py-spy dumps: `[NODE-]rank-<N>.json`, `[NODE-]rank-<N>.dataloader-<K>.json`, and `second/`.

Ten thousand ranks hang in few different stacks. So frames stay undecoded until their bytes are new, and equal
stacks become one object, which the analysis knows again by identity.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

import msgspec

from snapshotter.encoding import name_as_text
from snapshotter.stacks import rankset
from snapshotter.stacks.digest import Digest, Digester, ProcessFacts
from snapshotter.stacks.model import Frame, JobCapture, NodeAnswer, Outcome, Process, Sample, Thread
from snapshotter.stacks.motion import Delta
from snapshotter.stacks.premerge import NodeTree, add_tree, pack

SECOND = "second"  # the folder of the second sample

_NAME = re.compile(
    r"(?:(?P<node>.+)-)?rank-(?P<rank>\d{1,20})(?:\.dataloader-(?P<worker>\d{1,20}))?\.json", re.ASCII
)
_MOST_BYTES = 1 << 28  # of one dump; a process with 100,000 threads needs a tenth
_WORTH_SHARING = 2048  # files
_BLOCK = 1 << 16  # most dumps fit one
_MOST_WORKERS = 1 << 16

Key = tuple[str, int, int]  # node, rank, DataLoader worker or -1


class NoDumps(Exception):
    """The folder has no dump, or none that could be read."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An input file that was left out, and why."""

    path: str
    reason: str


class _Thread(msgspec.Struct):
    """A thread of py-spy's JSON; later versions may add fields."""

    encoded: msgspec.Raw = msgspec.field(name="frames")
    thread_id: int = 0
    pid: int = 0
    thread_name: str | None = None
    os_thread_id: int | None = None
    active: bool = False
    owns_gil: bool = False
    frames: tuple[Frame, ...] = msgspec.field(default=(), name=" decoded")  # never in a file


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int = 0
    short_filename: str | None = None
    module: str | None = None


_HALF = msgspec.msgpack.Decoder(tuple[NodeTree, tuple[Problem, ...]])  # several times as quick as pickle

Dump: TypeAlias = "list[_Thread] | str"  # threads, or why there are none
Samples: TypeAlias = "dict[Key, Dump]"


class DumpReader:
    """Decodes dumps; equal stacks of all of them are one object."""

    def __init__(self) -> None:
        self._threads = msgspec.json.Decoder(list[_Thread])
        self._frames = msgspec.json.Decoder(list[_Frame])
        self._known: dict[bytes, tuple[Frame, ...]] = {}
        self._stacks: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}

    def read(self, content: bytes) -> list[_Thread]:
        """The threads of one dump, at least one. Raises ValueError where it is none."""
        if not content.strip():
            raise ValueError("the file is empty; py-spy failed, or was stopped")
        known = self._known
        try:
            threads = self._threads.decode(content)
            for thread in threads:
                raw = bytes(thread.encoded)
                stack = known.get(raw)
                thread.frames = self._new(raw) if stack is None else stack
        except msgspec.ValidationError as error:
            raise ValueError(f"not a dump of py-spy: {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if not content.lstrip().startswith(b"["):
                raise ValueError("not JSON; take it with `py-spy dump --json`") from error
            raise ValueError(f"broken JSON: {error}") from error
        except RecursionError as error:
            raise ValueError("not a dump of py-spy: nested too deeply") from error
        if not threads:
            raise ValueError("the dump has no thread; was it a Python process?")
        return threads

    def _new(self, raw: bytes) -> tuple[Frame, ...]:
        frames = tuple(
            Frame(f.name, f.filename, f.line, f.short_filename, f.module) for f in self._frames.decode(raw)
        )
        known = self._known[raw] = self._stacks.setdefault(frames, frames)
        return known


@dataclass(slots=True)
class _Dumps:
    """What a folder holds: one or two samples of each process, or in its place what failed."""

    first: Samples
    second: Samples
    problems: list[Problem]

    def __iter__(self) -> Iterator[tuple[Key, list[Dump]]]:
        for key in sorted(self.first.keys() | self.second.keys()):
            yield key, [dump for dump in (self.first.get(key), self.second.get(key)) if dump is not None]


def load_dumps(folder: Path) -> tuple[JobCapture, tuple[Problem, ...]]:
    """The capture that the dumps of a folder make, and the files left out. Raises NoDumps."""
    found = _read(folder)
    by_node: dict[str, list[Process]] = {}
    for key, dumps in found:
        by_node.setdefault(key[0], []).append(_process(key, dumps))
    nodes = tuple(NodeAnswer(node, "ok", 0.0, 0.0, processes=tuple(some)) for node, some in by_node.items())
    return JobCapture(name_as_text(folder.resolve().name), nodes), tuple(found.problems)


def digest_dumps(folder: Path) -> tuple[Digest, tuple[Problem, ...]]:
    """The same, boiled down on the way: half the time of a large job. Raises NoDumps."""
    with without_collection():
        names = _names(folder)
        if len(names) >= _WORTH_SHARING and _may_fork():
            return _shared(folder, names)
        digester = Digester()
        problems = _digest(_read(folder), digester)
    return digester.digest, problems


def _may_fork() -> bool:
    """A second processor, and no thread that could hold a lock at the moment of the fork."""
    return len(os.sched_getaffinity(0)) > 1 and threading.active_count() == 1


def _shared(folder: Path, names: list[str]) -> tuple[Digest, tuple[Problem, ...]]:
    """One half or so of the files read here, the other by a process that is forked for it. Raises NoDumps."""
    middle = names[len(names) * 11 // 20]  # the other has to pack and send what it read, too
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    other = context.Process(target=_read_half, args=(folder, middle, theirs), daemon=True)
    other.start()
    theirs.close()
    digester = Digester()
    try:
        problems = _digest(_read(folder, before=middle), digester)
        try:
            packed = ours.recv_bytes()
        except (EOFError, OSError):  # it was killed, perhaps for memory
            more = _digest(_read(folder, since=middle), digester)
        else:
            tree, more = _HALF.decode(packed)
            add_tree(digester, tree)
    finally:
        ours.close()
        other.kill()
        other.join()
    if all(process.outcome != "ok" for process in digester.digest.processes):
        raise NoDumps(f"{folder}: none of its dumps can be read: {problems[0].reason}")
    return digester.digest, (*problems, *more)


def _read_half(folder: Path, middle: str, answer: Connection) -> None:
    digester = Digester()
    problems = _digest(_read(folder, since=middle), digester)
    answer.send_bytes(msgspec.msgpack.encode((pack(digester.digest), problems)))


def _digest(found: _Dumps, digester: Digester) -> tuple[Problem, ...]:
    processes = digester.digest.processes
    nodes: dict[str, None] = {}
    for key, dumps in found:
        node, rank, worker = key
        nodes[node] = None
        read = [dump for dump in dumps if not isinstance(dump, str)]
        number = len(processes)
        processes.append(
            ProcessFacts(
                node,
                "trainer" if worker < 0 else "dataloader",
                read[0][0].pid if read else 0,
                rank,
                "ok" if read else "error",
                error=next((dump for dump in dumps if isinstance(dump, str)), None),
                worker=worker if worker >= 0 else None,
                last_outcome="error" if isinstance(dumps[-1], str) else "ok",
            )
        )
        if read:
            digester.add_threads(number, read[0])
        if len(read) > 1:
            processes[number].delta = Delta(threads=digester.compare(number, read[0], read[1]))
    digester.digest.nodes.extend(NodeAnswer(node, "ok", 0.0, 0.0) for node in nodes)
    return tuple(found.problems)


def _process(key: Key, dumps: list[Dump]) -> Process:
    node, rank, worker = key
    samples = tuple(_sample(dump) for dump in dumps)
    outcome: Outcome = "ok" if any(sample.outcome == "ok" for sample in samples) else "error"
    return Process(
        pid=next((dump[0].pid for dump in dumps if not isinstance(dump, str)), 0),
        node=node,
        role="trainer" if worker < 0 else "dataloader",
        rank=rank,
        outcome=outcome,
        worker=worker if worker >= 0 else None,
        error=next((sample.error for sample in samples if sample.error), None),
        samples=samples,
    )


def _sample(dump: Dump) -> Sample:
    if isinstance(dump, str):
        return Sample(0.0, "error", error=dump)
    threads = tuple(
        Thread(t.thread_id, t.thread_name, t.os_thread_id, t.active, t.owns_gil, t.frames) for t in dump
    )
    return Sample(0.0, "ok", threads=threads)


def _read(folder: Path, since: str = "", before: str | None = None) -> _Dumps:
    """All dumps of a folder, or those whose names sort within bounds. Raises NoDumps where none can be read."""
    problems: list[Problem] = []
    second = folder / SECOND

    def names(part: Path) -> list[str]:
        return [name for name in _names(part) if since <= name and (before is None or name < before)]

    with without_collection():
        reader = DumpReader()
        found = _Dumps(
            _samples(folder, names(folder), reader, problems),
            _samples(second, names(second), reader, problems) if second.is_dir() else {},
            problems,
        )
    if since or before is not None:
        return found
    why = f": {problems[0].reason}" if problems else ""
    if not found.first and not found.second:
        raise NoDumps(f"{folder}: no file in it has the name of a dump{why}")
    if all(isinstance(dump, str) for _, dumps in found for dump in dumps):
        raise NoDumps(f"{folder}: none of its {len(problems)} dumps can be read{why}")
    return found


@contextmanager
def without_collection() -> Iterator[None]:
    """Without the search for cycles: decoded data has none, and 100,000 objects double its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _names(folder: Path) -> list[str]:
    """Names of the files that are dumps, sorted."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if _NAME.fullmatch(entry.name))


def _samples(folder: Path, names: list[str], reader: DumpReader, problems: list[Problem]) -> Samples:
    """Every one of these dumps."""
    found: Samples = {}
    for name in names:
        match = _NAME.fullmatch(name)
        assert match is not None
        file, path, name = f"{folder}/{name}", name_as_text(f"{folder}/{name}"), name_as_text(name)
        try:
            rank = rankset.check(int(match["rank"]))
            worker = int(match["worker"]) if match["worker"] else -1
            if worker > _MOST_WORKERS:
                raise ValueError(f"no rank has a DataLoader worker number {worker}")
        except ValueError as error:
            problems.append(Problem(path, str(error)))
            continue
        key = (name_as_text(match["node"] or ""), rank, worker)
        if key in found:
            problems.append(Problem(path, "another file is about the same process"))
            continue
        try:
            found[key] = reader.read(_content(file))
        except OSError as error:
            problems.append(Problem(path, error.strerror or str(error)))
            found[key] = f"{name}: {error.strerror or error}"
        except ValueError as error:
            problems.append(Problem(path, str(error)))
            found[key] = f"{name}: {error}"
    return found


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not block us
    try:
        content = os.read(descriptor, _BLOCK)
        if len(content) < _BLOCK:
            return content
        parts = [content]
        while part := os.read(descriptor, _BLOCK):
            parts.append(part)
            if len(parts) * _BLOCK > _MOST_BYTES:
                raise ValueError(f"larger than {_MOST_BYTES >> 20} MiB, which no dump is")
        return b"".join(parts)
    finally:
        os.close(descriptor)
