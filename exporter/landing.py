"""The sections of the landing page: what is seen on this node, what is missing, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from exporter.background import Health
from exporter.logs.model import LogReport
from exporter.nccl.find import SKIPS
from exporter.nccl.watcher import JobStatus
from exporter.procfs import Unreadable
from exporter.sampler import Snapshot
from exporter.server import Section

_RIGHTS = " To have them: run the exporter as root, or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH."
_FLAGS = ("-B", "-E", "-I", "-O", "-OO", "-P", "-s", "-S", "-u", "-v")  # of Python, without a value
_SCRIPT = re.compile(r"[\w./][\w./+-]*")


def logs(report: LogReport, now: float) -> Section:
    """One row a log, with the limit in force and why it is what it is."""
    rows = tuple(
        (
            one.job_id,
            one.log,
            one.framework,
            one.phase.value,
            "none yet" if one.last_iteration is None else str(one.last_iteration),
            f"{one.age(now):.0f} s",
            f"{one.limit.seconds:.0f} s: {one.limit.reason}",
            one.problem or one.path,
        )
        for one in report.logs
    )
    return Section(
        "Training logs",
        ("Job", "Log", "Framework", "Phase", "Iteration", "Age", "Limit and why", "Path"),
        rows,
        notes=(
            *(f"The search for {one}. What it found before is still followed." for one in report.failing),
            *(f"The search for {one} does not come back." for one in report.hanging),
            *(
                f"Job {one.job_id}, log {one.log}: the exporter failed at {one.failures} records or reads, the last "
                f"time with {one.failure}. What came behind them was read; its own log has the trace, please report it."
                for one in report.logs
                if one.failures
            ),
            *(
                f"Job {one.job_id}, rank {one.rank}: its output is a {one.kind}. {one.remedy}"
                for one in report.unfollowed
            ),
        ),
        empty="No training log is followed. A log is found when a rank's or its launcher's output goes to a "
        "file, or when the configuration names it under `logs`.",
    )


def processes(snapshot: Snapshot) -> Section:
    """One row a process, and what could not be read of the processes."""
    notes = [
        f"{count} processes: /proc/PID/{name} could not be read ({reason}); the metrics from it are missing."
        + (_RIGHTS if reason == Unreadable.DENIED.value else "")
        for name, reason, count in snapshot.unreadable
    ]
    if snapshot.delay_accounting is False:
        notes.append(
            "The kernel does not account I/O delays, so training_process_io_wait_seconds_total is missing. "
            "To have it: sysctl -w kernel.task_delayacct=1"
        )
    rows = tuple(
        (
            one.job_id,
            "" if one.rank is None else str(one.rank),
            one.role,
            str(one.id.pid),
            one.gpu or "",
            one.pod or "",
            program(one.command_line),
        )
        for one in snapshot.scan.processes
    )
    return Section(
        "Training processes",
        ("Job", "Rank", "Role", "Pid", "GPU", "Pod", "Program"),
        rows,
        notes=tuple(notes),
        empty="No training process is seen on this node; `hangscope-exporter list-ranks` says why.",
    )


def program(command_line: Sequence[str]) -> str:
    """The program and its script or module. No more of the command line: keys and passwords stand there, and this page
    is open.
    """
    if not command_line:
        return ""
    words = [command_line[0].rpartition("/")[2]]
    rest = [word for word in command_line[1:8] if word not in _FLAGS]
    if rest[:1] == ["-m"]:
        words.append(rest.pop(0))
    if rest and _SCRIPT.fullmatch(rest[0]):
        words.append(rest[0])
    return " ".join(words)[:200]


def nccl(jobs: Iterable[JobStatus]) -> Section:
    """One row a job: what RAS said, or why it is not asked."""
    rows = []
    for one in jobs:
        if one.skip is not None:
            said = f"not asked: {SKIPS[one.skip]}"
        elif one.failure:
            said = f"no answer: {one.failure}"
        else:
            said = "never asked yet" if one.up is None else "answered"
        rows.append((one.job_id, said))
    return Section("NCCL RAS", ("Job", "State"), tuple(rows), empty="No job to ask.")


def readers(health: Iterable[Health], now: float) -> Section:
    """How the background readers fare: what they publish is as old as their last success."""
    rows = tuple(
        (
            one.name,
            "never" if one.last_success is None else f"{max(0.0, now - one.last_success):.1f} s ago",
            str(one.failures),
        )
        for one in health
    )
    return Section("Background readers", ("Reader", "Last success", "Failures"), rows)
