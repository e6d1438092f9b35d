"""Merged trees as the data frame of Grafana's flame graph panel: nested sets in columns.

https://grafana.com/docs/grafana/latest/panels-visualizations/visualizations/flame-graph/#data-api: rows are
nodes depth first, `level` the depth, `value` the width, `self` the part of it in no child, `label` the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from snapshotter.stacks import rankset
from snapshotter.stacks.tree import Tree

FIELDS = (
    ("level", "number"),
    ("value", "number"),
    ("self", "number"),
    ("label", "string"),
    ("ranks", "string"),
    ("others", "string"),
)

Row = tuple[int, int, int, str, str, str]


def render(trees: Iterable[Tree]) -> str:
    """One frame for all trees: below the root, one node per role."""
    rows: list[Row] = []
    for tree in trees:
        rows.extend(_rows(tree))
    total = sum(row[1] for row in rows if row[0] == 1)
    rows.insert(0, (0, total, 0, "all", "", ""))
    columns = [list(column) for column in zip(*rows, strict=True)]
    fields = [{"name": name, "type": kind} for name, kind in FIELDS]
    meta = {"preferredVisualisationType": "flamegraph"}
    return json.dumps(
        {"schema": {"name": "stacks", "meta": meta, "fields": fields}, "data": {"values": columns}},
        separators=(",", ":"),
    )


def _rows(tree: Tree) -> list[Row]:
    """The role's node and all below it.

    A node is as wide as it has ranks; wider where a rank is in several of its children, by two threads of one
    name or two workers: nested sets allow no overlap.
    """
    nodes = list(tree.walk())
    widths = [0] * len(nodes)
    inner = [0] * len(nodes)
    parents: list[int] = []
    path: list[int] = []
    for index, (depth, _) in enumerate(nodes):
        del path[depth:]
        parents.append(path[-1] if path else -1)
        path.append(index)
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index][1]
        widths[index] = max(node.ranks.bit_count(), inner[index] + node.ends.bit_count())
        if parents[index] >= 0:
            inner[parents[index]] += widths[index]
    total = sum(width for width, parent in zip(widths, parents, strict=True) if parent < 0)
    captured = rankset.fold(tree.captured)
    rows: list[Row] = [(1, total, 0, tree.role, captured, "")]
    for index, (depth, node) in enumerate(nodes):
        outside = rankset.fold(tree.captured & ~node.ranks)
        label = f"{node.thread}@{node.function}@{node.path}"
        own = widths[index] - inner[index]
        rows.append((depth + 2, widths[index], own, label, rankset.fold(node.ranks), outside))
    return rows
