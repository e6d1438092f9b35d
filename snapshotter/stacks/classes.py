"""Equivalence classes of threads and statistics of functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from snapshotter.stacks import rankset
from snapshotter.stacks.digest import Digest, Stack
from snapshotter.stacks.model import Role
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.tree import UNKNOWN, code_path

# Beyond this a list of sources helps nobody; `ranks` stays complete.
MAX_SOURCES = 1 << 14


@dataclass(frozen=True, slots=True)
class EquivalenceClass:
    """All threads of one role and name that have one stack. `count`: of processes. Frames innermost first."""

    ranks: RankSet
    count: int
    role: Role
    thread: str
    stack: Stack


@dataclass(frozen=True, slots=True)
class FunctionStat:
    """How often a place in the code is on a stack, over all threads, and in which processes."""

    function: str  # name file:line
    count: int
    sources: tuple[str, ...]  # at most MAX_SOURCES
    ranks: RankSet


_ROLE_ORDER = {"trainer": 0, "dataloader": 1, "checkpoint": 2, "other": 3, "launcher": 4}


def equivalence_classes(digest: Digest, seats: Sequence[int]) -> tuple[EquivalenceClass, ...]:
    """Rarest first; among equals trainers' main threads first. `seats`: each process's rank in rank sets."""
    found = []
    for group in digest.groups:
        processes = set(group.processes)
        ranks = rankset.of([seats[p] for p in processes if seats[p] >= 0])
        main = 0 if group.main else 1
        order = (len(processes), _ROLE_ORDER[group.role], main, group.thread, rankset.lowest(ranks) or 0)
        found.append((order, EquivalenceClass(ranks, len(processes), group.role, group.thread, group.stack)))
    found.sort(key=lambda item: item[0])
    return tuple(item[1] for item in found)


def function_stats(digest: Digest, seats: Sequence[int]) -> tuple[FunctionStat, ...]:
    """Most frequent first."""
    counts: dict[str, int] = {}
    holders: dict[str, list[list[int]]] = {}
    for group in digest.groups:
        here: dict[str, int] = {}
        for frame in group.stack:
            function = f"{frame.name or UNKNOWN} {code_path(frame)}"
            here[function] = here.get(function, 0) + 1
        for function, times in here.items():
            counts[function] = counts.get(function, 0) + times * len(group.processes)
            holders.setdefault(function, []).append(group.processes)
    sources = [process.source for process in digest.processes]
    return tuple(
        _stat(function, counts[function], holders[function], sources, seats)
        for function in sorted(counts, key=lambda function: (-counts[function], function))
    )


def _stat(
    function: str, count: int, holders: list[list[int]], sources: list[str], seats: Sequence[int]
) -> FunctionStat:
    processes = sorted(
        {process for held in holders for process in held}, key=lambda p: (seats[p], sources[p])
    )
    ranks = rankset.of([seats[p] for p in processes if seats[p] >= 0])
    return FunctionStat(function, count, tuple(sources[p] for p in processes[:MAX_SOURCES]), ranks)
