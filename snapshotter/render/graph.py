"""The merged trees of a capture in the form that the flame graph draws, and what is missing from them.

One tree per sample and role. flamegraph.js gets each thread of each tree as a prefix tree in columns, with
every string and every set of ranks written once: most ranks share theirs, so that 10,240 take kilobytes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from snapshotter.render.missing import ROLES, Missing, of_capture
from snapshotter.stacks import rankset, tree
from snapshotter.stacks.model import Frame, JobCapture, Role
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.tree import Node, Tree


@dataclass(frozen=True, slots=True)
class Graph:
    """Everything the flame graph needs of one capture."""

    job_id: str
    trees: tuple[tuple[int, Tree], ...]  # number of the sample, tree of one role
    missing: tuple[Missing, ...]
    nodes: tuple[tuple[str, RankSet], ...]  # node, its ranks

    def find(self, sample: int, role: str) -> Tree | None:
        return next((one for number, one in self.trees if (number, one.role) == (sample, role)), None)

    @property
    def samples(self) -> int:
        return 1 + max((number for number, _ in self.trees), default=-1)


def build(capture: JobCapture) -> Graph:
    """Merge all stacks of a capture. Processes without a rank (the launcher) have no place in it."""
    stacks: dict[tuple[int, Role], dict[tuple[str, tuple[Frame, ...]], RankSet]] = defaultdict(dict)
    captured: dict[tuple[int, Role], RankSet] = defaultdict(int)
    nodes: dict[str, RankSet] = defaultdict(int)
    for process in capture.processes:
        if process.rank is None or not 0 <= process.rank <= rankset.MAX_RANK:
            continue
        bit = 1 << process.rank
        nodes[process.node] |= bit
        for number, sample in enumerate(process.samples):
            if sample.outcome != "ok":
                continue
            captured[number, process.role] |= bit
            ends = stacks[number, process.role]
            for thread in sample.threads:
                key = (thread.thread_name or tree.UNKNOWN, thread.frames)
                ends[key] = ends.get(key, 0) | bit
    order = sorted(stacks, key=lambda key: (key[0], ROLES.index(key[1])))
    return Graph(
        job_id=capture.job_id,
        trees=tuple((key[0], tree.build(key[1], stacks[key], captured=captured[key])) for key in order),
        missing=of_capture(capture),
        nodes=tuple(sorted(nodes.items(), key=lambda item: (item[1] & -item[1], item[0]))),
    )


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
        for thread, roots in sorted(threads.items(), key=lambda item: (item[0] != "MainThread", item[0])):
            parent, frame, ends = [], [], []
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


def _with_role(one: Missing) -> str:
    return one.reason if one.role == "trainer" else f"{one.reason} ({one.role})"
