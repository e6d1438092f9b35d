"""What a node boils down of its own processes, so that the centre of a very large job need not.

The same facts as in a digest, but made to travel: every frame and every stack once, referred to by number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from snapshotter.stacks.digest import Digest, Digester, ProcessFacts, Stack
from snapshotter.stacks.model import Frame, NodeAnswer, Role

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class GroupPart:
    """A stack group of one node; `stack` and `processes` are indices into the node's tables."""

    role: Role
    thread: str
    main: bool
    stack: int
    processes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProcessPart:
    """A process without its stacks, which are indices; `later` is -1 without a second sample."""

    facts: ProcessFacts
    stack: int
    later: int
    others: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class NodeTree:
    """A node, or several, merged. `frames` holds each frame once, `stacks` indices of frames, innermost first."""

    answers: tuple[NodeAnswer, ...]  # without processes
    frames: tuple[Frame, ...]
    stacks: tuple[tuple[int, ...], ...]
    groups: tuple[GroupPart, ...]
    processes: tuple[ProcessPart, ...]
    schema_version: int = SCHEMA_VERSION


class _Tables:
    def __init__(self) -> None:
        self.frames: dict[Frame, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self._seen: dict[int, int] = {}  # stacks of a digest are shared: one object, one entry

    def number(self, stack: Stack) -> int:
        known = self._seen.get(id(stack))
        if known is None:
            numbers = tuple(self.frames.setdefault(frame, len(self.frames)) for frame in stack)
            known = self._seen[id(stack)] = self.stacks.setdefault(numbers, len(self.stacks))
        return known


def premerge(answer: NodeAnswer) -> NodeTree:
    """One node's answer, merged."""
    digester = Digester()
    digester.add_node(answer)
    return pack(digester.digest)


def pack(digest: Digest) -> NodeTree:
    """A digest in the form that travels."""
    tables = _Tables()
    groups = tuple(
        GroupPart(group.role, group.thread, group.main, tables.number(group.stack), tuple(group.processes))
        for group in digest.groups
    )
    processes = tuple(
        ProcessPart(
            replace(facts, stack=(), later_stack=None, other_stacks=()),
            tables.number(facts.stack),
            -1 if facts.later_stack is None else tables.number(facts.later_stack),
            tuple((name, tables.number(stack)) for name, stack in facts.other_stacks),
        )
        for facts in digest.processes
    )
    return NodeTree(tuple(digest.nodes), tuple(tables.frames), tuple(tables.stacks), groups, processes)


def check(tree: NodeTree, *, most_frames: int) -> None:
    """Raises ValueError where the numbers of a tree do not fit its tables.

    Or where its threads have more than `most_frames` frames, written out: a few numbers can stand for any.
    """
    lengths = [len(numbers) for numbers in tree.stacks]
    _within("frames", (number for numbers in tree.stacks for number in numbers), len(tree.frames))
    _within("stacks", (group.stack for group in tree.groups), len(lengths))
    _within("processes", (one for group in tree.groups for one in group.processes), len(tree.processes))
    for part in tree.processes:
        _within(
            "stacks", (part.stack, max(part.later, 0), *(number for _, number in part.others)), len(lengths)
        )
    grouped = sum(lengths[group.stack] * len(group.processes) for group in tree.groups)
    beside = sum(lengths[number] for part in tree.processes for _, number in part.others)
    if max(grouped, beside) > most_frames:
        raise ValueError(f"it stands for {max(grouped, beside)} frames, and there are {most_frames} at most")


def _within(what: str, numbers: Iterable[int], size: int) -> None:
    for number in numbers:
        if not 0 <= number < size:
            raise ValueError(f"it refers to number {number} of {size} {what}")


def add_tree(digester: Digester, tree: NodeTree) -> None:
    """Take in a node that merged itself; the facts of its processes become the digest's."""
    stacks = [digester.intern(tuple(tree.frames[n] for n in numbers)) for numbers in tree.stacks]
    first = len(digester.digest.processes)
    for part in tree.processes:
        others = tuple((name, stacks[number]) for name, number in part.others)
        part.facts.stack = stacks[part.stack]
        part.facts.later_stack = stacks[part.later] if part.later >= 0 else None
        part.facts.other_stacks = digester.share(others)
    for group in tree.groups:
        members = digester.group(group.role, group.thread, group.main, stacks[group.stack]).processes
        members.extend(first + number for number in group.processes)
    digester.digest.processes.extend(part.facts for part in tree.processes)
    digester.digest.nodes.extend(tree.answers)


def digest_trees(trees: Iterable[NodeTree]) -> Digest:
    """The digest of nodes that merged themselves."""
    digester = Digester()
    for tree in trees:
        add_tree(digester, tree)
    return digester.digest
