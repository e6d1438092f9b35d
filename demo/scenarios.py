"""What can be made to go wrong, and what the verdict must then say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fault of the demo job with its truth; four ranks, so `culprit_ranks` is a part of `0-3`."""

    name: str
    story: str
    hung: bool
    scope: str
    cause: str
    culprit_ranks: str


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "stuck-rank",
        "Rank 2 takes a lock in user code that is never released; the others wait for it in all_reduce.",
        True,
        "local",
        "application",
        "2",
    ),
    Scenario(
        "stuck-dataloader",
        "A DataLoader worker of rank 1 waits for a storage server that never answers.",
        True,
        "local",
        "data",
        "1",
    ),
    Scenario(
        "stopped-rank",
        "Rank 3 is stopped by SIGSTOP.",
        True,
        "local",
        "process_stopped",
        "3",
    ),
    Scenario(
        "disk-sleep",
        "Rank 2 is in uninterruptible sleep (state D).",
        True,
        "local",
        "storage_io",
        "2",
    ),
    Scenario(
        "stuck-data-pipeline",
        "The DataLoader workers of every rank wait for a storage server that never answers.",
        True,
        "global",
        "data",
        "",
    ),
    Scenario(
        "collective-mismatch",
        "Rank 1 waits for a broadcast that nobody sends, the others for it in all_reduce.",
        True,
        "local",
        "communication",
        "1",
    ),
    Scenario(
        "slow-checkpoint",
        "Rank 0 writes a checkpoint for longer than the limit: slow, and no hang.",
        False,
        "none",
        "checkpoint",
        "",
    ),
)


def find(name: str) -> Scenario:
    """The scenario of that name. Raises KeyError."""
    return {scenario.name: scenario for scenario in SCENARIOS}[name]
