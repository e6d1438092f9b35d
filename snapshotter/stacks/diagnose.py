"""Rules of thumb that turn the facts of a job into a verdict."""

from __future__ import annotations

from collections import Counter

from snapshotter.stacks import rankset
from snapshotter.stacks.case import Case, RankView
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.verdict import Cause, Evidence, Verdict


def diagnose(case: Case) -> Verdict:
    """The verdict on a job."""
    views = {rank: view for rank, view in sorted(case.ranks.items()) if view.read}
    if not views:
        return Verdict(
            None,
            "undetermined",
            "unknown",
            0.0,
            "No process of the job could be read.",
            not_captured=case.uncaptured,
        )
    moving = [view for view in views.values() if view.trainer.motion == "progressing"]
    waiting = rankset.of([rank for rank, view in views.items() if view.now.waits])
    own = case.captured & ~waiting
    if moving:
        return _moving(case, views, moving)
    if waiting and own:
        return _local(case, views, own, waiting, _cause(views, own))
    if own:
        cause = _cause(views, own)
        return Verdict(
            True,
            "global",
            cause,
            0.7,
            f"All ranks are in {_place(views, own)}.",
            not_captured=case.uncaptured,
            evidence=(Evidence("alike", True, "All captured ranks do the same, and none waits for others."),),
        )
    if case.uncaptured:
        return _local(case, views, case.uncaptured, waiting, "unknown")
    operations: dict[str, RankSet] = {}
    for rank, view in views.items():
        if view.now.kind == "collective":
            operations[view.now.operation] = operations.get(view.now.operation, 0) | 1 << rank
    if len(operations) > 1 and all(view.now.kind == "collective" for view in views.values()):
        smallest = min(operations.values(), key=int.bit_count)
        if 2 * smallest.bit_count() < case.captured.bit_count():
            return _local(case, views, smallest, waiting & ~smallest, "communication")
    return Verdict(
        True,
        "global",
        "communication",
        0.4,
        "All ranks wait for each other; their stacks do not tell who is to blame.",
        waiting_ranks=waiting,
        not_captured=case.uncaptured,
    )


def _local(
    case: Case, views: dict[int, RankView], culprits: RankSet, waiting: RankSet, cause: Cause
) -> Verdict:
    nodes = sorted({case.ranks[r].trainer.node for r in rankset.members(culprits) if r in case.ranks} - {""})
    where = _place(views, culprits)
    return Verdict(
        True,
        "local",
        cause,
        0.8,
        f"Ranks {rankset.fold(culprits)} are in {where}; {waiting.bit_count()} other ranks wait for them.",
        culprit_ranks=culprits,
        culprit_nodes=tuple(nodes),
        waiting_ranks=waiting,
        not_captured=case.uncaptured,
        evidence=(Evidence("odd_one_out", True, f"Ranks {rankset.fold(culprits)} do not wait for others."),),
    )


def _moving(case: Case, views: dict[int, RankView], moving: list[RankView]) -> Verdict:
    kinds = {a.cause for view in moving for a in (view.now, view.later) if a is not None}
    cause = kinds.pop() if len(kinds) == 1 else "none"
    if cause not in ("checkpoint", "data", "compile", "storage_io"):
        cause = "none"
    text = f"The job moves: {len(moving)} of {len(views)} ranks got on between the two samples."
    return Verdict(False, "none", cause, 0.8, text, not_captured=case.uncaptured)  # type: ignore[arg-type]


def _cause(views: dict[int, RankView], ranks: RankSet) -> Cause:
    counts = Counter(views[rank].now.cause for rank in rankset.members(ranks))
    return counts.most_common(1)[0][0]  # type: ignore[return-value]


def _place(views: dict[int, RankView], ranks: RankSet) -> str:
    places = Counter(
        f"{view.now.frame.name} ({view.now.frame.filename}:{view.now.frame.line})"
        for rank in rankset.members(ranks)
        if (view := views.get(rank)) is not None and view.now.frame is not None
    )
    return places.most_common(1)[0][0] if places else "an unknown place"
