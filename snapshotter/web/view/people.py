"""Who is to blame: the culprits by node, pod and GPU, with what each was doing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snapshotter.render.groups import Group
from snapshotter.stacks import rankset

_MOST_RANKS = 32  # beyond, one row per node


@dataclass(frozen=True, slots=True)
class Culprit:
    """One rank, or all culprits of one node where there are many."""

    ranks: str
    first: int
    node: str
    pods: str
    gpus: str
    states: str
    doing: str  # innermost frame


def culprits(report: Mapping[str, Any], groups: Sequence[Group]) -> tuple[Culprit, ...]:
    """Rows of the culprits' table, by rank; ranks without a process stand as themselves."""
    try:
        blamed = rankset.parse(str(report["verdict"].get("culprit_ranks", "")))
    except ValueError:
        return ()
    doing = _doing(groups)
    found: dict[int, Mapping[str, Any]] = {}
    for process in report.get("process_infos", ()):
        rank = process.get("Rank")
        if process.get("Role") == "trainer" and isinstance(rank, int) and rank >= 0 and blamed >> rank & 1:
            found.setdefault(rank, process)
    by_node: dict[tuple[str, int], list[int]] = {}
    one_each = blamed.bit_count() <= _MOST_RANKS
    for rank in rankset.members(blamed):
        node = str(found.get(rank, {}).get("Node") or "")
        by_node.setdefault((node, rank if one_each else -1), []).append(rank)
    return tuple(
        Culprit(
            ranks=rankset.fold(rankset.of(ranks)),
            first=ranks[0],
            node=node,
            pods=_several(found.get(rank, {}).get("PodName") for rank in ranks),
            gpus=_several(found.get(rank, {}).get("GpuID") for rank in ranks),
            states=_several(_state(found.get(rank)) for rank in ranks),
            doing=_several(next((text for bits, text in doing if bits >> rank & 1), "") for rank in ranks),
        )
        for (node, _), ranks in by_node.items()
    )


def _doing(groups: Sequence[Group]) -> list[tuple[int, str]]:
    """Rank sets of the trainers' main thread with their innermost frame."""
    out = []
    for group in groups:
        if group.role == "trainer" and group.thread in ("MainThread", ""):
            try:
                out.append((rankset.parse(group.ranks), group.innermost))
            except ValueError:
                continue
    return out


def _state(process: Mapping[str, Any] | None) -> str:
    if process is None:
        return "no process"
    outcome, state = process.get("Outcome"), process.get("State")
    said = state_words(state) if state else ""
    wchan = process.get("Wchan")
    if state == "D" and wchan and wchan != "0":
        said = f"{said} in {wchan}"
    return said if outcome in ("ok", None) else f"{said}, {outcome}" if said else str(outcome)


_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "disk sleep",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "I": "idle",
    "X": "dead",
}


def state_words(letter: object) -> str:
    """`D (disk sleep)` for the letter of /proc/PID/stat."""
    text = str(letter)
    return f"{text} ({_STATES[text]})" if text in _STATES else text


def _several(values: Any) -> str:
    """The distinct texts, at most three of them."""
    distinct = list(dict.fromkeys(str(value) for value in values if value not in (None, "")))
    if len(distinct) > 3:
        return f"{', '.join(distinct[:3])} and {len(distinct) - 3} more"
    return ", ".join(distinct)
