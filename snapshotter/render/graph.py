"""The merged trees of a capture in the form that the flame graph draws, and what is missing from them.

One tree per sample and role. flamegraph.js gets each thread of each tree as a prefix tree in columns, with
every string and every set of ranks written once: most ranks share theirs, so that 10,240 take kilobytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from snapshotter.render.missing import ROLES, Missing, is_rank, of_capture
from snapshotter.stacks import rankset, tree
from snapshotter.stacks.model import Frame, JobCapture, Role
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.tree import Node, Tree

K = TypeVar("K", bound=Hashable)

_MAIN = "MainThread"


@dataclass(frozen=True, slots=True)
class Graph:
    """Everything the flame graph needs of one capture."""

    job_id: str
    trees: tuple[tuple[int, Tree], ...]  # number of the sample, tree of one role
    missing: tuple[Missing, ...]
    nodes: tuple[tuple[str, RankSet], ...]  # node, its ranks

    def find(self, sample: int, role: str) -> Tree | None:
        return next((one for number, one in self.trees if (number, one.role) == (sample, role)), None)

    def best(self) -> tuple[Tree, ...]:
        """A tree of each role: every rank in the first sample in which it could be read."""
        merged: dict[Role, Tree] = {}
        for _, one in self.trees:
            known = merged.get(one.role)
            if known is None:
                merged[one.role] = one
            elif late := one.captured & ~known.captured:
                merged[one.role] = tree.merge((known, tree.only(one, late)))
        return tuple(merged.values())

    @property
    def samples(self) -> int:
        return 1 + max((number for number, _ in self.trees), default=-1)


def build(capture: JobCapture) -> Graph:
    """Merge all stacks of a capture. Processes without a rank (the launcher) have no place in it."""
    merge = Merge[tuple[Frame, ...]]()
    for process in capture.processes:
        merge.add_process(process.node, process.role, process.rank)
        for number, sample in enumerate(process.samples):
            if sample.outcome == "ok":
                stacks = ((thread.thread_name, thread.frames) for thread in sample.threads)
                merge.add_sample(process.role, process.rank, number, stacks)
    return merge.graph(capture.job_id, of_capture(capture), lambda frames: frames)


class Merge(Generic[K]):
    """Collects stacks under any key that tells equal ones apart; the frames are looked at once per key."""

    def __init__(self) -> None:
        self._stacks: dict[tuple[int, Role], dict[tuple[str, K], list[int]]] = defaultdict(dict)
        self._captured: dict[tuple[int, Role], list[int]] = defaultdict(list)
        self._nodes: dict[str, list[int]] = defaultdict(list)

    def add_process(self, node: str, role: Role, rank: int | None) -> None:
        """A process that was found, captured or not."""
        if is_rank(rank):
            self._nodes[node].append(rank)

    def add_sample(
        self, role: Role, rank: int | None, number: int, stacks: Iterable[tuple[str | None, K]]
    ) -> None:
        """The threads of one sample that could be taken: (name, key of the stack)."""
        if not is_rank(rank):
            return
        self._captured[number, role].append(rank)
        ends = self._stacks[number, role]
        for name, key in stacks:
            ends.setdefault((name or tree.UNKNOWN, key), []).append(rank)

    def graph(
        self, job_id: str, missing: tuple[Missing, ...], frames: Callable[[K], tuple[Frame, ...]]
    ) -> Graph:
        trees = []
        for number, role in sorted(self._captured, key=lambda one: (one[0], ROLES.index(one[1]))):
            stacks: dict[tuple[str, tuple[Frame, ...]], RankSet] = {}
            for (thread, stack), ranks in self._stacks[number, role].items():
                place = (thread, frames(stack))
                stacks[place] = stacks.get(place, 0) | rankset.of(ranks)
            captured = rankset.of(self._captured[number, role])
            trees.append((number, tree.build(role, stacks, captured=captured)))
        nodes = [(node, rankset.of(ranks)) for node, ranks in self._nodes.items()]
        nodes.sort(key=lambda item: (item[1] & -item[1], item[0]))
        return Graph(job_id, tuple(trees), missing, tuple(nodes))


def to_data(graph: Graph) -> dict[str, Any]:
    """What flamegraph.js reads; see there for the columns."""
    strings: dict[str, int] = {}
    sets: dict[RankSet, int] = {}
    frames: dict[tuple[str, str], int] = {}

    def string(text: str) -> int:
        return strings.setdefault(text, len(strings))

    def ranks(bits: RankSet) -> int:
        return sets.setdefault(bits, len(sets))

    groups = []
    for number, merged in graph.trees:
        threads: dict[str, list[Node]] = defaultdict(list)
        for root in merged.roots:
            threads[root.thread].append(root)
        if not threads:  # read, but in native code: the set of captured ranks is kept all the same
            threads[_MAIN] = []
        for thread, roots in sorted(threads.items(), key=lambda item: (item[0] != _MAIN, item[0])):
            parent: list[int] = []
            frame: list[int] = []
            ends: list[int] = []
            pending = [(-1, root) for root in reversed(roots)]
            while pending:
                above, node = pending.pop()
                here = len(parent)
                parent.append(above)
                frame.append(frames.setdefault((node.function, node.path), len(frames)))
                ends.append(ranks(node.ends) if node.ends else -1)
                pending.extend((here, child) for child in reversed(node.children))
            groups.append(
                {
                    "sample": number,
                    "role": merged.role,
                    "thread": thread,
                    "captured": ranks(merged.captured),
                    "parent": parent,
                    "frame": frame,
                    "self": ends,
                }
            )
    return {
        "groups": groups,
        "frames": [[string(name), string(path)] for name, path in frames],
        "strings": list(strings),
        "sets": [rankset.fold(bits) for bits in sets],
        "samples": ["first", "second", *map(str, range(3, graph.samples + 1))][: graph.samples],
        "hosts": [[node, rankset.fold(bits)] for node, bits in graph.nodes],
        "missing": [[rankset.fold(one.ranks), one.node, _with_role(one)] for one in graph.missing],
    }


def from_data(data: Mapping[str, Any], job_id: str, missing: tuple[Missing, ...]) -> Graph:
    """The graph that `to_data` wrote. Raises KeyError, IndexError, TypeError, ValueError for anything else."""
    strings, sets = data["strings"], [rankset.parse(text) for text in data["sets"]]
    names = [(strings[name], strings[path]) for name, path in data["frames"]]
    roots: dict[tuple[int, Role], list[Node]] = {}
    captured: dict[tuple[int, Role], RankSet] = {}
    for group in data["groups"]:
        key = (group["sample"], group["role"])
        captured[key] = sets[group["captured"]]
        below: dict[int, list[Node]] = defaultdict(list)
        for number in range(len(group["parent"]) - 1, -1, -1):  # parents come before their children
            end = group["self"][number]
            ends = rankset.EMPTY if end < 0 else sets[end]
            children = tuple(reversed(below.pop(number, [])))
            ranks = rankset.union([ends, *(child.ranks for child in children)])
            function, path = names[group["frame"][number]]
            node = Node(group["thread"], function, path, ranks, ends, children)
            below[group["parent"][number]].append(node)
        roots.setdefault(key, []).extend(reversed(below[-1]))
    trees = tuple(
        (number, Tree(role, captured[number, role], tuple(sorted(found, key=_place))))
        for (number, role), found in roots.items()
    )
    nodes = tuple((name, rankset.parse(ranks)) for name, ranks in data["hosts"])
    return Graph(job_id, trees, missing, nodes)


def _place(node: Node) -> tuple[str, str, str]:
    return node.thread, node.function, node.path


def _with_role(one: Missing) -> str:
    return one.reason if one.role == "trainer" else f"{one.reason} ({one.role})"
