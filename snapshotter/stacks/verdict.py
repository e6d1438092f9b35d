"""The answer: who is to blame for a hang, why, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from snapshotter.stacks import rankset
from snapshotter.stacks.rankset import RankSet

Scope = Literal["local", "global", "none", "undetermined"]

Cause = Literal[
    "data",
    "storage_io",
    "compute",
    "communication",
    "checkpoint",
    "compile",
    "application",
    "process_exit",
    "process_stopped",
    "none",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation. `supports`: it speaks for the verdict; else against it."""

    kind: str
    supports: bool
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """`hung` None: cannot be told. Rank sets are bit sets (see rankset); `confidence` is between 0 and 1."""

    hung: bool | None
    scope: Scope
    cause: Cause
    confidence: float
    headline: str
    culprit_ranks: RankSet = rankset.EMPTY
    culprit_nodes: tuple[str, ...] = ()
    waiting_ranks: RankSet = rankset.EMPTY
    not_captured: RankSet = rankset.EMPTY
    group: str | None = None  # the smallest parallel group that explains the culprits: "node gpu-node-5"
    evidence: tuple[Evidence, ...] = ()
    next_steps: tuple[str, ...] = ()
