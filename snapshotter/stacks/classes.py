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
    holders: dict[str, list[int]] = {}
    for number, group in enumerate(digest.groups):
        here: dict[str, int] = {}
        for frame in group.stack:
            function = f"{frame.name or UNKNOWN} {code_path(frame)}"
            here[function] = here.get(function, 0) + 1
        for function, times in here.items():
            counts[function] = counts.get(function, 0) + times * len(group.processes)
            holders.setdefault(function, []).append(number)
    sources = _Sources(digest, seats)
    return tuple(
        FunctionStat(function, counts[function], *sources.of(tuple(holders[function])))
        for function in sorted(counts, key=lambda function: (-counts[function], function))
    )


class _Sources:
    """Names and ranks of the processes that hold some stack groups; most functions share theirs."""

    def __init__(self, digest: Digest, seats: Sequence[int]) -> None:
        self._digest = digest
        self._seats = seats
        names = [process.source for process in digest.processes]
        order = sorted(range(len(names)), key=lambda n: (seats[n], names[n]))
        self._names = names
        in_order = order == list(range(len(names)))
        self._position = None if in_order else {process: place for place, process in enumerate(order)}
        self._known: dict[tuple[int, ...], tuple[tuple[str, ...], RankSet]] = {}

    def of(self, groups: tuple[int, ...]) -> tuple[tuple[str, ...], RankSet]:
        known = self._known.get(groups)
        if known is None:
            found = {process for number in groups for process in self._digest.groups[number].processes}
            processes = sorted(found, key=self._position.__getitem__ if self._position else None)
            ranks = rankset.of([self._seats[p] for p in processes if self._seats[p] >= 0])
            known = self._known[groups] = tuple(self._names[p] for p in processes[:MAX_SOURCES]), ranks
        return known
