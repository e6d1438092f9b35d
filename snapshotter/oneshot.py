"""`capture`: the stacks of a job now, from this node or through agents, without any server."""

from __future__ import annotations

import argparse
import os
import pwd
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from exporter.procfs import ProcFS
from snapshotter.analysis import Analyser, analyser
from snapshotter.audit import audit
from snapshotter.bundle import schema, writer
from snapshotter.bundle.schema import CaptureRequest
from snapshotter.capture.inventory import parse_agent
from snapshotter.capture.job import JobCapturer, with_native_frames
from snapshotter.capture.local import LocalNode, local_node
from snapshotter.capture.node import Progress, unseen
from snapshotter.capture.wire import Order
from snapshotter.config import Config
from snapshotter.gathered import Gathered
from snapshotter.render import flamegraph, text
from snapshotter.stacks import report
from snapshotter.stacks.model import JobCapture
from snapshotter.stacks.wording import shown
from snapshotter.telling import Teller, unread

_REASON = "captured by hand"
_LONGEST_LINE = 1000  # characters


class CannotCapture(Exception):
    """Nothing was captured or nothing can be written; one line says why and what to do."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to capture and where to put it."""

    output: Path  # a folder that becomes a bundle, or a file FILE.html
    job_id: str | None = None
    pids: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()  # through their agents; none: this node itself
    native_frames: bool = False

    @property
    def page(self) -> bool:
        return self.output.suffix.lower() in (".html", ".htm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command, but for the configuration file and /proc."""
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--job", metavar="ID", help="capture this job (the only one that runs)")
    target.add_argument(
        "--pid",
        type=int,
        nargs="+",
        action="extend",
        default=[],
        metavar="PID",
        help="capture these processes and all below them, training or not",
    )
    parser.add_argument(
        "--nodes",
        type=lambda value: value.split(","),
        default=[],
        metavar="HOST,…",
        help="capture these nodes through their agents: HOST, HOST:PORT or [IPV6]:PORT",
    )
    parser.add_argument(
        "--native",
        action="store_true",
        help="also read C frames of outliers and one rank of each class (stops each, for up to seconds)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="DIR|FILE.html",
        help="a folder to become a bundle, or one self-contained page",
    )


def wanted(options: argparse.Namespace) -> Wanted:
    """What the parsed options ask for. Raises CannotCapture for options that do not go together."""
    if options.pid and options.nodes:
        raise CannotCapture("--pid is about this node alone: leave --nodes out, or name the job with --job")
    return Wanted(
        output=options.output,
        job_id=options.job,
        pids=tuple(options.pid),
        nodes=tuple(options.nodes),
        native_frames=options.native,
    )


def run(
    request: Wanted,
    settings: Config,
    *,
    node: str,
    procfs: ProcFS,
    read_token: Callable[[Path], str],
    now: Callable[[], float] = time.time,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Capture, analyse and write. Progress goes to `err`, the report to `out`.

    Exit status: 0; 2 with one line on `err` where nothing was captured or could be written. Raises
    ConfigError, PySpyMissing.
    """
    out, err = out or sys.stdout, err or sys.stderr
    analysis = analyser(settings.analysis)
    try:
        _check_output(request)
        started = now()
        gathered = _capture(request, settings, node, procfs, read_token, now, Teller(err, now))
        answers = [one.answer for one in gathered]
        audit(
            "capture_taken",
            job_id=request.job_id or next((one.job_id for one in answers if one.job_id), ""),
            pids=request.pids,
            trigger="manual",
            reason=_REASON,
            requested_by=_user(),
            nodes=[one.node for one in answers],
            processes=sum(len(one.processes) for one in gathered),
            output=str(request.output),
        )
        problems = [f"{answer.node}: {answer.error}" for answer in answers if answer.error]
        if not any(one.processes or one.answer.expected_ranks for one in gathered):
            raise CannotCapture("; ".join(one.error or "no process was found" for one in answers))
        for problem in (*problems, *unread(gathered)):
            print(f"not complete: {shown(problem, _LONGEST_LINE)}", file=err)
        found = _write(request, gathered, analysis, started, now)
    except CannotCapture as error:
        print(f"error: {shown(str(error), _LONGEST_LINE)}", file=err)
        return 2
    except OSError as error:
        print(f"error: {request.output} cannot be written: {error.strerror or error}", file=err)
        return 2
    out.write(text.render(found))
    print(f"written to {request.output}", file=err)
    return 0


def _capture(
    request: Wanted,
    settings: Config,
    node: str,
    procfs: ProcFS,
    read_token: Callable[[Path], str],
    now: Callable[[], float],
    tell: Callable[[Progress], None],
) -> tuple[Gathered, ...]:
    capture = settings.capture
    if request.nodes:
        try:
            agents = [
                parse_agent(one, settings.agents.port) for one in dict.fromkeys(map(str.strip, request.nodes))
            ]
        except ValueError as error:
            raise CannotCapture(f"--nodes: {error}") from error
        # Who asks by hand sees what did not answer, and asks again.
        capturer = JobCapturer(
            lambda: _local(node, procfs, settings, now), lambda: settings, read_token, now, patience=0.0
        )
        return capturer.capture(
            request.job_id or "",
            reason=_REASON,
            requested_by=_user(),
            agents=agents,
            native_frames=request.native_frames,
            progress=tell,
        )
    local = _local(node, procfs, settings, now)
    order = Order(
        job_id=request.job_id or ("" if request.pids else _only_job(local)),
        reason=_REASON,
        requested_by=_user(),
        interval=float(capture.sample_interval),
        deadline=float(capture.node_timeout),
        native_frames=request.native_frames or capture.native_frames,
        ask_nccl=capture.ask_nccl,
    )
    answer = local.capture(order, tell, pids=request.pids)
    if capture.native_when_unclear and not order.native_frames:
        answer = with_native_frames(local, order, answer, request.pids)
    return (Gathered.of(answer),)


def _local(node: str, procfs: ProcFS, settings: Config, now: Callable[[], float]) -> LocalNode:
    return local_node(node, procfs, lambda: settings.capture, now=now)


def _only_job(local: LocalNode) -> str:
    scan = local.find()
    jobs = sorted({process.job_id for process in scan.processes})
    if len(jobs) > 1:
        raise CannotCapture(f"several jobs run on {scan.node}: name one with --job: {', '.join(jobs)}")
    if not jobs:
        near = "; ".join(f"pid {miss.pid}: {miss.reason}" for miss in scan.near_misses[:3])
        hint = unseen(scan) or (f" ({near})" if near else "")  # the first has one remedy for all of them
        raise CannotCapture(
            f"no training process runs on {scan.node}{hint}; any Python processes can be named with --pid"
        )
    return jobs[0]


def _check_output(request: Wanted) -> None:
    """Better before the capture than after it. Raises CannotCapture, OSError."""
    target = request.output
    target.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(target.parent, os.W_OK):
        raise CannotCapture(f"{target.parent} cannot be written to")
    if request.page:
        if target.is_dir():
            raise CannotCapture(f"{target} is a folder: name a file")
    elif target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CannotCapture(f"{target} is there already: name a new folder, or a file FILE.html")


def _write(
    request: Wanted,
    gathered: tuple[Gathered, ...],
    analysis: Analyser,
    started: float,
    now: Callable[[], float],
) -> report.Report:
    job_id = request.job_id or next((one.answer.job_id for one in gathered if one.answer.job_id), "")
    if not job_id:
        job_id = f"pid {', '.join(map(str, request.pids))}"
    found = analysis.report(job_id, [one.tree for one in gathered], now())
    document = report.to_json(found)
    if request.page:
        when = f"{datetime.fromtimestamp(started, UTC):%Y-%m-%d %H:%M:%S} UTC"
        capture = JobCapture(job_id, tuple(one.whole() for one in gathered))
        page = flamegraph.render_html(capture, document, when=when)
        aside = request.output.with_name(f".{request.output.name}.{os.getpid()}")
        aside.write_text(page, encoding="utf-8")
        aside.replace(request.output)
        return found
    _, files = writer.build(
        CaptureRequest(
            capture_id=schema.new_capture_id(started),
            job_id=job_id,
            trigger="manual",
            reason=_REASON,
            requested_by=_user(),
            requested_at=started,
        ),
        gathered,
        document,
        started_at=started,
        finished_at=now(),
    )
    writer.write_folder(request.output, files)
    return found


def _user() -> str:
    """Who runs this, by the kernel's word; for root who it was before, by sudo's."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    before = os.environ.get("SUDO_USER") if os.getuid() == 0 else None
    return f"{name} (sudo by {before})" if before else name
