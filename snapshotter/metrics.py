"""Every metric of the service in one table, the counts behind them, and the collector that serves them.

Families are built fresh at each scrape, from memory alone: what the index knows is published by `tasks`.
"""

from __future__ import annotations

import platform
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.families import Family, Spec
from snapshotter import __version__
from snapshotter.bundle.index import CaptureRecord
from snapshotter.bundle.room import Room
from snapshotter.gathered import Gathered

TABLE: tuple[Spec, ...] = (
    Spec("snapshotter_build_info", "gauge", ("version", "python_version"), "1, with what runs here."),
    Spec(
        "snapshotter_captures_total",
        "counter",
        ("trigger", "outcome"),
        "Captures that ended: complete (a stack of every process), partial, empty (no process), failed.",
    ),
    Spec(
        "snapshotter_capture_duration_seconds",
        "histogram",
        (),
        "From the start of a capture to its stored verdict.",
    ),
    Spec(
        "snapshotter_captured_processes_total",
        "counter",
        ("outcome",),
        "Processes of captures, by what became of each.",
    ),
    Spec(
        "snapshotter_target_pause_seconds",
        "histogram",
        (),
        "How long a process was kept stopped for one of its samples.",
    ),
    Spec(
        "snapshotter_notifications_total",
        "counter",
        ("result",),
        "Webhook requests by answer: accepted (stored), nothing_to_do, or why they were refused.",
    ),
    Spec("snapshotter_queue_length", "gauge", (), "Captures that were asked for and wait."),
    Spec("snapshotter_bundle_bytes", "gauge", (), "Size of all stored bundles."),
    Spec(
        "snapshotter_bundle_limit_bytes",
        "gauge",
        (),
        "storage.max_size: the oldest bundles that are not pinned go when all together are larger.",
    ),
    Spec(
        "snapshotter_storage_free_bytes",
        "gauge",
        ("holds",),
        "Room on the file system that holds bundles or index; absent where an object store or a server holds them.",
    ),
    Spec(
        "snapshotter_storage_size_bytes",
        "gauge",
        ("holds",),
        "Size of the file system that holds bundles or index.",
    ),
    Spec("snapshotter_config_last_reload_successful", "gauge", (), "0 where the last reload was refused."),
    Spec(
        "snapshotter_index_up",
        "gauge",
        (),
        "1 where the index of captures could be read in the last seconds.",
    ),
    Spec(
        "snapshotter_verdict_info",
        "gauge",
        (
            "job_id",
            "capture_id",
            "scope",
            "cause",
            "culprit_ranks",
            "culprit_nodes",
            "report_url",
        ),
        "1, with the newest verdict of the job.",
    ),
    Spec(
        "snapshotter_verdict_headline_info",
        "gauge",
        ("job_id", "capture_id", "headline"),
        "1, with the newest verdict of the job in one sentence, cut after 300 characters.",
    ),
    Spec(
        "snapshotter_verdict_timestamp_seconds",
        "gauge",
        ("job_id",),
        "When the capture behind the job's newest verdict ended.",
    ),
)
_BY_NAME = {spec.name: spec for spec in TABLE}

TRIGGERS = ("alert", "manual", "schedule")
OUTCOMES = ("complete", "partial", "empty", "failed")
PROCESS_OUTCOMES = (
    "ok",
    "timeout",
    "gone",
    "denied",
    "not_python",
    "uninterruptible",
    "error",
    "unreachable",
)
RESULTS = ("accepted", "nothing_to_do", "malformed", "unauthorized", "too_large", "cannot_store")
_DURATIONS = (0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0)
_MEASURE_LASTS = 120.0  # seconds: a file system that hangs has no known room
_HEADLINE_CHARACTERS = 300
_PAUSES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class Published:
    """What the index said when it was last read."""

    index_up: bool = False
    queue_length: int = 0
    bundle_bytes: int = 0
    bundle_limit_bytes: int = 0
    verdicts: tuple[CaptureRecord, ...] = ()  # the newest of each job that has a verdict


@dataclass(frozen=True, slots=True)
class Measured:
    """The room on file systems, by what they hold, and when it was looked at (Unix seconds)."""

    at: float = 0.0
    rooms: Mapping[str, Room] = field(default_factory=dict)


class Histogram:
    """Observations since the start, in fixed buckets. Guarded by its owner's lock."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, name: str) -> HistogramMetricFamily:
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
        return HistogramMetricFamily(name, _BY_NAME[name].help, buckets=buckets, sum_value=self._sum)


class Metrics:
    """Counts since the start, and a registry that serves them. Safe for many threads."""

    def __init__(self, external_url: Callable[[], str], *, now: Callable[[], float] = time.time) -> None:
        """`external_url` is the address under which people reach the pages, without a final slash."""
        self._external_url = external_url
        self._now = now
        self._lock = threading.Lock()
        self._captures: Counter[tuple[str, str]] = Counter()
        self._processes: Counter[str] = Counter()
        self._notifications: Counter[str] = Counter()
        self._durations = Histogram(_DURATIONS)
        self._pauses = Histogram(_PAUSES)
        self.published = Published()
        self.measured = Measured()
        self.reload_successful = True
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def count_notification(self, result: str) -> None:
        with self._lock:
            self._notifications[result] += 1

    def count_capture(self, trigger: str, outcome: str, seconds: float) -> None:
        with self._lock:
            self._captures[trigger, outcome] += 1
            self._durations.observe(seconds)

    def count_answers(self, gathered: Iterable[Gathered]) -> None:
        """Count processes and pauses of a capture; a node that did not answer counts as one unreachable."""
        with self._lock:
            for one in gathered:
                if one.answer.outcome == "unreachable":
                    self._processes["unreachable"] += 1
                for process in one.processes:
                    self._processes[process.outcome] += 1
                    for seconds in process.pauses:
                        self._pauses.observe(seconds)

    def describe(self) -> list[Metric]:
        return []  # so that registering does not scrape

    def collect(self) -> Iterator[Metric]:
        yield _family("snapshotter_build_info", [((__version__, platform.python_version()), 1.0)])
        with self._lock:
            captures = [((t, o), float(self._captures[t, o])) for t in TRIGGERS for o in OUTCOMES]
            processes = [((one,), float(self._processes[one])) for one in PROCESS_OUTCOMES]
            notifications = [((one,), float(self._notifications[one])) for one in RESULTS]
            histograms = [
                self._durations.family("snapshotter_capture_duration_seconds"),
                self._pauses.family("snapshotter_target_pause_seconds"),
            ]
        yield _family("snapshotter_captures_total", captures)
        yield _family("snapshotter_captured_processes_total", processes)
        yield _family("snapshotter_notifications_total", notifications)
        yield from histograms
        yield _family("snapshotter_config_last_reload_successful", [((), float(self.reload_successful))])
        published = self.published
        yield _family("snapshotter_index_up", [((), float(published.index_up))])
        if published.index_up:
            yield _family("snapshotter_queue_length", [((), float(published.queue_length))])
            yield _family("snapshotter_bundle_bytes", [((), float(published.bundle_bytes))])
            yield _family("snapshotter_bundle_limit_bytes", [((), float(published.bundle_limit_bytes))])
        yield from self._rooms(self.measured)
        yield from self._verdicts(published.verdicts)

    def _rooms(self, measured: Measured) -> Iterator[Metric]:
        if not measured.rooms or self._now() - measured.at > _MEASURE_LASTS:
            return
        rooms = sorted(measured.rooms.items())
        free = [((holds,), float(room.free_bytes)) for holds, room in rooms]
        yield _family("snapshotter_storage_free_bytes", free)
        size = [((holds,), float(room.size_bytes)) for holds, room in rooms]
        yield _family("snapshotter_storage_size_bytes", size)

    def _verdicts(self, records: tuple[CaptureRecord, ...]) -> Iterator[Metric]:
        infos: list[tuple[tuple[str, ...], float]] = []
        headlines: list[tuple[tuple[str, ...], float]] = []
        times: list[tuple[tuple[str, ...], float]] = []
        base = self._external_url()
        for record in records:
            if record.verdict is None or record.finished_at is None:
                continue
            labels = (
                record.job_id,
                record.capture_id,
                record.verdict.scope,
                record.verdict.cause,
                record.verdict.culprit_ranks,
                ",".join(record.verdict.culprit_nodes),
                report_url(base, record.capture_id),
            )
            infos.append((labels, 1.0))
            headlines.append(((record.job_id, record.capture_id, _cut(record.verdict.headline)), 1.0))
            times.append(((record.job_id,), record.finished_at))
        if infos:
            yield _family("snapshotter_verdict_info", infos)
            yield _family("snapshotter_verdict_headline_info", headlines)
            yield _family("snapshotter_verdict_timestamp_seconds", times)


def _cut(text: str) -> str:
    """On one line, and not longer than a label should be."""
    line = " ".join(text.split())
    return line if len(line) <= _HEADLINE_CHARACTERS else f"{line[: _HEADLINE_CHARACTERS - 1]}…"


def report_url(base: str, capture_id: str) -> str:
    return f"{base}/captures/{quote(capture_id, safe='')}"


def _family(name: str, samples: Sequence[tuple[tuple[str, ...], float]]) -> Metric:
    family = Family(_BY_NAME[name])
    for labels, value in samples:
        family.add(*labels, value=value)
    return family.metric
