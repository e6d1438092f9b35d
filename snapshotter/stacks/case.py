"""The facts of a job laid out by rank, as the rules of the diagnosis read them."""

from __future__ import annotations

from dataclasses import dataclass, field

from snapshotter.stacks import rankset
from snapshotter.stacks.activity import NOTHING, Activity, classify
from snapshotter.stacks.digest import Digest, ProcessFacts, Stack
from snapshotter.stacks.knowledge import Knowledge
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.tree import NotCaptured, combine_not_captured

MISSING = "missing"  # the reason of ranks without any process


@dataclass(slots=True)
class RankView:
    """One rank: its trainer, its helpers, what its main thread does and did in the second sample."""

    rank: int
    trainer: ProcessFacts
    workers: list[ProcessFacts] = field(default_factory=list)
    now: Activity = NOTHING
    later: Activity | None = None

    @property
    def read(self) -> bool:
        """Are there stacks?"""
        return self.trainer.outcome == "ok" and bool(self.trainer.threads)


@dataclass(slots=True)
class Case:
    """What the rules read. `seats`: for each process of the digest, the rank it counts under."""

    digest: Digest
    knowledge: Knowledge
    seats: list[int]
    ranks: dict[int, RankView]
    world: RankSet  # all ranks that there should be
    captured: RankSet  # ranks whose trainer has stacks
    not_captured: tuple[NotCaptured, ...]
    absent: RankSet  # of them, ranks that a node said should run there and do not

    @classmethod
    def of(cls, digest: Digest, *, world_size: int | None, knowledge: Knowledge) -> Case:
        """Lay out a digest. `world_size` None: as the processes say, else by the highest rank seen."""
        ranks: dict[int, RankView] = {}
        for process in digest.processes:
            if process.role != "trainer" or process.rank is None:
                continue
            view = ranks.get(process.rank)
            if view is None:
                ranks[process.rank] = RankView(process.rank, process)
            elif not view.read and process.outcome == "ok":
                view.trainer = process
        for process in digest.processes:
            if process.role == "dataloader" and process.rank in ranks:
                ranks[process.rank].workers.append(process)
        known: dict[int, Activity] = {}

        def activity(stack: Stack) -> Activity:
            found = known.get(id(stack))
            if found is None:
                found = known[id(stack)] = classify(stack, knowledge)
            return found

        for view in ranks.values():
            if view.read:
                view.now = activity(view.trainer.stack)
                if view.trainer.later_stack is not None:
                    view.later = activity(view.trainer.later_stack)
        captured = rankset.of([rank for rank, view in ranks.items() if view.read])
        absent = rankset.of([rank for answer in digest.nodes for rank in answer.expected_ranks]) & ~captured
        world = _world(digest, ranks, captured, absent, world_size)
        missing = [
            NotCaptured(view.trainer.outcome if view.trainer.outcome != "ok" else "error", 1 << rank)
            for rank, view in ranks.items()
            if not view.read
        ]
        missing.append(NotCaptured(MISSING, world & ~rankset.of(list(ranks))))
        return cls(
            digest=digest,
            knowledge=knowledge,
            seats=_seats(digest),
            ranks=ranks,
            world=world,
            captured=captured,
            not_captured=combine_not_captured(missing, captured),
            absent=absent & ~rankset.of(list(ranks)),
        )

    @property
    def uncaptured(self) -> RankSet:
        """All ranks without stacks, whatever the reason."""
        return rankset.union(part.ranks for part in self.not_captured)


def _world(
    digest: Digest, ranks: dict[int, RankView], captured: RankSet, absent: RankSet, world_size: int | None
) -> RankSet:
    seen = rankset.of(list(ranks)) | absent
    if world_size is None:
        world_size = max((size for size in (p.world_size for p in digest.processes) if size), default=None)
    if world_size is not None:
        return seen | rankset.span(0, min(world_size, rankset.MAX_RANK + 1) - 1)
    # Guessed from the highest rank, unless so few are here that someone gathered only part of the job.
    guessed = rankset.span(0, seen.bit_length() - 1)
    return guessed if 2 * seen.bit_count() > guessed.bit_count() else seen


def _seats(digest: Digest) -> list[int]:
    """A process without a rank counts under the lowest rank of its node."""
    first: dict[str, int] = {}
    for process in digest.processes:
        if process.rank is not None:
            first[process.node] = min(process.rank, first.get(process.node, process.rank))
    return [first.get(p.node, 0) if p.rank is None else p.rank for p in digest.processes]
