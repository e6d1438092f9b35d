"""Iterations, ages, limits and phases of the followed logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import Metric

from exporter.logs.model import LogReport, LogState, Phase
from exporter.metrics import family, metrics


class IterationCollector:
    """Reads what the log watcher last published; the age alone is reckoned at the scrape."""

    name = "iteration"

    def __init__(self, latest: Callable[[], LogReport], now: Callable[[], float] = time.time) -> None:
        self._latest = latest
        self._now = now

    def collect(self) -> Iterable[Metric]:
        report = self._latest()
        now = self._now()
        families = {
            name: family(f"training_log_{name}")
            for name in (
                "info",
                "last_iteration",
                "last_iteration_timestamp_seconds",
                "iteration_age_seconds",
                "iterations_total",
                "iteration_interval_seconds",
                "hang_limit_seconds",
                "phase",
                "trouble_records_total",
                "skipped_records_total",
                "reading_failures_total",
                "readable",
            )
        }
        for state in report.logs:
            of = (state.job_id, state.log)
            families["info"].add(*of, state.path, state.framework, value=1.0)
            families["readable"].add(*of, value=float(state.problem is None))
            families["reading_failures_total"].add(*of, value=float(state.failures))
            if not state.opened:
                continue
            if state.last_iteration is not None:
                families["last_iteration"].add(*of, value=float(state.last_iteration))
            if state.last_progress_at is not None:
                families["last_iteration_timestamp_seconds"].add(*of, value=state.last_progress_at)
            families["iteration_age_seconds"].add(*of, value=state.age(now))
            families["iterations_total"].add(*of, value=float(state.iterations))
            _add_intervals(families["iteration_interval_seconds"].add, state)
            families["hang_limit_seconds"].add(*of, value=state.limit.seconds)
            for phase in Phase:
                families["phase"].add(*of, phase.value, value=float(phase is state.phase))
            for kind, count in state.trouble_counts:
                families["trouble_records_total"].add(*of, kind, value=float(count))
            families["skipped_records_total"].add(*of, value=float(state.skipped_records))
        unfollowed = family("training_rank_output_unfollowed")
        for one in report.unfollowed:
            unfollowed.add(one.job_id, str(one.rank), one.kind, value=1.0)
        hanging = family("training_log_searches_hanging")
        hanging.add(value=float(len(report.hanging)))
        failing = family("training_log_searches_failing")
        failing.add(value=float(len(report.failing)))
        return metrics((*families.values(), unfollowed, hanging, failing))


def _add_intervals(add: Callable[..., None], state: LogState) -> None:
    of = (state.job_id, state.log)
    for quantile, seconds in state.intervals.quantiles:
        add(*of, value=seconds, quantile=f"{quantile:g}")
    add(*of, value=state.intervals.total, suffix="_sum")
    add(*of, value=float(state.intervals.count), suffix="_count")
