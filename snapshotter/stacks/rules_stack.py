"""Rules about stacks: who does work of its own, who waits, who waits for something else than the rest."""

from __future__ import annotations

from collections import Counter

from snapshotter.stacks import rankset
from snapshotter.stacks.activity import Activity
from snapshotter.stacks.case import Case, RankView
from snapshotter.stacks.finding import Finding, speaks_against, speaks_for
from snapshotter.stacks.follow import child_of, follow
from snapshotter.stacks.kernel import sleeps_for
from snapshotter.stacks.knowledge import Kind
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.verdict import Cause, Evidence
from snapshotter.stacks.wording import at, common, count, does, doing, named, shown, waits_in

# Own work that could as well be waiting for others in a way that the table does not know.
VAGUE: frozenset[Kind] = frozenset({"user", "compute", "plumbing", "lock", "network", "sleep", "subprocess"})

PRESUMED = (
    0.75  # such a part of all ranks in one vague place is taken to wait, even where others wait plainly
)
LARGE = 0.2  # such a part of all ranks in one vague place is a large group
FEW = 8  # an odd group counts as few if it is at most one in so many ranks

_PRIORITY: tuple[Cause, ...] = (
    "storage_io",
    "data",
    "checkpoint",
    "application",
    "compile",
    "compute",
    "unknown",
)


def odd_one_out(case: Case) -> Finding | None:
    """Ranks that do their own work while the rest wait for them."""
    waiting = case.waiting
    own = case.captured & ~waiting
    if not own:
        return None
    presumed = _presumed_waiting(case, own, waiting)
    if presumed:
        own &= ~presumed
        if not own:  # the few that wait plainly are the odd ones
            return _odd_waiters(case, waiting, presumed)
    elif not waiting:
        return None
    culprits = _specific(case, own)
    cause = _cause(case, culprits)
    share = culprits.bit_count() / case.captured.bit_count()
    strength = 0.85 if share <= 0.25 else 0.75 if share <= 0.5 else 0.55
    evidence = [speaks_for("own_work", f"{named(culprits)}: {doing(case, culprits)}.")]
    evidence.extend(_sleeps(case, culprits))
    if presumed:
        strength -= 0.2
        what = does(_usual(case, presumed), many=True)
        text = f"{count(presumed.bit_count())} {what} alike: taken to wait, as most of a job does in a hang."
        evidence.append(speaks_for("structure", text))
    else:
        evidence.append(speaks_for("waiting", f"{count(waiting.bit_count())} wait{waits_in(case, waiting)}."))
    if cause == "unknown" or all(view.now.kind == "plumbing" for view in case.views(culprits)):
        strength -= 0.15
    rest = own & ~culprits
    if rest:
        evidence.append(speaks_against("own_work", f"{named(rest)} {doing(case, rest)}, too."))
        strength -= 0.1
    return Finding(
        rule="odd_one_out",
        cause=cause,
        strength=strength,
        culprits=culprits,
        doing=_followed(case, culprits, evidence) or doing(case, culprits),
        evidence=tuple(evidence),
        presumed_waiting=presumed,
    )


def _sleeps(case: Case, culprits: RankSet) -> list[Evidence]:
    """What the kernel says that culprits in code of their own wait for."""
    found: dict[tuple[str, str], list[int]] = {}
    for view in case.views(culprits):
        subject = sleeps_for(view.trainer)
        if subject:
            found.setdefault((subject, view.trainer.wchan or ""), []).append(view.rank)
    return [
        speaks_for("kernel", f"{named(rankset.of(ranks))}: in the kernel, waiting for {subject} ({wchan}).")
        for (subject, wchan), ranks in sorted(found.items())[:4]
    ]


def _usual(case: Case, ranks: RankSet) -> Activity:
    usual = common(view.now for view in case.views(ranks))
    assert usual is not None
    return usual


def _presumed_waiting(case: Case, own: RankSet, waiting: RankSet) -> RankSet:
    """The large groups in vague places, if structure says that they wait: they are nearly all, but for a few."""
    places: dict[tuple[str, str], RankSet] = {}
    for view in case.views(own):
        if view.now.kind in VAGUE or view.now.queues:
            places[view.now.place] = places.get(view.now.place, 0) | 1 << view.rank
    total = case.captured.bit_count()
    large = rankset.union(ranks for ranks in places.values() if ranks.bit_count() > max(1, LARGE * total))
    rest = own & ~large
    if not large or large == case.captured:
        return rankset.EMPTY
    if rest and rest.bit_count() * FEW <= max(FEW, total):
        return large
    largest = max(places.values(), key=int.bit_count)
    enough = largest.bit_count() >= PRESUMED * total if waiting else largest.bit_count() > total / 2
    return largest if enough else rankset.EMPTY


def _odd_waiters(case: Case, waiting: RankSet, presumed: RankSet) -> Finding:
    what = does(_usual(case, presumed), many=True)
    return Finding(
        rule="odd_waiters",
        cause="communication",
        strength=0.45,
        culprits=waiting,
        doing=doing(case, waiting),
        evidence=(
            speaks_for(
                "structure", f"{count(presumed.bit_count())} {what} alike; {named(waiting).lower()} not."
            ),
            speaks_against("waiting", f"{named(waiting)} may as well wait for the others to get there."),
        ),
        presumed_waiting=presumed,
    )


def _specific(case: Case, own: RankSet) -> RankSet:
    """Where fewer ranks do something telling (data, a lock) than something vague, the telling ones."""
    telling = rankset.of(
        [view.rank for view in case.views(own) if view.now.kind not in ("user", "compute", "plumbing")]
    )
    vague = own & ~telling
    return telling if telling and vague.bit_count() > telling.bit_count() else own


def _cause(case: Case, ranks: RankSet) -> Cause:
    causes = Counter(view.now.cause for view in case.views(ranks))
    most = max(causes.values())
    tied = [cause for cause, times in causes.items() if times == most]
    return min(tied, key=lambda cause: _PRIORITY.index(cause) if cause in _PRIORITY else len(_PRIORITY))


def _followed(case: Case, culprits: RankSet, evidence: list[Evidence]) -> str:
    """Waits for helpers followed into them, as the headline says it; "" where there are none."""
    if culprits.bit_count() == 1 and (text := _child(case, culprits)):
        return text
    views = [view for view in case.views(culprits) if view.now.kind == "dataloader"]
    if not views or len(views) < culprits.bit_count():
        return ""
    found = [(view, followed) for view in views if (followed := follow(case, view)) is not None]
    busy = [(view, followed) for view, followed in found if followed.trouble]
    if not busy:
        if found:
            evidence.append(
                speaks_against("workers", "All their DataLoader workers are idle, waiting for work.")
            )
        return ""
    view, followed = busy[0]
    worker = f"worker {followed.worker.worker if followed.worker.worker is not None else followed.worker.pid}"
    at_work = does(followed.activity, many=False) if followed.trouble == "busy" else f"is {followed.trouble}"
    for one, other in busy[:4]:
        place = at(other.activity.frame)
        evidence.append(
            speaks_for(
                "workers",
                f"Rank {one.rank}'s DataLoader worker (pid {other.worker.pid}): {other.trouble}, {place}.",
            )
        )
    if len(views) == 1:
        return f"waits for its DataLoader {worker} (pid {followed.worker.pid}), which {at_work}"
    return f"wait for their DataLoader workers; that of rank {view.rank} {at_work}"


def _child(case: Case, culprit: RankSet) -> str:
    """`waits for its child process nvidia-smi (pid 77) in probe (health.py:20)`."""
    for view in case.views(culprit):
        child = child_of(view)
        if child is not None:
            name = f" {shown(child.name)}" if child.name else ""
            return f"waits for its child process{name} (pid {child.pid}) in {at(view.now.frame)}"
    return ""


def all_alike(case: Case) -> Finding | None:
    """All ranks do the same work of their own: a global hang in the user's code."""
    if case.waiting:
        return None
    views = list(case.views())
    causes = Counter(view.now.cause for view in views)
    cause, most = causes.most_common(1)[0]
    places = {view.now.place for view in views}
    if most < 0.9 * len(views) and len(places) > 1:
        return None
    usual = _usual(case, case.captured)
    if usual.queues and any(not view.now.queues for view in views):
        return None  # who holds the lock is none of those that wait for it
    odd = _odd_path(case) if usual.kind in VAGUE else None
    if odd is not None:
        return odd
    others = "none of them holds it" if usual.queues else "none waits for others"
    evidence = [speaks_for("alike", f"All {count(len(views))} {doing(case, case.captured)}; {others}.")]
    if usual.kind == "user":
        text = "Reading a tensor's value leaves no frame of its own: they may wait for their devices there."
        evidence.append(speaks_against("device", text))
    extra = _followed(case, case.captured, evidence)
    what = extra or does(usual, many=len(views) > 1)
    who = f"All {count(len(views))}" if len(views) > 1 else f"The only rank captured, {views[0].rank},"
    if len(views) > 1 and all(_toils(view) for view in views):
        text = "Everyone uses a processor in native code all the time: all of them hardly loop in vain."
        return Finding(
            rule="all_at_work",
            cause=cause,
            strength=0.5,
            scope="undetermined",
            says=f"{who} {what} and use a processor all the time: slow as far as can be told; none waits for others.",
            evidence=(*evidence, speaks_against("motion", text)),
            hung=None,
        )
    return Finding(
        rule="all_alike",
        cause=cause,
        strength=0.8 if most == len(views) and cause != "unknown" else 0.5,
        scope="global",
        says=f"{who} {what}; {others}.",
        evidence=tuple(evidence),
    )


def _odd_path(case: Case) -> Finding | None:
    """All are in one function that nobody knows, but a few came to it another way: the others may wait there."""
    paths: dict[tuple[tuple[str, str], ...], RankSet] = {}
    for view in case.views():
        path = tuple((frame.name, frame.filename) for frame in view.trainer.stack)
        paths[path] = paths.get(path, 0) | 1 << view.rank
    majority = max(paths.values(), key=int.bit_count)
    few = case.captured & ~majority
    if not few or few.bit_count() * FEW > case.captured.bit_count():
        return None
    odd = next(case.views(few))
    usual = next(case.views(majority))
    fork = next(
        (
            ours
            for ours, theirs in zip(reversed(odd.trainer.stack), reversed(usual.trainer.stack), strict=False)
            if (ours.name, ours.filename) != (theirs.name, theirs.filename)
        ),
        odd.now.frame,
    )
    return Finding(
        rule="odd_path",
        cause=_cause(case, few),
        strength=0.45,
        culprits=few,
        doing=f"{doing(case, few)}, by way of {at(fork)}",
        evidence=(
            speaks_for(
                "structure",
                f"{named(few)} came there by {at(fork)}, {count(majority.bit_count())} otherwise.",
            ),
            speaks_against("waiting", "Nothing says that this code waits for others."),
        ),
        presumed_waiting=majority,
    )


def _toils(view: RankView) -> bool:
    """Does its main thread, or a worker that it waits for, use a processor in native code all the time?"""
    busy = (view.trainer, *(view.workers if view.now.kind == "dataloader" else ()))
    return any(one.motion == "spinning" and one.delta is not None and one.delta.native for one in busy)
