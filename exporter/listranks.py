"""`list-ranks`: the training processes of this node, as a table for people or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TextIO

from exporter.ranks import Scan

_WIDEST_COMMAND = 60  # characters of a command line that the table shows
_HINTS = (
    "A rank is a Python process whose environment gives it a place in a job, such as RANK and WORLD_SIZE:"
    " docs/ranks.md.\n",
    "Inside a container only its own processes are seen: run this on the node, or give --path.procfs.\n",
)


def run(scan: Scan, *, as_json: bool, out: TextIO) -> int:
    """Write what the scan found. Returns 0 where there is a training process, 2 where there is none."""
    out.write(
        json.dumps(to_json(scan), indent=2, ensure_ascii=False) + "\n" if as_json else "".join(to_table(scan))
    )
    return 0 if scan.processes else 2


def to_json(scan: Scan) -> dict[str, object]:
    """The scan as JSON data: `processes`, `jobs`, `near_misses`, with the names of the data types."""
    processes = []
    for one in scan.processes:
        data = asdict(one)
        data |= data.pop("id")
        processes.append(data)
    return {
        "node": scan.node,
        "taken_at": scan.taken_at,
        "jobs": [asdict(job) for job in scan.jobs],
        "processes": processes,
        "dropped": scan.dropped,
        "near_misses": [asdict(one) for one in scan.near_misses],
    }


def to_table(scan: Scan) -> Iterable[str]:
    """The scan as lines of text: per job its processes, then what was nearly a rank."""
    if not scan.processes:
        yield f"No training processes on {scan.node}.\n"
        if not scan.near_misses:
            yield from _HINTS
    for job in scan.jobs:
        yield f"Job {job.job_id}: {job.running} of {job.expected} ranks of this node run"
        yield f", world size {job.world_size}" if job.world_size is not None else ""
        yield f", {job.conflicts} conflicting claims" if job.conflicts else ""
        yield "\n"
        members = [one for one in scan.processes if one.job_id == job.job_id]
        yield from _table(
            ("RANK", "LOCAL", "ROLE", "PID", "GPU", "POD", "LAUNCHER", "COMMAND"),
            [
                (
                    _text(one.rank),
                    _text(one.local_rank),
                    one.role if one.worker is None else f"{one.role} {one.worker}",
                    str(one.id.pid),
                    one.gpu or "-",
                    one.pod or "-",
                    one.launcher or "-",
                    _command(one.command_line),
                )
                for one in members
            ],
        )
    if scan.dropped:
        yield f"{scan.dropped} more processes are beyond what one node may show.\n"
    if scan.near_misses:
        yield "Not taken for ranks:\n"
        yield from _table(
            ("PID", "REASON", "COMMAND"),
            [(str(one.pid), one.reason, _command(one.command_line)) for one in scan.near_misses],
        )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    for row in (heads, *rows):
        yield (
            "  "
            + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            + "\n"
        )


def _text(number: int | None) -> str:
    return "-" if number is None else str(number)


def _command(command_line: Sequence[str]) -> str:
    text = "".join(one if one.isprintable() else "?" for one in " ".join(command_line))
    return text if len(text) <= _WIDEST_COMMAND else text[: _WIDEST_COMMAND - 1] + "…"
