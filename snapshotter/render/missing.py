"""Which ranks were not captured, where and why: never counted as healthy, never silently as outliers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

from snapshotter.stacks import rankset
from snapshotter.stacks.model import JobCapture, Role
from snapshotter.stacks.rankset import RankSet

ROLES: tuple[Role, ...] = ("trainer", "dataloader", "checkpoint", "other", "launcher")

# What each outcome other than "ok" means to a reader.
REASONS = {
    "timeout": "py-spy did not finish in time",
    "gone": "the process ended",
    "denied": "not permitted to read the process",
    "not_python": "no Python interpreter found in the process",
    "uninterruptible": "in a page fault (state D), left alone",
    "error": "py-spy failed",
    "unreachable": "its node did not answer",
    "missing": "no process of this rank was found",
}


@dataclass(frozen=True, slots=True)
class Missing:
    """Ranks that were not captured, where and why. `ranks` is empty where only the node is known."""

    ranks: RankSet
    node: str
    role: str
    outcome: str
    detail: str  # what the capture said of it, perhaps empty

    @property
    def reason(self) -> str:
        text = REASONS.get(self.outcome, self.outcome)
        return f"{text}: {self.detail}" if self.detail else text


def is_rank(rank: int | None) -> TypeGuard[int]:
    """Whether this can be a member of a set of ranks."""
    return rank is not None and 0 <= rank <= rankset.MAX_RANK


class _Process(Protocol):
    @property
    def node(self) -> str: ...
    @property
    def role(self) -> Role: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def outcome(self) -> str: ...
    @property
    def error(self) -> str | None: ...


class _Node(Protocol):
    @property
    def node(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def error(self) -> str | None: ...


def of_capture(capture: JobCapture) -> tuple[Missing, ...]:
    """What is missing from a capture."""
    world = max([capture.world_size or 0, *(process.world_size or 0 for process in capture.processes)])
    homes = {rank: node.node for node in capture.nodes for rank in node.expected_ranks}
    expected = _ranks(homes) | rankset.span(0, min(world, rankset.MAX_RANK + 1) - 1)
    return tuple(_missing(capture.processes, capture.nodes, expected, homes))


def of_manifest(
    processes: Iterable[_Process],
    nodes: Iterable[_Node],
    report: Mapping[str, Any] | None,
    homes: Mapping[int, str],
) -> tuple[Missing, ...]:
    """The same from a manifest's targets and nodes and the report's verdict, without reading the stacks.

    `homes`: the node on which a rank without a process should be, where that is known.
    """
    expected = rankset.EMPTY
    if report is not None:
        try:
            expected = rankset.parse(str(report["verdict"].get("not_captured", "")))
        except ValueError:
            pass  # a set written by a later version: the manifest alone then says what is missing
    return tuple(_missing(processes, nodes, expected | _ranks(homes), homes))


def _missing(
    processes: Iterable[_Process], nodes: Iterable[_Node], expected: RankSet, homes: Mapping[int, str]
) -> Iterator[Missing]:
    found: dict[tuple[str, str, str, str], RankSet] = defaultdict(int)
    seen = rankset.EMPTY
    there: dict[str, RankSet] = defaultdict(int)
    for rank, home in homes.items():
        there[home] |= 1 << rank if is_rank(rank) else 0
    for process in processes:
        bit = 1 << process.rank if is_rank(process.rank) else 0
        if process.role == "trainer":
            seen |= bit
        if process.outcome != "ok":
            found[process.node, process.role, process.outcome, process.error or ""] |= bit
    for node in nodes:
        if node.outcome != "ok":
            here = there.get(node.node, rankset.EMPTY) & ~seen
            found[node.node, "trainer", node.outcome, node.error or ""] |= here
            seen |= here
    for rank in rankset.members(expected & ~seen):
        found[homes.get(rank, ""), "trainer", "missing", ""] |= 1 << rank
    order = sorted(found.items(), key=lambda item: (_role_order(item[0][1]), item[1] & -item[1], item[0]))
    for (name, role, outcome, detail), ranks in order:
        yield Missing(ranks, name, role, outcome, detail)


def _ranks(homes: Mapping[int, str]) -> RankSet:
    return rankset.of([rank for rank in homes if is_rank(rank)])


def _role_order(role: str) -> int:
    return list(map(str, ROLES)).index(role) if role in ROLES else len(ROLES)
