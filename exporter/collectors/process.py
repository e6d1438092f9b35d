"""What the training processes do and wait for, summed per job, rank and role."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import Metric

from exporter.families import Family
from exporter.metrics import family, metrics
from exporter.sampler import Group, ProcessSampler, Snapshot

__all__ = ["ProcessCollector", "ProcessSampler"]

_COUNTERS = {
    "cpu_seconds": "training_process_cpu_seconds_total",
    "io_wait_seconds": "training_process_io_wait_seconds_total",
    "switches": "training_process_context_switches_total",
    "involuntary_switches": "training_process_involuntary_context_switches_total",
    "read_bytes": "training_process_read_bytes_total",
    "write_bytes": "training_process_write_bytes_total",
    "rchar": "training_process_rchar_bytes_total",
    "wchar": "training_process_wchar_bytes_total",
}


class ProcessCollector:
    """Families from the sampler's last snapshot; what could not be read has no sample, and is counted."""

    name = "process"

    def __init__(self, latest: Callable[[], Snapshot]) -> None:
        self._latest = latest

    def collect(self) -> Iterable[Metric]:
        snapshot = self._latest()
        return [*_groups(snapshot.groups), *_facts(snapshot)]


def _groups(groups: Iterable[Group]) -> list[Metric]:
    counters = {name: family(metric) for name, metric in _COUNTERS.items()}
    processes = family("training_processes")
    uninterruptible = family("training_process_uninterruptible_seconds_total")
    stopped = family("training_process_stopped_seconds_total")
    longest_uninterruptible = family("training_process_uninterruptible_longest_seconds")
    longest_stopped = family("training_process_stopped_longest_seconds")
    blocked = family("training_process_blocked_info")
    for one in groups:
        labels = (one.job_id, "" if one.rank is None else str(one.rank), one.role)
        processes.add(*labels, value=one.processes)
        for name, counter in counters.items():
            value = getattr(one.totals, name)
            if value is not None:
                counter.add(*labels, value=value)
        uninterruptible.add(*labels, value=one.uninterruptible_seconds)
        stopped.add(*labels, value=one.stopped_seconds)
        longest_uninterruptible.add(*labels, value=one.uninterruptible_longest)
        longest_stopped.add(*labels, value=one.stopped_longest)
        for wait in one.blocked:
            blocked.add(*labels, wait.state, wait.wchan, value=1.0)
    families: list[Family] = [*counters.values(), uninterruptible, stopped]
    return metrics([processes, *families, longest_uninterruptible, longest_stopped, blocked])


def _facts(snapshot: Snapshot) -> list[Metric]:
    """What belongs to no rank: what could not be read, delay accounting, pressure."""
    unreadable = family("training_process_unreadable")
    for name, reason, count in snapshot.unreadable:
        unreadable.add(name, reason, value=count)
    accounting = family("training_delay_accounting_enabled")
    if snapshot.delay_accounting is not None:
        accounting.add(value=float(snapshot.delay_accounting))
    node = family("training_node_pressure_seconds_total")
    for resource, stalled, pressure in snapshot.node_pressure:
        node.add(resource, stalled, value=pressure.total_seconds)
    job = family("training_job_pressure_seconds_total")
    for job_id, resource, stalled, pressure in snapshot.job_pressure:
        job.add(job_id, resource, stalled, value=pressure.total_seconds)
    return metrics((unreadable, accounting, node, job))
