"""How long a log may stay silent: intervals, the limit learned from them, and what its phase allows."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

from exporter.logs.model import Intervals, Limit, Phase

NEWEST_INTERVALS = 512
_QUANTILES = (0.5, 0.9, 0.95, 0.99)
_HIGH = 0.95
"""The quantile the limit is learned from: one long pause in twenty does not move it."""
_PAUSE_FACTOR = 3.0
"""An evaluation, checkpoint or compilation may take this many limits, or this many times the longest seen."""
_PAUSES = (Phase.EVALUATING, Phase.CHECKPOINTING, Phase.COMPILING)


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits that apply to one log, in seconds."""

    configured: float | None
    where: str  # what configured it, for people
    factor: float
    floor: float
    ceiling: float
    minimum_intervals: int
    startup_grace: float
    pause_grace: float


class Progress:
    """Times at which one log showed progress. All times are Unix seconds of one clock."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.last_at: float | None = None
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self._count = 0
        self._total = 0.0
        self._pause_began: float | None = None
        self._pause_phase: Phase | None = None
        self._alive_at: float | None = None
        self._longest: dict[Phase, float] = {}
        self._resumed_at: float | None = None  # when a pause was last said to be over
        self._paused = 0.0  # seconds of pauses since training last moved

    def moved(self, at: float, *, timed: bool = True) -> None:
        """Training moved on. `timed` False: when it did is not known well enough to learn from."""
        if self.last_at is not None and at > self.last_at + self._paused and timed:
            self._learn(at - self.last_at - self._paused)
        if self.last_at is None or at > self.last_at:
            self.last_at = at
        self._end_pause(at)
        self._paused = 0.0

    def enter(self, phase: Phase, at: float) -> None:
        """The log is in this phase now."""
        if phase is self._pause_phase:
            return
        self._end_pause(at)
        if phase in _PAUSES:
            self._pause_phase, self._pause_began, self._alive_at = phase, at, at

    def alive(self, at: float) -> None:
        """Something else than training moved on: the samples of an evaluation, the shards of a checkpoint."""
        self._alive_at = at

    def restart(self, at: float) -> None:
        """Another run began in the same log: its start has its own grace."""
        self.since, self.last_at = at, None
        self._end_pause(at)
        self._paused = 0.0

    def _end_pause(self, at: float) -> None:
        if self._pause_phase is not None and self._pause_began is not None:
            length = at - self._pause_began
            self._longest[self._pause_phase] = max(length, self._longest.get(self._pause_phase, 0.0))
            self._resumed_at = at
            self._paused += max(0.0, length)
        self._pause_phase = self._pause_began = self._alive_at = None

    def _learn(self, interval: float) -> None:
        self._count += 1
        self._total += interval
        if self._pause_phase is not None:
            return  # a pause says nothing of how long an iteration takes
        self._order.append(interval)
        insort(self._sorted, interval)
        if len(self._order) > NEWEST_INTERVALS:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]

    def quantile(self, share: float) -> float:
        """The interval that this share of the newest ones does not exceed. Raises IndexError where there is none."""
        return self._sorted[max(0, math.ceil(share * len(self._sorted)) - 1)]

    def intervals(self) -> Intervals:
        quantiles = tuple((share, self.quantile(share)) for share in _QUANTILES) if self._sorted else ()
        return Intervals(self._count, self._total, quantiles)

    def limit(self, rules: Rules, phase: Phase) -> Limit:
        """The limit in force."""
        base = self._base(rules)
        if self.last_at is None:
            lasted = 0.0 if self._alive_at is None else max(0.0, self._alive_at - self.since)
            grace = max(rules.startup_grace, base.seconds if rules.configured is not None else 0.0)
            return Limit(lasted + grace, f"{grace:.0f} s of grace for the first iteration")
        if phase not in _PAUSES:
            return self._after_pause(base)
        cap = max(base.seconds, rules.ceiling)
        longest = self._longest.get(phase, 0.0)
        unknown = rules.pause_grace if phase not in self._longest else 0.0
        allowed = min(cap, max(_PAUSE_FACTOR * max(base.seconds, longest), unknown))
        lasted = 0.0 if self._alive_at is None else max(0.0, self._alive_at - self.last_at)
        reason = f"{phase}: {allowed:.0f} s after its last sign of life; while training {base.reason}"
        return Limit(lasted + allowed, reason)

    def _after_pause(self, base: Limit) -> Limit:
        """The next iteration after a pause has as long as any other: the pause itself is no silence."""
        if self.last_at is None or self._resumed_at is None or self._resumed_at <= self.last_at:
            return base
        lasted = self._resumed_at - self.last_at
        return Limit(
            lasted + base.seconds, f"{base.reason}; from the end of a pause, {lasted:.0f} s after it"
        )

    def _base(self, rules: Rules) -> Limit:
        if rules.configured is not None:
            return Limit(rules.configured, f"set for {rules.where}")
        known = len(self._sorted)
        if known < rules.minimum_intervals:
            return Limit(
                rules.ceiling,
                f"not learned yet ({known} of {rules.minimum_intervals} intervals): the ceiling",
            )
        high = self.quantile(_HIGH)
        learned = rules.factor * high
        reason = f"learned: {rules.factor:g} times {high:.3g} s, which 95% of {known} intervals do not exceed"
        if learned < rules.floor:
            return Limit(rules.floor, f"{reason}; raised to the floor")
        if learned > rules.ceiling:
            return Limit(rules.ceiling, f"{reason}; lowered to the ceiling")
        return Limit(learned, reason)
