"""What must come of a soak: every hang paged, captured and diagnosed once, nothing else, and no leak."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.soaking.jobs import Truth
from benchmarks.soaking.plan import RANKS
from benchmarks.watched import Pager

PAGE = "TrainingHang"
RSS_BOUND = 0.05  # of the median, over the window
DESCRIPTOR_BOUND = 1  # more at rest than at rest before
WINDOW = 0.75  # the last part of the soak in which memory and descriptors are to be flat
LONG_ENOUGH = 30 * 60.0  # seconds: before that, memory is still being filled for the first time


@dataclass(slots=True)
class Seen:
    """What the chain said. Times are Unix seconds."""

    pager: Pager = field(default_factory=Pager)
    firing: dict[tuple[str, str], float] = field(
        default_factory=dict
    )  # (alert, job): first seen in Prometheus
    captures: dict[str, dict[str, Any]] = field(default_factory=dict)  # as the API shows them, by id

    def paged(self, job_id: str, alert: str = PAGE) -> list[float]:
        return self.pager.times(alert, job_id)

    def captured(self, job_id: str) -> list[dict[str, Any]]:
        return [
            one for one in self.captures.values() if one["job_id"] == job_id and one["trigger"] == "alert"
        ]

    def complete(self, truth: Truth) -> bool:
        """Whether all that must come of this job's hang has come."""
        job_id = truth.plan.job_id
        return bool(
            self.paged(job_id)
            and (f"{PAGE}Diagnosed", job_id) in self.firing
            and any(one["state"] == "done" for one in self.captured(job_id))
        )


def faults(truths: Sequence[Truth], seen: Seen) -> list[str]:
    """What went wrong; empty where all is well."""
    found = []
    for truth in truths:
        job_id = truth.plan.job_id
        pages, captures = seen.paged(job_id), seen.captured(job_id)
        if truth.hung_at is None:
            if pages:
                found.append(f"{job_id}: paged without a hang")
            if captures:
                found.append(f"{job_id}: captured without a hang")
            continue
        if truth.hang_ended_at is None:
            continue  # the soak ended first
        hang = f"{job_id}: hang in {truth.fault} of rank {truth.victim}"
        if len(pages) != 1:
            found.append(f"{hang} paged {len(pages)} times")
        if pages and pages[0] < truth.hung_at:
            found.append(f"{hang} paged before it began")
        if len(captures) != 1:
            found.append(f"{hang} captured {len(captures)} times")
        if (f"{PAGE}Diagnosed", job_id) not in seen.firing:
            found.append(f"{hang} not diagnosed")
        for one in captures:
            if wrong := misjudged(one, truth):
                found.append(f"{hang}: {wrong}")
    return found


def misjudged(capture: dict[str, Any], truth: Truth) -> str:
    """What is wrong with a capture's verdict; empty where nothing is."""
    verdict = capture["verdict"]
    if verdict is None:
        return f"no verdict ({capture['state']}, {capture['outcome']}: {capture['error']})"
    if capture["processes"] < RANKS:  # in disk sleep a rank has a child
        return f"{capture['processes']} processes captured"
    if verdict["hung"] is not True or verdict["culprit_ranks"] != str(truth.victim):
        return (
            f"verdict: hung {verdict['hung']}, culprits {verdict['culprit_ranks']!r}: {verdict['headline']}"
        )
    return ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a program: Unix seconds, resident bytes, open descriptors."""

    at: float
    rss: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Trend:
    """Resident bytes of a program over the window: the median, and growth over it by the median of all slopes."""

    rss: float
    growth: float

    @property
    def flat(self) -> bool:
        return self.growth <= RSS_BOUND * self.rss


def trend(samples: Sequence[Sample]) -> Trend:
    """The last part of the samples."""
    first, last = samples[0].at, samples[-1].at
    window = [one for one in samples if one.at >= last - WINDOW * (last - first)]
    return Trend(statistics.median(one.rss for one in window), _growth([(one.at, one.rss) for one in window]))


def _growth(points: Sequence[tuple[float, float]]) -> float:
    """Theil and Sen's slope times the length: outliers such as a capture under way do not move it."""
    thin = points[:: max(1, len(points) // 300)]
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for number, earlier in enumerate(thin)
        for later in thin[number + 1 :]
        if later[0] > earlier[0]
    ]
    return statistics.median(slopes) * (points[-1][0] - points[0][0]) if slopes else 0.0
