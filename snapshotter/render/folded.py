"""Folded stacks: a line per stack that ends somewhere, its frames joined by `;`, and the number of ranks."""

from __future__ import annotations

from collections.abc import Iterable

from snapshotter.stacks.tree import Tree


def render(trees: Iterable[Tree]) -> str:
    """`frame;frame;frame N` lines for flamegraph.pl and its kin; every frame carries its rank sets.

    With several roles, the first frame is the role.
    """
    trees = tuple(trees)
    lines: list[str] = []
    for tree in trees:
        path: list[str] = [tree.role] if len(trees) > 1 else []
        base = len(path)
        for depth, node in tree.walk():
            del path[base + depth :]
            path.append(tree.label(node))
            if node.ends:
                lines.append(f"{';'.join(path)} {node.ends.bit_count()}")
    return "\n".join(lines) + "\n" if lines else ""
