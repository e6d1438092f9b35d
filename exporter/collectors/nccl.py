"""What NCCL RAS said of each job when it was last asked; communicators by name only where they are bad."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from operator import itemgetter

from prometheus_client.metrics_core import Metric

from exporter.families import Family
from exporter.metrics import family, metrics
from exporter.nccl.find import SKIPS
from exporter.nccl.model import Communicator, RasReport
from exporter.nccl.watcher import JobStatus

SHOWN = 20
"""Bad communicators of a job that get series of their own; the rest are counted."""


class NcclCollector:
    """Reads what the watcher published; `latest` gives it."""

    name = "nccl"

    def __init__(self, latest: Callable[[], Iterable[JobStatus]], *, shown: int = SHOWN) -> None:
        self._latest = latest
        self._shown = shown

    def collect(self) -> Iterable[Metric]:
        """The families of all jobs of the node."""
        families = {name: family(f"nccl_ras_{name}") for name in _NAMES}
        for job in self._latest():
            _job(families, job)
            if job.report is not None:
                _report(families, job.job_id, job.report)
                if job.report.tables_trusted:
                    _communicators(families, job, job.report, self._shown)
        return metrics(families.values())


_NAMES = (
    "up",
    "skipped",
    "last_answer_timestamp_seconds",
    "scrape_duration_seconds",
    "scrape_errors_total",
    "info",
    "nodes",
    "processes",
    "gpus",
    "processes_dead",
    "processes_missing",
    "communicators",
    "communicators_unlisted",
    "communicator_missing_ranks",
    "communicator_launch_lag",
    "communicator_stalled_seconds",
)


def _job(families: dict[str, Family], job: JobStatus) -> None:
    for skip in SKIPS:
        families["skipped"].add(job.job_id, skip, value=float(skip == job.skip))
    for reason, count in job.errors:
        families["scrape_errors_total"].add(job.job_id, reason, value=count)
    if job.up is not None:
        families["up"].add(job.job_id, value=float(job.up))
    if job.seconds is not None:
        families["scrape_duration_seconds"].add(job.job_id, value=job.seconds)
    if job.report is not None and job.asked_at is not None:
        families["last_answer_timestamp_seconds"].add(job.job_id, value=job.asked_at)


def _report(families: dict[str, Family], job_id: str, report: RasReport) -> None:
    families["info"].add(
        job_id,
        report.nccl_version or "",
        _cuda(report.cuda_runtime),
        _cuda(report.cuda_driver),
        report.format,
        value=1,
    )
    if report.summary is not None:
        families["nodes"].add(job_id, value=report.summary.nodes)
        families["processes"].add(job_id, value=report.summary.processes)
        families["gpus"].add(job_id, value=report.summary.gpus)
    families["processes_dead"].add(job_id, value=report.dead_count)
    families["processes_missing"].add(job_id, value=report.missing_count)


def _cuda(number: int | None) -> str:
    """`12.9` for 12090; empty where unknown (RAS then says 0 or -1)."""
    return f"{number // 1000}.{number % 1000 // 10}" if number and number > 0 else ""


def _communicators(families: dict[str, Family], job: JobStatus, report: RasReport, shown: int) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for group in report.groups:
        counts[group.status, ",".join(group.errors) or "OK"] += group.communicators
    for (status, error), count in sorted(counts.items()):
        families["communicators"].add(job.job_id, status, error, value=count)

    bad: dict[str, tuple[tuple[object, ...], Communicator]] = {}  # by hash, the worst of each
    for one in report.communicators:
        badness = _badness(one, job)
        if one.hash not in bad or badness > bad[one.hash][0]:
            bad[one.hash] = badness, one
    families["communicators_unlisted"].add(job.job_id, value=max(0, len(bad) - shown))
    for _, one in heapq.nlargest(shown, bad.values(), key=itemgetter(0)):
        families["communicator_missing_ranks"].add(job.job_id, one.hash, value=one.missing)
        for launch in one.launches:
            families["communicator_launch_lag"].add(job.job_id, one.hash, launch.op, value=launch.lag)
        if one.mismatched:
            stalled = job.stalled.get(one.hash, 0.0)
            families["communicator_stalled_seconds"].add(job.job_id, one.hash, value=stalled)


def _badness(one: Communicator, job: JobStatus) -> tuple[bool, int, float, int, str]:
    """What is worst comes first: errors, missing ranks, long stalls, wide lags."""
    lag = max((launch.lag for launch in one.launches), default=0)
    return (bool(one.rank_errors), one.missing, job.stalled.get(one.hash, 0.0), lag, one.hash)
