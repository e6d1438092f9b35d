"""The merged tree: the stacks of all processes of one role, with the set of ranks on every frame.

The top level parts by thread name; below it, frames go from the outermost function to the innermost. Merging
is associative and does not depend on order, so that a node may merge its own processes and the centre merges
the nodes' trees. Nothing here recurses: a stack may be as deep as it likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from snapshotter.stacks import rankset
from snapshotter.stacks.model import Frame, Role
from snapshotter.stacks.rankset import RankSet

UNKNOWN = "unknown"

Row = tuple[int, str, str, str, RankSet, RankSet]  # depth, thread, function, path, ranks, ends

# Characters with a meaning in a label or in folded text; percent-encoded, so that every label parses again.
_RESERVED = {ord(c): f"%{ord(c):02X}" for c in "%;@|"} | {n: f"%{n:02X}" for n in (*range(32), 127)}
_RESERVED |= {n: f"%{n:04X}" for n in (0x85, 0x2028, 0x2029)}


def escape(text: str) -> str:
    """The text with `% ; @ |`, control characters and line separators percent-encoded."""
    return text.translate(_RESERVED)


def code_path(frame: Frame) -> str:
    """`file:line`, or `unknown` without a file."""
    return f"{frame.filename}:{frame.line}" if frame.filename else UNKNOWN


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Node:
    """One frame of the merged tree. `ends` are those of `ranks` whose innermost frame this is."""

    thread: str
    function: str
    path: str  # file:line
    ranks: RankSet
    ends: RankSet
    children: tuple[Node, ...]

    def __repr__(self) -> str:
        return f"Node({self.thread}, {self.function}, {self.path}, {rankset.fold(self.ranks)!r})"


@dataclass(frozen=True, slots=True)
class NotCaptured:
    """Ranks without stacks, and why: an outcome, or `missing` where there was no process at all."""

    reason: str
    ranks: RankSet


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tree:
    """All stacks of one role. `roots` holds the outermost frames of all threads, sorted."""

    role: Role
    captured: RankSet  # ranks of which at least one process of this role was read
    roots: tuple[Node, ...]
    not_captured: tuple[NotCaptured, ...] = ()

    def walk(self) -> Iterator[tuple[int, Node]]:
        """(depth, node) of every node, parents first, children in their order; depth 0 is a root."""
        pending = [(0, node) for node in reversed(self.roots)]
        while pending:
            depth, node = pending.pop()
            yield depth, node
            pending.extend((depth + 1, child) for child in reversed(node.children))

    def rows(self) -> list[Row]:
        """The tree flattened; two trees are equal if their rows, captured and not captured sets are."""
        return [(d, n.thread, n.function, n.path, n.ranks, n.ends) for d, n in self.walk()]

    def label(self, node: Node) -> str:
        """`<ThreadName>@<FuncName>@<CodePath>@<RanksIn>|<RanksNotIn>`; both sets hold captured ranks only."""
        inside = rankset.fold(node.ranks)
        outside = rankset.fold(self.captured & ~node.ranks)
        return f"{escape(node.thread)}@{escape(node.function)}@{escape(node.path)}@{inside}|{outside}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        mine = (self.role, self.captured, self.not_captured)
        return mine == (other.role, other.captured, other.not_captured) and self.rows() == other.rows()

    def __hash__(self) -> int:
        return hash((self.role, self.captured, len(self.roots)))

    def __repr__(self) -> str:
        return f"Tree({self.role}, captured={rankset.fold(self.captured)!r}, {len(self.roots)} roots)"


Key = tuple[str, str, str]  # thread, function, path


class _Draft:
    """A node while the tree grows."""

    __slots__ = ("children", "ends", "key")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.ends: RankSet = rankset.EMPTY
        self.children: dict[Key, _Draft] = {}


def _freeze(root: _Draft) -> tuple[Node, ...]:
    """The children of `root` as frozen nodes, built from the leaves up."""
    order: list[_Draft] = []
    pending = [root]
    while pending:
        draft = pending.pop()
        order.append(draft)
        pending.extend(draft.children.values())
    done: dict[int, Node] = {}
    for draft in reversed(order):
        if draft is root:
            break
        children = tuple(done.pop(id(draft.children[key])) for key in sorted(draft.children))
        ranks = draft.ends
        for child in children:
            # A lone child's set is shared, not copied: large sets would fill the memory otherwise.
            ranks = child.ranks if not ranks else ranks | child.ranks
        done[id(draft)] = Node(*draft.key, ranks, draft.ends, children)
    return tuple(done[id(root.children[key])] for key in sorted(root.children))


def build(
    role: Role,
    stacks: Mapping[tuple[str, tuple[Frame, ...]], RankSet],
    *,
    captured: RankSet,
    not_captured: Iterable[NotCaptured] = (),
) -> Tree:
    """The tree of these stacks: (thread name, frames innermost first) -> ranks. Empty ones leave no node."""
    root = _Draft(("", "", ""))
    parts: dict[Frame, tuple[str, str]] = {}
    for (thread, frames), ranks in stacks.items():
        if not frames or not ranks:
            continue
        at = root
        for frame in reversed(frames):
            part = parts.get(frame)
            if part is None:
                part = parts[frame] = (frame.name or UNKNOWN, code_path(frame))
            key = (thread, *part)
            below = at.children.get(key)
            if below is None:
                below = at.children[key] = _Draft(key)
            at = below
        at.ends |= ranks
    return Tree(role, captured, _freeze(root), combine_not_captured(not_captured, captured))


def only(tree: Tree, ranks: RankSet) -> Tree:
    """The tree of these ranks alone."""
    root = _Draft(("", "", ""))
    pending = [(root, node) for node in tree.roots]
    while pending:
        at, node = pending.pop()
        if node.ranks & ranks:
            below = at.children[node.thread, node.function, node.path] = _Draft(
                (node.thread, node.function, node.path)
            )
            below.ends = node.ends & ranks
            pending.extend((below, child) for child in node.children)
    missing = tuple(NotCaptured(one.reason, one.ranks & ranks) for one in tree.not_captured)
    return Tree(tree.role, tree.captured & ranks, _freeze(root), combine_not_captured(missing, 0))


def combine_not_captured(parts: Iterable[NotCaptured], captured: RankSet) -> tuple[NotCaptured, ...]:
    """One entry per reason, sorted, without ranks that were captured after all."""
    by_reason: dict[str, RankSet] = {}
    for part in parts:
        by_reason[part.reason] = by_reason.get(part.reason, 0) | part.ranks
    kept = ((reason, ranks & ~captured) for reason, ranks in sorted(by_reason.items()))
    return tuple(NotCaptured(reason, ranks) for reason, ranks in kept if ranks)


def merge(trees: Iterable[Tree]) -> Tree:
    """One tree of several of the same role. Raises ValueError for none at all or for differing roles."""
    root = _Draft(("", "", ""))
    role: Role | None = None
    captured = rankset.EMPTY
    missing: list[NotCaptured] = []
    for tree in trees:
        if role is not None and tree.role != role:
            raise ValueError(f"cannot merge a tree of {tree.role} into one of {role}")
        role = tree.role
        captured |= tree.captured
        missing.extend(tree.not_captured)
        pending = [(root, node) for node in tree.roots]
        while pending:
            at, node = pending.pop()
            key = (node.thread, node.function, node.path)
            below = at.children.get(key)
            if below is None:
                below = at.children[key] = _Draft(key)
            below.ends |= node.ends
            pending.extend((below, child) for child in node.children)
    if role is None:
        raise ValueError("there is no tree to merge")
    return Tree(role, captured, _freeze(root), combine_not_captured(missing, captured))
