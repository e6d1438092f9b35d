"""What the centre holds of a node: its answer as it came, packed, and the same merged.

The answer is what a bundle stores. Verdict, report and everything else that looks at all nodes are made of the
merged trees, so that of ten thousand nodes no stack is unpacked twice.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from snapshotter.encoding import encode
from snapshotter.stacks.digest import ProcessFacts
from snapshotter.stacks.model import NodeAnswer
from snapshotter.stacks.premerge import NodeTree, premerge

_ANSWER = msgspec.json.Decoder(NodeAnswer)


@dataclass(frozen=True, slots=True)
class Gathered:
    """One node. `packed` is the JSON of its whole answer, compressed by gzip; `tree` is of this node alone."""

    packed: bytes
    tree: NodeTree

    @classmethod
    def of(cls, answer: NodeAnswer) -> Gathered:
        """An answer that was taken here, or that came without a tree."""
        return cls(pack(encode(answer)), premerge(answer))

    @property
    def answer(self) -> NodeAnswer:
        """What the node answered, without its processes."""
        return self.tree.answers[0]

    @property
    def processes(self) -> list[ProcessFacts]:
        """Its processes, in the order of the answer; their stacks are in the tree."""
        return [part.facts for part in self.tree.processes]

    def whole(self) -> NodeAnswer:
        """The answer with all of its stacks."""
        return _ANSWER.decode(gzip.decompress(self.packed))

    def expecting(self, ranks: Iterable[int]) -> Gathered:
        """The same where these ranks should run there and have no process. The words of the node stay."""
        answer = replace(self.answer, expected_ranks=tuple(sorted(ranks)))
        return replace(self, tree=replace(self.tree, answers=(answer,)))


def pack(answer: bytes) -> bytes:
    """The JSON of an answer as bundles store it: the same bytes at any time."""
    return gzip.compress(answer, compresslevel=6, mtime=0)
