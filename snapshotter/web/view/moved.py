"""Comparing two looks at a job: which ranks moved from where to where, and which stayed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from snapshotter.render.groups import shorten
from snapshotter.stacks import rankset
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.tree import Node, Tree

_MOST = 200


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stack ends."""

    function: str
    where: str
    frames: tuple[tuple[str, str], ...]  # function, file:line; innermost first


@dataclass(frozen=True, slots=True)
class Move:
    """Ranks that went from one place to another; None: not there on that side."""

    ranks: str
    count: int
    before: Place | None
    after: Place | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All ranks of both looks: the smallest groups that moved and the largest that stayed come first."""

    moved: tuple[Move, ...]
    stayed: tuple[Move, ...]
    only_before: str
    only_after: str
    moved_count: int
    stayed_count: int
    left_out: int  # rows beyond what a page shows


def compare(before: Tree | None, after: Tree | None, thread: str) -> Comparison:
    """Compare one thread of two trees of the same role."""
    ends_before = list(_ends(before, thread))
    ends_after = list(_ends(after, thread))
    all_before = rankset.union(bits for _, bits in ends_before)
    all_after = rankset.union(bits for _, bits in ends_after)
    moved: list[tuple[RankSet, Place, Place]] = []
    stayed: list[tuple[RankSet, Place]] = []
    moved_ranks = stayed_ranks = rankset.EMPTY
    for old, old_bits in ends_before:
        left = old_bits & all_after
        for new, new_bits in ends_after:
            if not left:
                break
            here = left & new_bits
            if not here:
                continue
            left &= ~here
            if old.frames == new.frames:
                stayed.append((here, old))
                stayed_ranks |= here
            else:
                moved.append((here, old, new))
                moved_ranks |= here
    moved.sort(key=lambda one: (one[0].bit_count(), one[0] & -one[0]))
    stayed.sort(key=lambda one: (-one[0].bit_count(), one[0] & -one[0]))
    return Comparison(
        moved=tuple(_move(bits, old, new) for bits, old, new in moved[:_MOST]),
        stayed=tuple(_move(bits, place, place) for bits, place in stayed[:_MOST]),
        only_before=rankset.fold(all_before & ~all_after),
        only_after=rankset.fold(all_after & ~all_before),
        moved_count=moved_ranks.bit_count(),
        stayed_count=stayed_ranks.bit_count(),
        left_out=max(0, len(moved) - _MOST) + max(0, len(stayed) - _MOST),
    )


def threads_of(*trees: Tree | None) -> list[str]:
    """Thread names of the trees, the main thread first."""
    names = {root.thread for tree in trees if tree is not None for root in tree.roots}
    return sorted(names, key=lambda name: (name != "MainThread", name))


def _ends(tree: Tree | None, thread: str) -> Iterator[tuple[Place, RankSet]]:
    """Every place where stacks of the thread end, with its ranks."""
    if tree is None:
        return
    pending: list[tuple[Node, tuple[tuple[str, str], ...]]] = [
        (root, ()) for root in tree.roots if root.thread == thread
    ]
    while pending:
        node, above = pending.pop()
        frames = ((node.function, node.path), *above)
        if node.ends:
            yield Place(node.function, shorten(node.path), frames), node.ends
        pending.extend((child, frames) for child in node.children)


def _move(bits: RankSet, before: Place, after: Place) -> Move:
    return Move(rankset.fold(bits), bits.bit_count(), before, after)
