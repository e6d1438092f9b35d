# ruff: noqa: E501 - a query on one line can be searched for and pasted.
"""All jobs at a glance: who hangs, who is near its limit, what was found."""

from __future__ import annotations

from source import panels as p
from source.panels import Json, Query

AGE_TO_LIMIT = "job_id:training_log_age_to_limit:min"


def fleet() -> Json:
    ratio = p.thresholds((None, p.GREEN), (0.5, p.YELLOW), (1, p.RED))
    none_is_good = p.thresholds((None, p.GREEN), (1, p.RED))
    return p.dashboard(
        "hangscope-fleet",
        "Fleet",
        "Every training job that is watched: its age against its limit, and the verdicts on those that hung.",
        variables=[p.SNAPSHOTTER_URL],
        annotations=[p.alert_annotation("")],
        panels=[
            p.stat(
                "Jobs",
                "Jobs of which a log is followed.",
                Query("count(count by (job_id) (training_log_hang_limit_seconds)) or vector(0)"),
            ),
            p.stat(
                "Hanging",
                "Jobs above their limit, as TrainingHang sees them.",
                Query(
                    'count(max by (job_id) (ALERTS{alertname="TrainingHang", alertstate="firing"})) or vector(0)'
                ),
                thresholds=none_is_good,
            ),
            p.stat(
                "Near the limit",
                "Jobs that have used more than half of the time they may go without an iteration.",
                Query(f"count({AGE_TO_LIMIT} > 0.5 < 1) or vector(0)"),
                thresholds=p.thresholds((None, p.GREEN), (1, p.YELLOW)),
            ),
            p.stat(
                "Ranks",
                "Trainer processes that run.",
                Query('count(count by (job_id, rank) (training_process_info{role="trainer"})) or vector(0)'),
            ),
            p.stat(
                "Ranks missing",
                "Ranks that should run and do not.",
                Query("sum(job_id:training_ranks_missing:sum) or vector(0)"),
                thresholds=none_is_good,
            ),
            p.stat(
                "Nodes not watched",
                "Exporters that cannot be scraped.",
                Query("count(hangscope:exporter_up == 0) or vector(0)"),
                thresholds=p.thresholds((None, p.GREEN), (1, p.YELLOW)),
            ),
            p.table(
                "Jobs",
                "One row a job, the worst first. The job leads to its dashboard, the report to its newest capture.",
                [
                    Query(AGE_TO_LIMIT),
                    Query("job_id:training_log_iteration_age_seconds:min"),
                    Query("max by (job_id) (training_log_last_iteration)"),
                    Query(
                        'count by (job_id) (count by (job_id, rank) (training_process_info{role="trainer"}))'
                    ),
                    Query(
                        "max by (job_id, scope, cause, culprit_ranks, culprit_nodes, report_url) (snapshotter_verdict_info)"
                    ),
                ],
                by="job_id",
                columns={
                    "job_id": "Job",
                    "Value #A": "Age / limit",
                    "Value #B": "Last iteration ago",
                    "Value #C": "Iteration",
                    "Value #D": "Ranks",
                    "scope": "Scope",
                    "cause": "Cause",
                    "culprit_ranks": "Culprit ranks",
                    "culprit_nodes": "Culprit nodes",
                    "report_url": "Report",
                },
                sort=("Age / limit", True),
                size=(24, 11),
                overrides=[
                    p.override("job_id", links=[p.link("Dashboard of this job", p.JOB_LINK)]),
                    p.override(
                        "Value #A",
                        unit="percentunit",
                        thresholds=ratio,
                        custom__cellOptions={"type": "color-background", "mode": "basic"},
                    ),
                    p.override("Value #B", unit="s"),
                    p.override("Value #C", unit="none"),
                    p.override("report_url", links=[p.link("Newest capture of this job", "${__value.raw}")]),
                ],
            ),
            p.table(
                "Alerts",
                "What fires now, the hangs first. Each row leads to the job's newest report.",
                [
                    Query(
                        'max by (alertname, severity, job_id, rank, role) (ALERTS{alertstate="firing", alertname=~"Training.+"})'
                    )
                ],
                columns={
                    "alertname": "Alert",
                    "severity": "Severity",
                    "job_id": "Job",
                    "rank": "Rank",
                    "role": "Role",
                },
                sort=("Severity", False),
                size=(12, 9),
                overrides=[
                    p.override("alertname", links=[p.link("Newest report of this job", p.REPORT_LINK)]),
                    p.override("job_id", links=[p.link("Dashboard of this job", p.JOB_LINK)]),
                ],
            ),
            p.timeseries(
                "Age against the limit",
                "Above 1 a job hangs. A healthy job is a low sawtooth.",
                [Query(AGE_TO_LIMIT, "{{job_id}}")],
                unit="percentunit",
                size=(12, 9),
                thresholds=ratio,
                threshold=True,
            ),
            p.timeline(
                "Hangs",
                "When TrainingHang fired, by job.",
                Query(
                    'max by (job_id) (ALERTS{alertname="TrainingHang", alertstate="firing"})', "{{job_id}}"
                ),
                {"1": ("hanging", p.RED)},
                size=(24, 6),
            ),
            p.timeseries(
                "Iterations a second",
                "Over half an hour, each job's fastest log.",
                [Query("job_id:training_log_iterations:rate30m", "{{job_id}}")],
                unit="ops",
            ),
            p.timeseries(
                "Captures",
                "Captures that ended, by outcome. Complete: a stack of every process.",
                [
                    Query(
                        "sum by (outcome) (increase(snapshotter_captures_total[$__rate_interval]))",
                        "{{outcome}}",
                    )
                ],
                unit="short",
            ),
        ],
    )
