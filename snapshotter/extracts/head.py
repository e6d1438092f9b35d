"""The part of a report and a manifest that says the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from snapshotter.bundle.reader import Bundle
from snapshotter.bundle.schema import Manifest
from snapshotter.render.missing import Missing, of_manifest
from snapshotter.stacks import rankset
from snapshotter.stacks.rankset import RankSet

MOST_CLASSES = 200
_PROCESS = ("Rank", "GpuID", "PodName", "Node", "Role", "Pid", "Outcome", "State", "Wchan")


def head(bundle: Bundle, manifest: Manifest, report: Mapping[str, Any] | None) -> dict[str, Any]:
    """`report`: report.json with fewer classes and processes, or None; `classes`: how many there are in all."""
    classes = () if report is None else report.get("equivalence_classes", ())
    return {
        "report": None if report is None else _short(report),
        "classes": len(classes),
        "missing": [_missing_json(one) for one in not_captured(bundle, manifest, report)],
    }


def missing(made: Mapping[str, Any]) -> tuple[Missing, ...]:
    """What was not captured, where and why, from `head`."""
    return tuple(
        Missing(rankset.parse(ranks), node, role, outcome, detail)
        for ranks, node, role, outcome, detail in made["missing"]
    )


def _short(report: Mapping[str, Any]) -> dict[str, Any]:
    verdict = report.get("verdict", {})
    try:
        culprits = rankset.parse(str(verdict.get("culprit_ranks", "")))
    except ValueError:  # a set written by a later version
        culprits = rankset.EMPTY
    return {
        "verdict": verdict,
        "summary": report.get("summary", {}),
        "equivalence_classes": _classes(report.get("equivalence_classes", ()), culprits),
        "process_infos": [
            {key: one.get(key) for key in _PROCESS}
            for one in report.get("process_infos", ())
            if one.get("Role") == "trainer" and _is_in(one.get("Rank"), culprits)
        ],
    }


def _classes(classes: Iterable[Mapping[str, Any]], culprits: RankSet) -> list[Mapping[str, Any]]:
    """The rarest, and as many of the trainers' main threads and of the culprits', in their order."""
    rarest: list[Mapping[str, Any]] = []
    mains = blamed = 0
    for one in classes:
        main = one.get("role") == "trainer" and one.get("thread") == "MainThread"
        theirs = main and bool(_ranks(one) & culprits)
        mains, blamed = mains + main, blamed + theirs
        if (
            len(rarest) < MOST_CLASSES
            or (main and mains <= MOST_CLASSES)
            or (theirs and blamed <= MOST_CLASSES)
        ):
            rarest.append(one)
    return rarest


def _ranks(one: Mapping[str, Any]) -> RankSet:
    try:
        return rankset.parse(str(one.get("ranks", "")))
    except ValueError:
        return rankset.EMPTY


def _is_in(rank: object, ranks: RankSet) -> bool:
    return isinstance(rank, int) and rank >= 0 and bool(ranks >> rank & 1)


def not_captured(bundle: Bundle, manifest: Manifest, report: Mapping[str, Any] | None) -> tuple[Missing, ...]:
    """From the manifest alone, and of nodes that did not answer the ranks that should be there."""
    homes = {
        rank: entry.node
        for entry in manifest.nodes
        if entry.outcome != "ok"
        for rank in bundle.answer(entry).expected_ranks
    }
    return of_manifest(manifest.targets, manifest.nodes, report, homes)


def _missing_json(one: Missing) -> list[str]:
    return [rankset.fold(one.ranks), one.node, one.role, one.outcome, one.detail]
