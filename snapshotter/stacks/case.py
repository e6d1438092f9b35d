"""The facts of a job laid out by rank, as the rules of the diagnosis read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from snapshotter.stacks import rankset, threads
from snapshotter.stacks.activity import NOTHING, Activity, as_computing, classify
from snapshotter.stacks.digest import Digest, ProcessFacts, Stack
from snapshotter.stacks.knowledge import Knowledge
from snapshotter.stacks.motion import Comparison, Delta, Motion, motion_of
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.tree import NotCaptured, combine_not_captured

MISSING = "missing"  # the reason of ranks without any process

_OPERATORS = frozenset({"forward", "backward", "__call__", "apply"})


@dataclass(slots=True)
class RankView:
    """One rank: its trainer, its helpers, what its main thread does, and how it got on meanwhile."""

    rank: int
    trainer: ProcessFacts
    workers: list[ProcessFacts] = field(default_factory=list)
    children: list[ProcessFacts] = field(default_factory=list)  # its other helper processes
    now: Activity = NOTHING
    motion: Motion = "unknown"

    @property
    def read(self) -> bool:
        """Are there stacks?"""
        return self.trainer.outcome == "ok" and bool(self.trainer.threads)

    @property
    def stopped(self) -> bool:
        """Stopped by a signal, or by a debugger, each time it was looked at."""
        return _always(self.trainer, "Tt")

    @property
    def blocked(self) -> bool:
        """In uninterruptible sleep each time it was looked at."""
        return self.trainer.outcome == "uninterruptible" or _always(self.trainer, "D")

    @property
    def ended(self) -> bool:
        """It was there and is no more: a zombie, or gone between finding and reading it."""
        return "gone" in (self.trainer.outcome, self.trainer.last_outcome) or _always(self.trainer, "ZX")


def _always(process: ProcessFacts, letters: str) -> bool:
    return bool(process.states) and not "".join(process.states).strip(letters)


@dataclass(slots=True)
class Case:
    """What the rules read. `seats`: for each process of the digest, its rank, or -1 where it has none."""

    digest: Digest
    knowledge: Knowledge
    seats: list[int]
    ranks: dict[int, RankView]
    world: RankSet  # all ranks that there should be
    captured: RankSet  # ranks whose trainer has stacks
    not_captured: tuple[NotCaptured, ...]
    absent: RankSet  # ranks that should run on a node that answered, and have no process there
    activity: Callable[[Stack], Activity]
    read: list[RankView]  # the views of captured ranks, ascending
    waiting: RankSet  # captured ranks that wait for others
    compared: RankSet  # ranks of which two samples could be compared

    @classmethod
    def of(cls, digest: Digest, *, world_size: int | None, knowledge: Knowledge) -> Case:
        """Lay out a digest. `world_size` None: as the processes say, else by the highest rank seen."""
        ranks = _by_rank(digest)
        known: dict[int, Activity] = {}

        def activity(stack: Stack) -> Activity:
            found = known.get(id(stack))
            if found is None:
                found = known[id(stack)] = classify(stack, knowledge)
            return found

        for view in ranks.values():
            _look(view, activity)
        seen = rankset.of(list(ranks))
        read = [view for _, view in sorted(ranks.items()) if view.read]
        captured = rankset.of([view.rank for view in read])
        expected = [(answer.outcome, _ranks(answer.expected_ranks) & ~seen) for answer in digest.nodes]
        # A node that gave no answer may have any of its ranks still; only the others know that theirs are gone.
        unknown = [NotCaptured(outcome, its) for outcome, its in expected if outcome != "ok"]
        away = rankset.union(part.ranks for part in unknown)
        absent = rankset.union(its for outcome, its in expected if outcome == "ok") & ~away
        world = _world(digest, seen | absent | away, world_size)
        missing = [
            NotCaptured(view.trainer.outcome if view.trainer.outcome != "ok" else "error", 1 << rank)
            for rank, view in ranks.items()
            if not view.read
        ]
        missing += [*unknown, NotCaptured(MISSING, world & ~seen & ~away)]
        return cls(
            digest=digest,
            knowledge=knowledge,
            seats=[-1 if p.rank is None else p.rank for p in digest.processes],
            ranks=ranks,
            world=world,
            captured=captured,
            not_captured=combine_not_captured(missing, captured),
            absent=absent,
            activity=activity,
            read=read,
            waiting=rankset.of([view.rank for view in read if view.now.waits]),
            compared=rankset.of([view.rank for view in read if view.motion != "unknown"]),
        )

    @property
    def uncaptured(self) -> RankSet:
        """All ranks without stacks, whatever the reason."""
        return rankset.union(part.ranks for part in self.not_captured)

    def views(self, ranks: RankSet | None = None) -> Iterator[RankView]:
        """The views of these ranks, of all that were read by default."""
        if ranks is None or ranks == self.captured:
            yield from self.read
            return
        for rank in rankset.members(ranks):
            view = self.ranks.get(rank)
            if view is not None:
                yield view

    def where(self, test: Callable[[RankView], bool]) -> RankSet:
        """The ranks whose process is known, read or not, that pass the test."""
        return rankset.of([rank for rank, view in self.ranks.items() if test(view)])


def _by_rank(digest: Digest) -> dict[int, RankView]:
    ranks: dict[int, RankView] = {}
    for process in digest.processes:
        if process.role == "trainer" and process.rank is not None:
            view = ranks.get(process.rank)
            if view is None:
                ranks[process.rank] = RankView(process.rank, process)
            elif not view.read and process.outcome == "ok":
                view.trainer = process
    for process in digest.processes:
        view = None if process.rank is None else ranks.get(process.rank)
        if view is not None and process.role == "dataloader":
            view.workers.append(process)
        elif view is not None and process.role in ("other", "checkpoint"):
            view.children.append(process)
    return ranks


def _look(view: RankView, activity: Callable[[Stack], Activity]) -> None:
    """Fill in what the rank does now, and the motion of its main thread and of its workers'."""
    trainer = view.trainer
    if not view.read:
        return
    for process in (trainer, *view.workers, *view.children):
        if process.later_stack is not None:
            process.motion = motion_of(
                Comparison(
                    process.stack,
                    process.later_stack,
                    activity(process.stack),
                    activity(process.later_stack),
                    process.delta or Delta(),
                )
            )
    now = activity(trainer.stack)
    if now.kind == "lock" and threads.joins(trainer.stack):
        now = threads.working_thread(trainer, activity) or now
    elif now.kind == "backward":
        now = threads.engine_thread(trainer, activity) or now
        if threads.engine_moves(trainer):
            trainer.motion = "progressing"
    if now.kind == "user" and (_in_native_code(trainer) or (now.in_module and _computes(trainer))):
        now = as_computing(now)
    view.now, view.motion = now, trainer.motion


def _in_native_code(trainer: ProcessFacts) -> bool:
    """Does the main thread use a processor in one place, without the lock that the interpreter needs?"""
    delta = trainer.delta
    return delta is not None and delta.busy and delta.native and trainer.later_stack == trainer.stack


def _computes(trainer: ProcessFacts) -> bool:
    """Is the main thread on a processor, as far as is known?"""
    if trainer.delta is not None and trainer.delta.cpu_share is not None:
        return trainer.delta.busy
    if trainer.states:
        return _always(trainer, "R")
    # py-spy's word alone: believed of what modules do themselves, not of what they call.
    return trainer.active and trainer.stack[0].name.rsplit(".", 1)[-1] in _OPERATORS


def _ranks(numbers: Iterable[int]) -> RankSet:
    return rankset.of([rank for rank in numbers if 0 <= rank <= rankset.MAX_RANK])


def _world(digest: Digest, seen: RankSet, world_size: int | None) -> RankSet:
    if world_size is None:
        world_size = max((process.world_size or 0 for process in digest.processes), default=0)
    if world_size > 0:
        return seen | rankset.span(0, min(world_size, rankset.MAX_RANK + 1) - 1)
    # Guessed from the highest rank, unless so few are here that someone gathered only a part of the job.
    guessed = rankset.span(0, seen.bit_length() - 1)
    return guessed if 2 * seen.bit_count() > guessed.bit_count() else seen
