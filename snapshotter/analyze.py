"""`analyze`: a bundle, or a folder of py-spy dumps gathered by any means, turned into a report."""

from __future__ import annotations

import gzip
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO

import msgspec

from snapshotter.render import folded, text
from snapshotter.stacks import rankset
from snapshotter.stacks.model import Frame, JobCapture, NodeAnswer, Process, Sample, Thread
from snapshotter.stacks.report import Report, analyse, to_json

Format = Literal["json", "text", "html", "folded", "speedscope"]

_NAME = re.compile(
    r"(?:(?P<node>.+)-)?rank-(?P<rank>\d{1,10})(?:\.dataloader-(?P<worker>\d{1,10}))?\.json", re.ASCII
)

SECOND = "second"  # the folder of the second sample


class AnalyzeError(Exception):
    """There is nothing to analyse; the message says where and what to do."""


class _Thread(msgspec.Struct):
    """A thread of py-spy's JSON, its frames left undecoded: equal ones are decoded once."""

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


@dataclass(frozen=True, slots=True)
class Problem:
    """An input file that was left out, and why."""

    path: str
    reason: str


class DumpReader:
    """Decodes dumps; equal stacks become one object."""

    def __init__(self) -> None:
        self._threads = msgspec.json.Decoder(list[_Thread])
        self._frames = msgspec.json.Decoder(list[_Frame])
        self._stacks: dict[bytes, tuple[Frame, ...]] = {}
        self._known: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}

    def threads(self, content: bytes) -> tuple[int, tuple[Thread, ...]]:
        """Pid and threads of one dump. Raises ValueError (msgspec's errors are) where it is none."""
        if not content.strip():
            raise ValueError("the file is empty")
        found = self._threads.decode(content)
        threads = tuple(
            Thread(
                t.thread_id, t.thread_name, t.os_thread_id, t.active, t.owns_gil, self._stack(bytes(t.frames))
            )
            for t in found
        )
        return (found[0].pid if found else 0), threads

    def _stack(self, raw: bytes) -> tuple[Frame, ...]:
        known = self._stacks.get(raw)
        if known is None:
            frames = tuple(
                Frame(f.name, f.filename, f.line, f.short_filename, f.module)
                for f in self._frames.decode(raw)
            )
            known = self._stacks[raw] = self._known.setdefault(frames, frames)
        return known


def load(path: Path) -> tuple[JobCapture, tuple[Problem, ...]]:
    """The capture in a bundle or a folder of dumps, and the files left out. Raises AnalyzeError."""
    if not path.exists():
        raise AnalyzeError(
            f"{path}: no such file or folder; give a bundle or a folder of rank-<N>.json files"
        )
    if not path.is_dir():
        raise AnalyzeError(f"{path}: not a folder; give a bundle or a folder of rank-<N>.json files")
    if (path / "nodes").is_dir():
        return _load_bundle(path)
    return _load_dumps(path)


def _load_bundle(path: Path) -> tuple[JobCapture, tuple[Problem, ...]]:
    decoder = msgspec.json.Decoder(NodeAnswer)
    nodes: list[NodeAnswer] = []
    problems: list[Problem] = []
    for file in sorted((path / "nodes").iterdir()):
        if not file.name.endswith((".json", ".json.gz")):
            continue
        try:
            content = file.read_bytes()
            nodes.append(decoder.decode(gzip.decompress(content) if file.suffix == ".gz" else content))
        except (OSError, EOFError, ValueError, RecursionError) as error:
            problems.append(Problem(str(file), str(error) or type(error).__name__))
    if not nodes:
        raise AnalyzeError(f"{path}: no node's answer in it could be read")
    return JobCapture(next((n.job_id for n in nodes if n.job_id), path.name), tuple(nodes)), tuple(problems)


def _load_dumps(path: Path) -> tuple[JobCapture, tuple[Problem, ...]]:
    reader = DumpReader()
    problems: list[Problem] = []
    first = _samples(path, reader, problems)
    if not first:
        raise AnalyzeError(f"{path}: no file in it is named [NODE-]rank-<N>.json")
    second = _samples(path / SECOND, reader, problems) if (path / SECOND).is_dir() else {}
    by_node: dict[str, list[Process]] = {}
    for key in sorted(first.keys() | second.keys()):
        node, rank, worker = key
        taken = [found for found in (first.get(key), second.get(key)) if found is not None]
        samples = tuple(sample for _, sample in taken)
        outcome = "ok" if any(sample.outcome == "ok" for sample in samples) else samples[0].outcome
        by_node.setdefault(node, []).append(
            Process(
                pid=taken[0][0],
                node=node,
                role="trainer" if worker < 0 else "dataloader",
                rank=rank,
                outcome=outcome,
                worker=worker if worker >= 0 else None,
                error=next((sample.error for sample in samples if sample.error), None),
                samples=samples,
            )
        )
    nodes = tuple(NodeAnswer(node, "ok", 0.0, 0.0, processes=tuple(found)) for node, found in by_node.items())
    return JobCapture(path.resolve().name, nodes), tuple(problems)


def _samples(
    folder: Path, reader: DumpReader, problems: list[Problem]
) -> dict[tuple[str, int, int], tuple[int, Sample]]:
    """(node, rank, worker or -1) -> (pid, sample)."""
    out: dict[tuple[str, int, int], tuple[int, Sample]] = {}
    for file in folder.iterdir():
        match = _NAME.fullmatch(file.name)
        if match is None:
            continue
        try:
            rank = rankset.check(int(match["rank"]))
        except ValueError as error:
            problems.append(Problem(str(file), str(error)))
            continue
        key = (match["node"] or "", rank, int(match["worker"]) if match["worker"] else -1)
        try:
            pid, threads = reader.threads(file.read_bytes())
            out[key] = (pid, Sample(0.0, "ok", threads=threads))
        except (OSError, ValueError, RecursionError) as error:
            reason = f"{file.name}: {error or type(error).__name__}"
            problems.append(Problem(str(file), reason))
            out[key] = (0, Sample(0.0, "error", error=reason))
    return out


def run(
    path: Path,
    *,
    format: Format = "text",  # noqa: A002 - the name of the option
    output: Path | None = None,
    now: Callable[[], float] = time.time,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Analyse and write. Exit status: 0, or 2 with one line on `err` where nothing could be analysed."""
    out, err = out or sys.stdout, err or sys.stderr
    try:
        capture, problems = load(path)
    except AnalyzeError as error:
        print(error, file=err)
        return 2
    for problem in problems:
        print(f"left out: {problem.path}: {problem.reason}", file=err)
    rendered = _render(analyse(capture, at=now()), format)
    if output is None:
        out.write(rendered)
    else:
        output.write_text(rendered, encoding="utf-8")
    return 0


def _render(report: Report, format: Format) -> str:  # noqa: A002
    if format == "json":
        return msgspec.json.format(msgspec.json.encode(to_json(report)), indent=1).decode() + "\n"
    if format == "folded":
        return folded.render(report.trees)
    if format == "text":
        return text.render(report)
    raise AnalyzeError(f"no format {format!r}")
