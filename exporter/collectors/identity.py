"""Which processes belong to which job and rank, and whether all the ranks that should be here are."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import Metric

from exporter.metrics import family, metrics
from exporter.ranks import Scan


class IdentityCollector:
    """Families from the last scan of the node."""

    name = "identity"

    def __init__(self, latest: Callable[[], Scan]) -> None:
        self._latest = latest

    def collect(self) -> Iterable[Metric]:
        scan = self._latest()
        info = family("training_process_info")
        for one in scan.processes:
            info.add(
                one.job_id,
                _label(one.rank),
                _label(one.local_rank),
                one.role,
                scan.node,
                str(one.id.pid),
                one.gpu or "",
                one.pod or "",
                value=1.0,
            )
        expected = family("training_ranks_expected")
        running = family("training_ranks_running")
        conflicts = family("training_rank_conflicts")
        for job in scan.jobs:
            expected.add(job.job_id, value=job.expected)
            running.add(job.job_id, value=job.running)
            conflicts.add(job.job_id, value=job.conflicts)
        misses = family("training_rank_near_misses")
        misses.add(value=len(scan.near_misses))
        dropped = family("training_processes_dropped")
        dropped.add(value=scan.dropped)
        return metrics((info, expected, running, conflicts, misses, dropped))


def _label(number: int | None) -> str:
    return "" if number is None else str(number)
