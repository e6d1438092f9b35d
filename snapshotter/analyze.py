"""`analyze`: a bundle, or a folder of py-spy dumps gathered by any means, turned into a report."""

from __future__ import annotations

import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TextIO, get_args

import msgspec

from snapshotter.bundle import reader
from snapshotter.bundle.reader import Bundle
from snapshotter.dumps import NoDumps, Problem, digest_dumps, load_dumps, without_collection
from snapshotter.encoding import name_as_text
from snapshotter.errors import BundleError, NotFound, SnapshotterError
from snapshotter.render import difference, flamegraph, folded, speedscope, text
from snapshotter.stacks.digest import Digest
from snapshotter.stacks.digest import digest as digest_nodes
from snapshotter.stacks.groups import NO_SIZES, ParallelSizes
from snapshotter.stacks.knowledge import Knowledge
from snapshotter.stacks.model import JobCapture, NodeAnswer
from snapshotter.stacks.report import Report, analyse_digest, to_json

Format = Literal["json", "text", "html", "folded", "speedscope"]


_WANTED = "give a bundle, or a folder of `py-spy dump --json` files named [NODE-]rank-<N>.json"


class AnalyzeError(Exception):
    """There is nothing to analyse; the message says where and what to do."""


def load(path: Path) -> tuple[JobCapture, tuple[Problem, ...]]:
    """The capture in a bundle or a folder of dumps, and the files left out. Raises AnalyzeError."""
    try:
        if not path.exists():
            raise AnalyzeError(f"{path}: no such file or folder; {_WANTED}")
        if path.is_dir():
            if reader.is_bundle(path):
                return _load_bundle(reader.open_folder(path), path)
            return load_dumps(path)
        if path.is_file() and zipfile.is_zipfile(path):  # a device may be read without end
            return _load_zip(path)
    except NoDumps as error:
        raise AnalyzeError(f"{error}; {_WANTED}") from error
    except SnapshotterError as error:
        raise AnalyzeError(f"{error}; copy the bundle again, whole") from error
    except OSError as error:
        raise AnalyzeError(f"{path}: {error.strerror or error}") from error
    raise AnalyzeError(f"{path}: neither a folder nor a bundle.zip; {_WANTED}")


def digest(path: Path) -> tuple[str, Digest, int | None, tuple[Problem, ...]]:
    """Job id, digest, world size, problems; dumps go without the way over a capture. Raises AnalyzeError."""
    if path.is_dir() and not reader.is_bundle(path):
        try:
            found, problems = digest_dumps(path)
        except NoDumps as error:
            raise AnalyzeError(f"{error}; {_WANTED}") from error
        except OSError as error:
            raise AnalyzeError(f"{path}: {error.strerror or error}") from error
        return name_as_text(path.resolve().name), found, None, problems
    capture, problems = load(path)
    return capture.job_id, digest_nodes(capture.nodes), capture.world_size, problems


def _load_bundle(bundle: Bundle, path: Path) -> tuple[JobCapture, tuple[Problem, ...]]:
    manifest = bundle.manifest()
    nodes: list[NodeAnswer] = []
    problems: list[Problem] = []
    for entry in manifest.nodes:
        try:
            nodes.append(bundle.answer(entry))
        except SnapshotterError as error:
            problems.append(Problem(f"{path}/{entry.file}", str(error)))
            nodes.append(NodeAnswer(entry.node, "error", 0.0, 0.0, error=str(error)))
    if len(problems) == len(nodes):
        raise AnalyzeError(f"{path}: no node's answer in it can be read{_first(problems)}")
    return JobCapture(manifest.job_id or manifest.request.job_id, tuple(nodes)), tuple(problems)


def _first(problems: list[Problem]) -> str:
    return f": {problems[0].reason}" if problems else ""


def _load_zip(path: Path) -> tuple[JobCapture, tuple[Problem, ...]]:
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise BundleError(f"{path}: not a zip file: {error}") from error
    with archive:
        inner = next((name for name in archive.namelist() if name.rsplit("/", 1)[-1] == "manifest.json"), "")
        prefix = inner.removesuffix("manifest.json")

        def read(name: str) -> bytes:
            try:
                return archive.read(prefix + name)
            except KeyError as error:
                raise NotFound(f"{path} has no {name}") from error
            except Exception as error:  # each kind of packing has errors of its own
                raise BundleError(f"{path}: {name} cannot be unpacked: {error}") from error

        return _load_bundle(Bundle(read, str(path)), path)


def run(
    path: Path,
    *,
    format: Format = "text",  # noqa: A002 - the name of the option
    output: Path | None = None,
    compare: Path | None = None,
    knowledge: Knowledge | None = None,
    sizes: ParallelSizes = NO_SIZES,
    now: Callable[[], float] = time.time,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Analyse and write; with `compare`, what changed from `path` to it, as text.

    Exit status: 0, or 2 with one line on `err` where nothing could be analysed or written.
    """
    out, err = out or sys.stdout, err or sys.stderr
    try:
        if format not in get_args(Format):
            raise AnalyzeError(f"no format {format!r}; there are {', '.join(get_args(Format))}")
        reports: list[Report] = []
        for source in (path, compare):
            if source is None:
                continue
            with without_collection():
                job_id, found, world_size, problems = digest(source)
                for problem in problems:
                    print(f"left out: {problem.path}: {problem.reason}", file=err)
                report = analyse_digest(
                    found, job_id=job_id, at=now(), world_size=world_size, knowledge=knowledge, sizes=sizes
                )
                reports.append(report)
        rendered = difference.render(*reports) if compare else _render(path, reports[0], format)
    except AnalyzeError as error:
        print(f"error: {error}", file=err)
        return 2
    if output is None:
        out.write(rendered)
        return 0
    try:
        output.write_text(rendered, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        print(f"error: {output}: cannot be written: {error.strerror or error}", file=err)
        return 2
    return 0


def _render(path: Path, report: Report, format: Format) -> str:  # noqa: A002
    if format == "json":
        return msgspec.json.format(msgspec.json.encode(to_json(report)), indent=1).decode() + "\n"
    if format == "folded":
        return folded.render(report.trees)
    if format == "speedscope":
        return speedscope.render(report.trees, title=report.summary.job_id) + "\n"
    if format == "html":
        return flamegraph.render_html(load(path)[0], to_json(report))
    return text.render(report)
