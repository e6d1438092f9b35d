"""Rules about two samples: a job that moves is slow at most, not hung."""

from __future__ import annotations

from collections import Counter

from snapshotter.stacks import rankset
from snapshotter.stacks.case import Case, RankView
from snapshotter.stacks.finding import Finding, speaks_against, speaks_for
from snapshotter.stacks.follow import helpers_move
from snapshotter.stacks.motion import Delta
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.verdict import Cause, Evidence
from snapshotter.stacks.wording import count, doing, named

# What a slow job may be said to do; ordinary computing and communicating is just training.
_WORTH_NAMING: frozenset[Cause] = frozenset({"checkpoint", "data", "compile", "storage_io"})

_LEAST_CPU = 0.005  # of the time; a waiter that never runs is at 0
_LEAST_BYTES = (
    1 << 16
)  # that most waiters send and receive between the samples: of a collective, no heartbeat


def moving(case: Case) -> RankSet:
    """Ranks that got on: their own main thread, or the DataLoader workers that it waits for."""
    ranks = rankset.of(
        [view.rank for view in case.views() if view.motion == "progressing" or helpers_move(view)]
    )
    if ranks:
        drift = rankset.of([view.rank for view in case.views(ranks) if _only_waits(case, view)])
        # A few that wait now here, now there, poll; of many, the job goes through its collectives.
        if drift == ranks and 4 * drift.bit_count() < case.captured.bit_count():
            return rankset.EMPTY
    return ranks


def _only_waits(case: Case, view: RankView) -> bool:
    later = view.trainer.later_stack
    return view.now.waits and later is not None and case.activity(later).waits


def ticking(case: Case) -> bool:
    """Do most waiting ranks wake and work, or talk, as in a job that iterates, though stacks look alike?"""
    waiting = [view.trainer.delta for view in case.views(case.waiting) if view.trainer.delta is not None]
    awake = [d for d in waiting if _gets_on(d)]
    return len(waiting) > 0 and 2 * len(awake) > len(waiting)


def _gets_on(delta: Delta) -> bool:
    works = delta.wakes and delta.cpu_share is not None and delta.cpu_share >= _LEAST_CPU
    return works or (delta.io_bytes or 0) >= _LEAST_BYTES


def progress(case: Case) -> Finding | None:
    """The job moves. None where nothing does, or where samples cannot be compared."""
    ranks = moving(case)
    if not ranks:
        return _ticks(case) if ticking(case) else None
    cause = _cause(case, ranks)
    total = case.captured.bit_count()
    several = ranks.bit_count() > 1
    what = doing(case, ranks)
    if cause != "none":
        rest = total - ranks.bit_count()
        others = f"; {count(rest, 'other rank')} wait meanwhile" if rest else ""
        who = named(ranks).lower() if rest or not several else f"all {count(total)}"
        says = f"Slow, not hung: {who} {what} and got on between the two samples{others}."
    elif 4 * ranks.bit_count() <= total and case.waiting & ~ranks:
        others = f"; {count((case.waiting & ~ranks).bit_count(), 'other rank')} wait meanwhile"
        says = f"Slow, not hung: {named(ranks).lower()} {what} and got on between the two samples{others}."
    else:
        says = f"The job moves: {ranks.bit_count():,} of {count(total)} got on between the two samples."
    return Finding(
        rule="progress",
        cause=cause,
        strength=0.9 if 2 * ranks.bit_count() > total else 0.75,
        scope="none",
        says=says,
        evidence=(
            speaks_for(
                "motion", f"{named(ranks)} {'have' if several else 'has'} moved between the two samples."
            ),
            *_io(case, ranks),
        ),
    )


def _ticks(case: Case) -> Finding:
    return Finding(
        rule="ticking",
        cause="none",
        strength=0.6,
        scope="none",
        says="The job still runs: stacks look alike in both samples, but waiting ranks work or exchange data.",
        evidence=(
            speaks_for("motion", "Most waiting ranks kept waking and working, or sent and received data."),
            speaks_against("motion", "Their stacks are the same in both samples."),
        ),
    )


def _cause(case: Case, ranks: RankSet) -> Cause:
    """What all that move are busy with, if it is one thing worth naming."""
    causes: Counter[Cause] = Counter()
    for view in case.views(ranks):
        later = view.trainer.later_stack
        after = case.activity(later).cause if later is not None else view.now.cause
        causes[view.now.cause if after == view.now.cause else "none"] += 1
    cause, most = causes.most_common(1)[0]
    return cause if cause in _WORTH_NAMING and most >= 0.9 * ranks.bit_count() else "none"


def _io(case: Case, ranks: RankSet) -> list[Evidence]:
    gained = sum(view.trainer.delta.io_bytes or 0 for view in case.views(ranks) if view.trainer.delta)
    return (
        [speaks_for("io", f"They read or wrote {gained / 1e6:,.1f} MB in that time.")]
        if gained >= 1 << 20
        else []
    )


def stillness(case: Case, culprits: RankSet) -> tuple[float, list[Evidence]]:
    """How two samples bear on a hang: a change of confidence, and the evidence."""
    compared = case.compared
    if not compared:
        return -0.1, [
            speaks_against("motion", "Only one sample: that nothing moves rests on the alert alone.")
        ]
    still = rankset.of([view.rank for view in case.views(compared) if view.motion in ("frozen", "spinning")])
    spinning = rankset.of(
        [view.rank for view in case.views(compared & culprits) if view.motion == "spinning"]
    )
    evidence = [speaks_for("motion", f"{count(still.bit_count())} stood still between the two samples.")]
    if spinning:
        evidence.append(
            speaks_for("motion", f"{named(spinning)} used a processor all the time without getting on.")
        )
    moved = compared & ~still
    if moved:
        evidence.append(speaks_against("motion", f"{named(moved)} moved."))
    usual = next(iter(case.views(still)), None)
    if usual is not None and usual.trainer.delta is not None and usual.trainer.delta.seconds:
        evidence[0] = speaks_for(
            "motion", f"{count(still.bit_count())} stood still for {usual.trainer.delta.seconds:.1f} seconds."
        )
    return (0.08 if not moved else -0.05), evidence
