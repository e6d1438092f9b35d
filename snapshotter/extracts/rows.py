"""All processes and all functions of a report as rows without what pages do not show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from snapshotter.bundle.schema import Target
from snapshotter.stacks import rankset

_SOURCE = re.compile(r"(?:^|-)rank(\d{1,7})(?:\.|$)", re.ASCII)


class ProcessRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One process; empty strings where the report has nothing. `state` is the letter of /proc/PID/stat."""

    rank: int | None
    node: str
    role: str
    pid: int
    outcome: str
    gpu: str = ""
    pod: str = ""
    worker: int | None = None
    name: str = ""
    state: str = ""


class FunctionRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One place in the code, as the report writes it: `wait /usr/lib/python3.12/threading.py:655`."""

    function: str
    count: int
    ranks: str
    others: tuple[str, ...] = ()  # sources without a rank


def processes(report: Mapping[str, Any] | None, targets: Sequence[Target]) -> list[ProcessRow]:
    """In the order of the report; without one, the processes that the manifest names."""
    if report is None:
        return [ProcessRow(one.rank, one.node, one.role, one.pid, one.outcome) for one in targets]
    return [_process(one) for one in report.get("process_infos", ())]


def _process(one: Mapping[str, Any]) -> ProcessRow:
    rank, worker, pid = one.get("Rank"), one.get("Worker"), one.get("Pid")
    return ProcessRow(
        rank=rank if isinstance(rank, int) else None,
        node=_text(one.get("Node")),
        role=_text(one.get("Role")),
        pid=pid if isinstance(pid, int) else 0,
        outcome=_text(one.get("Outcome")),
        gpu=_text(one.get("GpuID")),
        pod=_text(one.get("PodName")),
        worker=worker if isinstance(worker, int) else None,
        name=_text(one.get("ProcessName")),
        state=_text(one.get("State")),
    )


def _text(value: object) -> str:
    return "" if value is None else str(value)


def functions(report: Mapping[str, Any] | None) -> list[FunctionRow]:
    """In the order of the report; where an entry has sources alone, these are folded to ranks."""
    known: dict[str, int | None] = {}
    stats = () if report is None else report.get("function_stats", ())
    return [_function(one, known) for one in stats]


def _function(one: Mapping[str, Any], known: dict[str, int | None]) -> FunctionRow:
    ranks = one.get("ranks")
    others: tuple[str, ...] = ()
    if ranks is None:
        ranks, others = _fold_sources(map(str, one.get("sources", ())), known)
    return FunctionRow(_text(one.get("function")), int(one.get("count", 0)), str(ranks), others)


def _fold_sources(sources: Iterable[str], known: dict[str, int | None]) -> tuple[str, tuple[str, ...]]:
    ranks: set[int] = set()
    others: list[str] = []
    for source in sources:
        if source not in known:
            match = _SOURCE.search(source)
            known[source] = int(match[1]) if match and int(match[1]) <= rankset.MAX_RANK else None
        rank = known[source]
        if rank is None:
            others.append(source)
        else:
            ranks.add(rank)
    return rankset.fold(rankset.of(ranks)), tuple(others)
