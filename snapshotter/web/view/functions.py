"""The Report tab: function statistics and the table of processes, filtered, sorted and cut into pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from snapshotter.render.groups import shorten, split_function
from snapshotter.stacks import rankset
from snapshotter.web.view.people import state_words

PAGE = 50

T = TypeVar("T")

_SOURCE = re.compile(r"(?:^|-)rank(\d{1,7})(?:\.|$)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows of many. Numbers count from 1."""

    rows: Sequence[T]
    total: int
    number: int
    pages: int


@dataclass(frozen=True, slots=True)
class Function:
    """One line of the function statistics."""

    name: str
    path: str
    short: str
    count: int
    ranks: str
    others: tuple[str, ...]  # sources without a rank


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One line of the process table."""

    rank: int | None
    node: str
    pod: str
    gpu: str
    role: str
    pid: str
    name: str
    outcome: str
    state: str


class Stat(msgspec.Struct, frozen=True):
    """An entry of `function_stats` without its sources, which are most of a report."""

    function: str
    count: int = 0
    ranks: str | None = None  # None: a report of another program, which has sources alone


class SourcedStat(Stat, frozen=True):
    """The whole entry."""

    sources: tuple[str, ...] = ()


def functions(stats: Iterable[Stat]) -> tuple[Function, ...]:
    """Rows in the order of the report; where an entry has sources alone, these are folded to ranks."""
    known: dict[str, int | None] = {}
    return tuple(_function(one, known) for one in stats)


def _function(one: Stat, known: dict[str, int | None]) -> Function:
    name, path = split_function(one.function)
    ranks = one.ranks
    others: tuple[str, ...] = ()
    if ranks is None:
        ranks, others = _fold_sources(one.sources if isinstance(one, SourcedStat) else (), known)
    return Function(name, path, shorten(path), one.count, ranks, others)


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


FUNCTION_SORTS = {
    "count": lambda one: -one.count,
    "rare": lambda one: one.count,
    "function": lambda one: (one.name, one.path),
    "file": lambda one: (one.path, one.name),
}


def pick_functions(rows: Iterable[Function], *, query: str, sort: str, page: int) -> Page[Function]:
    """Those that match, in the order wanted."""
    wanted = query.strip().lower()
    kept = [one for one in rows if not wanted or wanted in f"{one.name} {one.path}".lower()]
    kept.sort(key=FUNCTION_SORTS.get(sort, FUNCTION_SORTS["count"]))
    return cut(kept, page)


def processes(report: Mapping[str, Any]) -> tuple[ProcessRow, ...]:
    """`process_infos` as rows."""
    return tuple(
        ProcessRow(
            rank=one["Rank"] if isinstance(one.get("Rank"), int) else None,
            node=_text(one.get("Node")),
            pod=_text(one.get("PodName")),
            gpu=_text(one.get("GpuID")),
            role=_text(one.get("Role")),
            pid=_text(one.get("Pid")),
            name=_text(one.get("ProcessName")),
            outcome=_text(one.get("Outcome")),
            state=state_words(one["State"]) if one.get("State") else "",
        )
        for one in report.get("process_infos", ())
    )


def pick_processes(
    rows: Sequence[ProcessRow], *, query: str, role: str, outcome: str, page: int
) -> Page[ProcessRow]:
    """Those that match: `query` is a rank set (`0-7/12`), or a part of node, pod, GPU or name."""
    wanted = query.strip().lower()
    ranks = _ranks(wanted)
    kept = [
        one
        for one in rows
        if (not role or one.role == role)
        and (not outcome or one.outcome == outcome or (outcome == "failed" and one.outcome != "ok"))
        and (
            not wanted
            or (ranks is not None and one.rank is not None and one.rank >= 0 and ranks >> one.rank & 1)
            or (ranks is None and wanted in f"{one.node} {one.pod} {one.gpu} {one.name} {one.pid}".lower())
        )
    ]
    return cut(kept, page)


def _ranks(text: str) -> int | None:
    try:
        return rankset.parse(text.replace(",", "/").replace(" ", "")) if text else None
    except ValueError:
        return None


def cut(rows: Sequence[T], page: int) -> Page[T]:
    """Page `page` of the rows, the nearest one there is."""
    pages = max(1, -(-len(rows) // PAGE))
    page = min(max(1, page), pages)
    return Page(rows[(page - 1) * PAGE : page * PAGE], len(rows), page, pages)


def _text(value: object) -> str:
    return "" if value is None else str(value)
