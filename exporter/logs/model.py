"""What is known of a followed log at one moment: published by the watcher, read by the collector."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What a training log shows its job to be doing."""

    STARTING = "starting"
    TRAINING = "training"
    EVALUATING = "evaluating"
    CHECKPOINTING = "checkpointing"
    COMPILING = "compiling"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Intervals:
    """Seconds between records that moved the training on."""

    count: int  # all since the log is followed
    total: float  # their sum, seconds
    quantiles: tuple[tuple[float, float], ...]  # of the newest ones: (0.5, 4.1), …


@dataclass(frozen=True, slots=True)
class Limit:
    """The age from which on the log counts as hung, and why it is that."""

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """A record that tells of trouble rather than progress."""

    kind: str
    text: str  # shortened
    read_at: float  # Unix seconds
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class LogState:
    """One followed log."""

    job_id: str
    log: str  # short stable name
    path: str
    framework: str
    phase: Phase
    limit: Limit
    since: float  # Unix seconds: first followed
    last_progress_at: float | None  # Unix seconds: when the newest record that moved training on was read
    last_iteration: int | None
    total_iterations: int | None
    epoch: float | None
    iterations: int  # records that moved training on since it is followed
    intervals: Intervals
    trouble_counts: tuple[tuple[str, int], ...] = ()
    troubles: tuple[Trouble, ...] = ()  # the newest ones, bounded
    skipped_records: int = 0
    problem: str | None = None  # why it cannot be read, or not as was asked
    opened: bool = True  # it could be read at least once
    failures: int = 0  # records and reads at which the exporter itself failed
    failure: str | None = None  # the newest of them

    def age(self, now: float) -> float:
        """Seconds since the training last moved on, or since the log is followed."""
        since = self.since if self.last_progress_at is None else self.last_progress_at
        return max(0.0, now - since)


@dataclass(frozen=True, slots=True)
class Unfollowed:
    """A rank whose output is no file that can be followed."""

    job_id: str
    rank: int
    kind: str  # pipe, terminal, socket, null
    remedy: str


@dataclass(frozen=True, slots=True)
class LogReport:
    """All that the watcher knows after one poll."""

    logs: tuple[LogState, ...] = ()
    unfollowed: tuple[Unfollowed, ...] = ()
    hanging: tuple[str, ...] = ()  # searches for logs that do not come back in time
    failing: tuple[str, ...] = ()  # searches for logs that fail, with why
