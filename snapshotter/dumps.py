"""Folders of py-spy dumps: `[NODE-]rank-<N>.json`, `[NODE-]rank-<N>.dataloader-<K>.json`, and `second/`.

Ten thousand ranks hang in few different stacks. So frames stay undecoded until their bytes are new, and equal
stacks become one object, which the analysis knows again by identity.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from snapshotter.stacks import rankset
from snapshotter.stacks.model import Frame, JobCapture, NodeAnswer, Outcome, Process, Sample, Thread

SECOND = "second"  # the folder of the second sample

_NAME = re.compile(
    r"(?:(?P<node>.+)-)?rank-(?P<rank>\d{1,20})(?:\.dataloader-(?P<worker>\d{1,20}))?\.json", re.ASCII
)
_MOST_BYTES = 1 << 28  # of one dump; a process with 100,000 threads needs a tenth
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

    frames: msgspec.Raw
    thread_id: int = 0
    pid: int = 0
    thread_name: str | None = None
    os_thread_id: int | None = None
    active: bool = False
    owns_gil: bool = False


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int = 0
    short_filename: str | None = None
    module: str | None = None


class DumpReader:
    """Decodes dumps; equal stacks of all of them are one object."""

    def __init__(self) -> None:
        self._threads = msgspec.json.Decoder(list[_Thread])
        self._frames = msgspec.json.Decoder(list[_Frame])
        self._known: dict[bytes, tuple[Frame, ...]] = {}
        self._stacks: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}

    def read(self, content: bytes) -> tuple[int, tuple[Thread, ...]]:
        """Pid and threads of one dump. Raises ValueError where it is none."""
        if not content.strip():
            raise ValueError("the file is empty; py-spy failed, or was stopped")
        try:
            found = self._threads.decode(content)
            threads = tuple(
                Thread(
                    t.thread_id,
                    t.thread_name,
                    t.os_thread_id,
                    t.active,
                    t.owns_gil,
                    self._stack(bytes(t.frames)),
                )
                for t in found
            )
        except msgspec.ValidationError as error:
            raise ValueError(f"not a dump of py-spy: {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"broken JSON: {error}") from error
        except RecursionError as error:
            raise ValueError("not a dump of py-spy: nested too deeply") from error
        if not found:
            raise ValueError("the dump has no thread; was it a Python process?")
        return found[0].pid, threads

    def _stack(self, raw: bytes) -> tuple[Frame, ...]:
        known = self._known.get(raw)
        if known is None:
            frames = tuple(
                Frame(f.name, f.filename, f.line, f.short_filename, f.module)
                for f in self._frames.decode(raw)
            )
            known = self._known[raw] = self._stacks.setdefault(frames, frames)
        return known


def load_dumps(folder: Path) -> tuple[JobCapture, tuple[Problem, ...]]:
    """The capture that the dumps of a folder make, and the files left out. Raises NoDumps."""
    reader = DumpReader()
    problems: list[Problem] = []
    first = _samples(folder, reader, problems)
    second = _samples(folder / SECOND, reader, problems) if (folder / SECOND).is_dir() else {}
    if not first and not second:
        raise NoDumps(f"{folder}: no file in it is a dump named [NODE-]rank-<N>.json{_why(problems)}")
    by_node: dict[str, list[Process]] = {}
    for key in sorted(first.keys() | second.keys()):
        samples = tuple(found for found in (first.get(key), second.get(key)) if found is not None)
        by_node.setdefault(key[0], []).append(_process(key, samples))
    nodes = tuple(NodeAnswer(node, "ok", 0.0, 0.0, processes=tuple(found)) for node, found in by_node.items())
    if not any(process.outcome == "ok" for node in nodes for process in node.processes):
        raise NoDumps(f"{folder}: none of its {len(problems)} dumps can be read{_why(problems)}")
    return JobCapture(folder.resolve().name, nodes), tuple(problems)


def _why(problems: list[Problem]) -> str:
    return f": {problems[0].reason}" if problems else ""


def _process(key: Key, taken: tuple[tuple[int, Sample], ...]) -> Process:
    node, rank, worker = key
    samples = tuple(sample for _, sample in taken)
    outcome: Outcome = "ok" if any(sample.outcome == "ok" for sample in samples) else "error"
    return Process(
        pid=max(pid for pid, _ in taken),
        node=node,
        role="trainer" if worker < 0 else "dataloader",
        rank=rank,
        outcome=outcome,
        worker=worker if worker >= 0 else None,
        error=next((sample.error for sample in samples if sample.error), None),
        samples=samples,
    )


def _samples(folder: Path, reader: DumpReader, problems: list[Problem]) -> dict[Key, tuple[int, Sample]]:
    """Pid and sample of every dump in the folder."""
    found: dict[Key, tuple[int, Sample]] = {}
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.name.endswith(".json"))
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        path = f"{folder}/{name}"
        try:
            rank = rankset.check(int(match["rank"]))
            worker = int(match["worker"]) if match["worker"] else -1
            if worker > _MOST_WORKERS:
                raise ValueError(f"no rank has a DataLoader worker number {worker}")
        except ValueError as error:
            problems.append(Problem(path, str(error)))
            continue
        key = (match["node"] or "", rank, worker)
        if key in found:
            problems.append(Problem(path, "another file is about the same process"))
            continue
        try:
            pid, threads = reader.read(_content(path))
            found[key] = (pid, Sample(0.0, "ok", threads=threads))
        except OSError as error:
            reason = error.strerror or str(error)
            problems.append(Problem(path, reason))
            found[key] = (0, Sample(0.0, "error", error=f"{name}: {reason}"))
        except ValueError as error:
            problems.append(Problem(path, str(error)))
            found[key] = (0, Sample(0.0, "error", error=f"{name}: {error}"))
    return found


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not block us
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"larger than {_MOST_BYTES >> 20} MiB, which no dump is")
    return content
