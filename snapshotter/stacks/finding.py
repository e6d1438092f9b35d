"""What one rule found."""

from __future__ import annotations

from dataclasses import dataclass

from snapshotter.stacks import rankset
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.verdict import Cause, Evidence, Scope


@dataclass(frozen=True, slots=True)
class Finding:
    """`strength`: how sure the rule is when all else is plain, 0 to 1. `doing`: what the culprits do, as the
    headline says it after naming them; `says` replaces the whole headline. `hung` None: it may be slow as well.
    """

    rule: str
    cause: Cause
    strength: float
    culprits: RankSet = rankset.EMPTY
    scope: Scope = "local"
    doing: str = ""
    says: str = ""
    evidence: tuple[Evidence, ...] = ()
    hung: bool | None = True
    presumed_waiting: RankSet = rankset.EMPTY  # ranks that wait as far as structure tells


def speaks_for(kind: str, text: str) -> Evidence:
    """Evidence for the verdict."""
    return Evidence(kind, True, text)


def speaks_against(kind: str, text: str) -> Evidence:
    """Evidence against the verdict, or a limit of what it rests on."""
    return Evidence(kind, False, text)
