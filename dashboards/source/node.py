"""One node: the training processes on it, and whether the exporter sees all that it should."""

from __future__ import annotations

from source import panels as p
from source.panels import Json, Query

NODE = 'instance="$instance"'


def node() -> Json:
    return p.dashboard(
        "hangscope-node",
        "Node",
        "One node: the training processes on it, its logs, and what the exporter could not read.",
        variables=[
            p.query_variable("instance", "Exporter", "label_values(hangscope_exporter_build_info, instance)"),
            p.SNAPSHOTTER_URL,
        ],
        annotations=[p.alert_annotation(f", {NODE}")],
        panels=[
            p.stat(
                "Exporter",
                "Whether the exporter could be scraped the last time.",
                Query(f"hangscope:exporter_up{{{NODE}}}"),
                mappings=p.mapping({"0": ("down", p.RED), "1": ("up", p.GREEN)}),
            ),
            p.stat(
                "Jobs",
                "Jobs with processes on this node.",
                Query(f"count(count by (job_id) (training_process_info{{{NODE}}})) or vector(0)"),
            ),
            p.stat(
                "Ranks",
                "Trainer processes on this node.",
                Query(f'count(training_process_info{{{NODE}, role="trainer"}}) or vector(0)'),
            ),
            p.stat(
                "Logs",
                "Training logs that are followed on this node.",
                Query(f"count(training_log_info{{{NODE}}}) or vector(0)"),
            ),
            p.stat(
                "I/O wait accounted",
                "Whether the kernel accounts block-I/O delays (sysctl kernel.task_delayacct).",
                Query(f"training_delay_accounting_enabled{{{NODE}}}"),
                mappings=p.mapping({"0": ("no", p.YELLOW), "1": ("yes", p.GREEN)}),
            ),
            p.stat(
                "Unreadable",
                "Processes of which a file in /proc could not be read, for want of a permission mostly.",
                Query(f"max(training_process_unreadable{{{NODE}}}) or vector(0)"),
                thresholds=p.thresholds((None, p.GREEN), (1, p.YELLOW)),
            ),
            p.table(
                "Processes",
                "Every training process on this node.",
                [Query(f"training_process_info{{{NODE}}}")],
                columns={
                    "job_id": "Job",
                    "rank": "Rank",
                    "role": "Role",
                    "local_rank": "Local rank",
                    "gpu": "GPU",
                    "pid": "Pid",
                    "pod": "Pod",
                },
                sort=("Rank", False),
                size=(12, 9),
                overrides=[p.override("job_id", links=[p.link("Dashboard of this job", p.JOB_LINK)])],
            ),
            p.table(
                "Logs",
                "Every training log that is followed on this node, and what its records look like.",
                [Query(f"training_log_info{{{NODE}}}")],
                columns={
                    "job_id": "Job",
                    "log": "Log",
                    "framework": "Framework",
                    "path": "Path",
                },
                sort=("Job", False),
                size=(12, 9),
                overrides=[p.override("job_id", links=[p.link("Newest report of this job", p.REPORT_LINK)])],
            ),
            p.timeseries(
                "Age of logs",
                "Time since each log last showed an iteration.",
                [Query(f"training_log_iteration_age_seconds{{{NODE}}}", "{{job_id}} {{log}}")],
                unit="s",
            ),
            p.timeseries(
                "Longest time in state D",
                "How long the worst process of each rank and role has slept in state D without a break.",
                [
                    Query(
                        f"topk(10, training_process_uninterruptible_longest_seconds{{{NODE}}} > 0)",
                        "{{job_id}} {{role}} of rank {{rank}}",
                    )
                ],
                unit="s",
            ),
            p.timeseries(
                "CPU",
                "Cores that training processes use, by role.",
                [
                    Query(
                        f"sum by (role) (rate(training_process_cpu_seconds_total{{{NODE}}}[$__rate_interval]))",
                        "{{role}}",
                    )
                ],
                unit="short",
            ),
            p.timeseries(
                "I/O wait",
                "Time that training processes waited for block I/O in each second, by role.",
                [
                    Query(
                        f"sum by (role) (rate(training_process_io_wait_seconds_total{{{NODE}}}[$__rate_interval]))",
                        "{{role}}",
                    )
                ],
                unit="percentunit",
            ),
            p.timeseries(
                "Block I/O",
                "Bytes to and from the block layer; network file systems do not count.",
                [
                    Query(
                        f"sum(rate(training_process_read_bytes_total{{{NODE}}}[$__rate_interval]))", "read"
                    ),
                    Query(
                        f"sum(rate(training_process_write_bytes_total{{{NODE}}}[$__rate_interval]))",
                        "written",
                    ),
                ],
                unit="Bps",
            ),
            p.timeseries(
                "Pressure",
                "Share of time in which some or all (full) tasks of this node stalled on a resource.",
                [
                    Query(
                        "max by (resource, stalled)"
                        f" (rate(training_node_pressure_seconds_total{{{NODE}}}[$__rate_interval]))",
                        "{{resource}} {{stalled}}",
                    )
                ],
                unit="percentunit",
            ),
            p.table(
                "Could not be read",
                "Files in /proc that could not be read, for how many processes, and why.",
                [Query(f"training_process_unreadable{{{NODE}}} > 0")],
                columns={"file": "File", "reason": "Reason", "Value": "Processes"},
                size=(12, 7),
            ),
            p.table(
                "Output that cannot be followed",
                "Ranks whose output goes to no file that can be followed. The exporter's landing page says what to do.",
                [Query(f"training_rank_output_unfollowed{{{NODE}}} == 1")],
                columns={"job_id": "Job", "rank": "Rank", "kind": "Goes to"},
                sort=("Rank", False),
                size=(12, 7),
            ),
        ],
    )
