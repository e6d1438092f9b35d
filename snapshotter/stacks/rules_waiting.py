"""Rules for the case that all ranks wait for others: who waits for something else, or from elsewhere."""

from __future__ import annotations

from snapshotter.stacks import rankset
from snapshotter.stacks.case import Case, RankView
from snapshotter.stacks.finding import Finding, speaks_against, speaks_for
from snapshotter.stacks.knowledge import Kind
from snapshotter.stacks.model import Frame
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.rules_stack import FEW
from snapshotter.stacks.verdict import Cause, Evidence
from snapshotter.stacks.wording import at, count, doing, named, waits_in

Path = tuple[Frame, ...]  # the callers of a wait, innermost first
Way = tuple[tuple[str, str], Path]  # function and file of the wait, and its callers

_MOST_WAYS = 4
_SOURCED = frozenset({"broadcast", "scatter", "gather", "reduce"})  # one rank has another part than the rest


def mismatch(case: Case) -> Finding | None:
    """All wait, but a few in another collective, or in the same one called from elsewhere."""
    groups: dict[str, RankSet] = {}
    for view in case.views():
        operation = "point-to-point" if view.now.kind == "point_to_point" else view.now.operation
        groups[operation] = groups.get(operation, 0) | 1 << view.rank
    total = case.captured.bit_count()
    operation, majority = max(groups.items(), key=lambda item: (item[1].bit_count(), item[0]))
    if len(groups) == 1 and operation != "point-to-point":
        found = _elsewhere(case, operation) if operation else _unlike(case)
        return found or _other_way(case, operation)
    named_rest = rankset.union(ranks for name, ranks in groups.items() if name and ranks != majority)
    if operation == "point-to-point" and named_rest.bit_count() > max(1, total // (2 * FEW)):
        return None  # stages of a pipeline may well be in a collective of their own
    if named_rest and 2 * named_rest.bit_count() < total:
        strength = 0.75 if operation not in ("", "point-to-point") else 0.55
        return _mismatched(case, named_rest, majority, strength, "communication")
    unspecific = groups.get("", rankset.EMPTY)
    if not named_rest and unspecific and unspecific.bit_count() * FEW <= max(FEW, total):
        # While the others have passed it, this one has not got so far: backward and a synchronize compute as well.
        kinds = {view.now.kind for view in case.views(unspecific)}
        cause: Cause = "compute" if kinds <= {"backward", "device"} else "communication"
        return _mismatched(case, unspecific, majority, 0.45, cause)
    return None


def _mismatched(case: Case, few: RankSet, majority: RankSet, strength: float, cause: Cause) -> Finding:
    return Finding(
        rule="mismatch",
        cause=cause,
        strength=strength,
        culprits=few,
        doing=doing(case, few),
        evidence=(
            speaks_for("collective", f"{named(few)} {doing(case, few)}."),
            speaks_for(
                "collective", f"{count(majority.bit_count())} wait{waits_in(case, majority)} instead."
            ),
        ),
    )


def _elsewhere(case: Case, operation: str) -> Finding | None:
    sites: dict[tuple[str, str, int], RankSet] = {}
    for view in case.views():
        site = view.now.site
        if site is not None:
            key = (site.name, site.filename, site.line)
            sites[key] = sites.get(key, 0) | 1 << view.rank
    total = case.captured.bit_count()
    place, majority = max(sites.items(), key=lambda item: (item[1].bit_count(), item[0]), default=(None, 0))
    few = rankset.union(sites.values()) & ~majority
    if place is None or not _few_beside(few, majority, total):
        return None
    if _may_be_source(case, operation, few, majority):
        return None
    odd = next(view.now.site for view in case.views(few))
    usual = next(view.now.site for view in case.views(majority))
    return Finding(
        rule="call_site",
        cause="communication",
        strength=0.55,
        culprits=few,
        doing=f"{doing(case, few)} called from {at(odd)}",
        evidence=(
            speaks_for("collective", f"{named(few)}: {operation} called from {at(odd)}."),
            speaks_for("collective", f"{count(majority.bit_count())}: {operation} called from {at(usual)}."),
        ),
    )


def _few_beside(few: RankSet, majority: RankSet, total: int) -> bool:
    """Whether these are some, at most one in `FEW`, beside more than half of all."""
    return 0 < few.bit_count() * FEW <= max(FEW, total) and 2 * majority.bit_count() > total


def _other_way(case: Case, operation: str) -> Finding | None:
    """All wait in the same, called from the same helper, but a few came there another way than nearly all."""
    if not operation and any(view.now.kind != "backward" for view in case.views()):
        return None
    paths: dict[Path, RankSet] = {}
    for (_, path), ranks in _ways(case).items():
        paths[path] = paths.get(path, 0) | ranks
    total = case.captured.bit_count()
    usual, majority = max(paths.items(), key=lambda item: item[1].bit_count())
    few = case.captured & ~majority
    if not _few_beside(few, majority, total):
        return None
    odd = next(path for path, ranks in paths.items() if ranks & few)
    fork = _fork(odd, usual)
    if fork is None or _may_be_source(case, operation, few, majority):
        return None
    what = operation or "backward"
    return Finding(
        rule="other_way",
        cause="communication",
        strength=0.45,
        culprits=few,
        doing=f"{doing(case, few)} by way of {at(fork[0])}",
        evidence=(
            speaks_for("collective", f"{named(few)}: {what} by way of {at(fork[0])}."),
            speaks_for("collective", f"{count(majority.bit_count())}: {what} by way of {at(fork[1])}."),
        ),
    )


def _ways(case: Case) -> dict[Way, RankSet]:
    """Who came which way to what they wait in. Ranks with one stack share one object: a way is made once of it."""
    alike: dict[tuple[int, int], list[RankView]] = {}
    for view in case.views():
        alike.setdefault((id(view.trainer.stack), id(view.now)), []).append(view)
    ways: dict[Way, RankSet] = {}
    for views in alike.values():
        way = views[0].now.place, _callers(views[0])
        ways[way] = ways.get(way, 0) | rankset.of([view.rank for view in views])
    return ways


def _callers(view: RankView) -> Path:
    """The main thread's stack without what it waits in, innermost first."""
    stack, anchor = view.trainer.stack, view.now.anchor
    here = stack[anchor : anchor + 1] == (view.now.frame,)  # else another thread waits
    return stack[anchor + 1 :] if here else stack


def _fork(odd: Path, usual: Path) -> tuple[Frame, Frame] | None:
    """Where two ways of one program part, from the outside; None for two programs, such as a driver and others."""
    for place, (ours, theirs) in enumerate(zip(reversed(odd), reversed(usual), strict=False)):
        if ours != theirs:
            return (ours, theirs) if place or _function(ours) == _function(theirs) else None
    return None


def _function(frame: Frame) -> tuple[str, str]:
    return frame.name, frame.filename


def _may_be_source(case: Case, operation: str, few: RankSet, majority: RankSet) -> bool:
    """Is this how a collective with a source looks: the first or the last rank, which are the usual ones, or those
    of every group, call it on another line of the same function?
    """
    ends = 1 | 1 << (case.world.bit_length() - 1)
    if operation not in _SOURCED or not few & ends:
        return False
    odd, usual = (_callers(next(case.views(ranks))) for ranks in (few, majority))
    for ours, theirs in zip(odd, usual, strict=False):
        if ours != theirs:
            return _function(ours) == _function(theirs)
    return False


def _unlike(case: Case) -> Finding | None:
    """Waits that go together with any: a few in one kind of them, nearly all in another, at one place."""
    places: dict[tuple[Kind, str, str], RankSet] = {}
    for view in case.views():
        key = (view.now.kind, *view.now.place)
        places[key] = places.get(key, 0) | 1 << view.rank
    total = case.captured.bit_count()
    majority = max(places.values(), key=int.bit_count, default=rankset.EMPTY)
    few = case.captured & ~majority
    if not few or few.bit_count() * FEW > total:
        return None
    return _mismatched(case, few, majority, 0.4, "communication")


def _parts(case: Case) -> list[Evidence]:
    """Where ranks that all wait came in a few ways: who came which way, though none is rare enough to be odd."""
    ways = _ways(case)
    if not 1 < len(ways) <= _MOST_WAYS:
        return []
    (_, usual), _ = max(ways.items(), key=lambda item: item[1].bit_count())
    another = next((path for _, path in ways if path != usual), usual)
    found = []
    for (_, path), ranks in ways.items():
        fork = _fork(path, another if path == usual else usual)
        by = f" by way of {at(fork[0])}" if fork else ""
        found.append(speaks_for("split", f"{named(ranks)} {doing(case, ranks)}{by}."))
    return found


def symmetric(case: Case) -> Finding:
    """All wait and nothing tells them apart: no one is named."""
    waiting = case.waiting
    return Finding(
        rule="symmetric",
        cause="communication",
        strength=0.5,
        scope="global",
        says=f"All {count(waiting.bit_count())} wait for each other{waits_in(case, waiting)}; "
        "nothing that was captured tells which one is to blame.",
        evidence=(
            speaks_for("alike", f"All {count(waiting.bit_count())} {doing(case, waiting)}."),
            *_parts(case),
            speaks_against("alike", "Stacks alone cannot tell who is to blame where all wait alike."),
        ),
    )
