"""Rules for the case that all ranks wait for others: who waits for something else, or from elsewhere."""

from __future__ import annotations

from snapshotter.stacks import rankset
from snapshotter.stacks.case import Case
from snapshotter.stacks.finding import Finding, speaks_against, speaks_for
from snapshotter.stacks.knowledge import Kind
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.rules_stack import FEW
from snapshotter.stacks.verdict import Cause
from snapshotter.stacks.wording import at, count, doing, named, waits_in


def mismatch(case: Case) -> Finding | None:
    """All wait, but a few in another collective, or in the same one called from elsewhere."""
    groups: dict[str, RankSet] = {}
    for view in case.views():
        operation = "point-to-point" if view.now.kind == "point_to_point" else view.now.operation
        groups[operation] = groups.get(operation, 0) | 1 << view.rank
    total = case.captured.bit_count()
    operation, majority = max(groups.items(), key=lambda item: (item[1].bit_count(), item[0]))
    if len(groups) == 1 and operation != "point-to-point":
        return _elsewhere(case, operation) if operation else _unlike(case)
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
    if (
        place is None
        or not few
        or few.bit_count() * FEW > max(FEW, total)
        or 2 * majority.bit_count() <= total
    ):
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
            speaks_against("alike", "Stacks alone cannot tell who is to blame where all wait alike."),
        ),
    )
