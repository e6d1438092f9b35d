"""The Report tab: function statistics and the table of processes, filtered, sorted and cut into pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from snapshotter.extracts.rows import FunctionRow, ProcessRow
from snapshotter.render.groups import shorten, split_function
from snapshotter.stacks import rankset

PAGE = 50

T = TypeVar("T")


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


def functions(rows: Iterable[FunctionRow]) -> tuple[Function, ...]:
    """The same with name and place apart."""
    return tuple(map(_function, rows))


def _function(one: FunctionRow) -> Function:
    name, path = split_function(one.function)
    return Function(name, path, shorten(path), one.count, one.ranks, one.others)


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
