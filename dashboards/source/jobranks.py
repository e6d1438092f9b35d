# ruff: noqa: E501 - a query on one line can be searched for and pasted.
"""The ranks of one job: what each of them does and waits for."""

from __future__ import annotations

from source import panels as p
from source.panels import JOB, Json, Query

RANKS = f'{JOB}, rank=~"$rank"'


def _by_rank(expression: str) -> Query:
    """Summed by rank, in the order of ranks: label values sort as text, so they get leading zeros."""
    padded = f'label_replace({expression}, "row", "0000$1", "rank", "(.+)")'
    return Query(f'sum by (row) (label_replace({padded}, "row", "$1", "row", ".*(.{{5}})"))', "{{row}}")


def ranks() -> list[Json]:
    """Heatmaps and lists of ranks."""
    return p.row(
        "Ranks",
        p.heatmap(
            "I/O wait by rank",
            "Share of time that the trainer and its workers waited for block I/O. Empty where the kernel does not account it.",
            _by_rank(f"rate(training_process_io_wait_seconds_total{{{RANKS}}}[$__rate_interval])"),
            unit="percentunit",
        ),
        p.heatmap(
            "State D by rank",
            "Share of time in uninterruptible sleep, sampled: storage or a driver that does not answer.",
            _by_rank(f"rate(training_process_uninterruptible_seconds_total{{{RANKS}}}[$__rate_interval])"),
            unit="percentunit",
        ),
        p.heatmap(
            "CPU by rank",
            "Cores that the trainer uses. Ranks that wait in a collective usually spin; the one that does not is of interest.",
            _by_rank(
                f'rate(training_process_cpu_seconds_total{{{RANKS}, role="trainer"}}[$__rate_interval])'
            ),
            unit="short",
        ),
        p.timeseries(
            "Longest time in state D",
            "How long the worst process of each rank and role has slept in state D without a break.",
            [
                Query(
                    "topk(10, max by (rank, role)"
                    f" (training_process_uninterruptible_longest_seconds{{{RANKS}}}) > 0)",
                    "{{role}} of rank {{rank}}",
                )
            ],
            unit="s",
            thresholds=p.thresholds((None, p.GREEN), (120, p.YELLOW)),
            threshold=True,
        ),
        p.timeseries(
            "Longest time stopped",
            "How long the worst process of each rank and role has been stopped by a signal or a debugger.",
            [
                Query(
                    f"topk(10, max by (rank, role) (training_process_stopped_longest_seconds{{{RANKS}}}) > 0)",
                    "{{role}} of rank {{rank}}",
                )
            ],
            unit="s",
            thresholds=p.thresholds((None, p.GREEN), (60, p.YELLOW)),
            threshold=True,
        ),
        p.timeseries(
            "Read",
            "Bytes that passed read() and its like, by role, from any file system, pipe or socket.",
            [
                Query(
                    f"sum by (role) (rate(training_process_rchar_bytes_total{{{RANKS}}}[$__rate_interval]))",
                    "{{role}}",
                )
            ],
            unit="Bps",
        ),
        p.timeseries(
            "Written",
            "Bytes that passed write() and its like, by role, to any file system, pipe or socket.",
            [
                Query(
                    f"sum by (role) (rate(training_process_wchar_bytes_total{{{RANKS}}}[$__rate_interval]))",
                    "{{role}}",
                )
            ],
            unit="Bps",
        ),
        p.timeseries(
            "Context switches by rank",
            "Of the trainers' main threads, the ten lowest: a rank that sleeps for good makes none.",
            [
                Query(
                    "bottomk(10, sum by (rank) (rate(training_process_context_switches_total"
                    f'{{{RANKS}, role="trainer"}}[$__rate_interval])))',
                    "rank {{rank}}",
                )
            ],
            unit="ops",
        ),
        p.timeseries(
            "Pressure",
            "Share of time in which some or all (full) tasks of the job's worst cgroup stalled on a resource.",
            [
                Query(
                    "max by (resource, stalled)"
                    f" (rate(training_job_pressure_seconds_total{{{JOB}}}[$__rate_interval]))",
                    "{{resource}} {{stalled}}",
                )
            ],
            unit="percentunit",
        ),
        p.table(
            "Processes",
            "Where each process of the job runs, and what a blocked one sleeps in.",
            [
                Query(
                    f"max by (rank, local_rank, role, node, instance, pid, gpu, pod) (training_process_info{{{RANKS}}})"
                )
            ],
            columns={
                "rank": "Rank",
                "role": "Role",
                "node": "Node",
                "instance": "Exporter",
                "local_rank": "Local rank",
                "gpu": "GPU",
                "pid": "Pid",
                "pod": "Pod",
            },
            sort=("Rank", False),
            size=(12, 9),
            overrides=[p.override("instance", links=[p.link("This node", p.NODE_LINK)])],
        ),
        p.table(
            "Blocked",
            "Main threads that did not run since the last reading: state and kernel function.",
            [Query(f"count by (state, wchan, role, rank) (training_process_blocked_info{{{RANKS}}} == 1)")],
            columns={
                "rank": "Rank",
                "role": "Role",
                "state": "State",
                "wchan": "Kernel function",
                "Value": "Processes",
            },
            sort=("State", False),
            size=(12, 9),
        ),
    )
