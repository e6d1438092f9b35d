# ruff: noqa: E501 - a query on one line can be searched for and pasted.
"""One job: does it iterate, and if not, which ranks differ."""

from __future__ import annotations

from source import panels as p
from source.jobnccl import nccl
from source.jobranks import ranks
from source.panels import JOB, Json, Query

PHASES = {
    "1": ("starting", p.BLUE),
    "2": ("training", p.GREEN),
    "3": ("evaluating", "purple"),
    "4": ("checkpointing", "super-light-blue"),
    "5": ("compiling", "orange"),
    "6": ("finished", p.GREY),
}
PHASE_NUMBER = " or ".join(
    f'{number} * max by (log) (training_log_phase{{{JOB}, phase="{phase}"}} == 1)'
    for number, (phase, _) in PHASES.items()
)


def job() -> Json:
    ratio = p.thresholds((None, p.GREEN), (0.5, p.YELLOW), (1, p.RED))
    return p.dashboard(
        "hangscope-job",
        "Job",
        "One training job: iterations against the limit, and what each rank waits for.",
        variables=[
            p.query_variable("job_id", "Job", "label_values(training_log_hang_limit_seconds, job_id)"),
            p.query_variable(
                "rank", "Rank", f"label_values(training_process_info{{{JOB}}}, rank)", multi=True
            ),
            p.SNAPSHOTTER_URL,
        ],
        annotations=[
            p.alert_annotation(f", {JOB}"),
            p.capture_annotation(JOB),
        ],
        panels=[
            p.stat(
                "Age / limit",
                "Age of the freshest log over its limit. Above 1 the job hangs.",
                Query(f"job_id:training_log_age_to_limit:min{{{JOB}}}"),
                unit="percentunit",
                thresholds=ratio,
            ),
            p.stat(
                "Last iteration ago",
                "Since an iteration was last logged, on any node.",
                Query(f"job_id:training_log_iteration_age_seconds:min{{{JOB}}}"),
                unit="s",
            ),
            p.stat(
                "Iteration",
                "Number in the newest iteration record.",
                Query(f"max(training_log_last_iteration{{{JOB}}})"),
                unit="none",
            ),
            p.text_stat(
                "Phase",
                "What the freshest log shows the job to be doing.",
                Query(
                    f"max by (phase) (training_log_phase{{{JOB}}} == 1 and on (log, instance)"
                    f" bottomk(1, training_log_iteration_age_seconds{{{JOB}}}))",
                    "{{phase}}",
                ),
            ),
            p.stat(
                "Ranks",
                "Trainer processes of the job that run.",
                Query(f'count(count by (rank) (training_process_info{{{JOB}, role="trainer"}}))'),
            ),
            p.stat(
                "Ranks missing",
                "Ranks that should run and do not.",
                Query(f"job_id:training_ranks_missing:sum{{{JOB}}}"),
                thresholds=p.thresholds((None, p.GREEN), (1, p.RED)),
            ),
            p.table(
                "Verdict",
                "The newest capture of this job. The report has evidence, stacks and flame graph.",
                [
                    Query(
                        "max by (headline, capture_id, scope, cause, culprit_ranks, culprit_nodes, report_url)"
                        f" (snapshotter_verdict_info{{{JOB}}} * on (job_id, capture_id, instance, job)"
                        f" group_left (headline) snapshotter_verdict_headline_info{{{JOB}}})"
                    )
                ],
                columns={
                    "headline": "Verdict",
                    "scope": "Scope",
                    "cause": "Cause",
                    "culprit_ranks": "Culprit ranks",
                    "culprit_nodes": "Culprit nodes",
                    "capture_id": "Capture",
                    "report_url": "Report",
                },
                size=(24, 4),
                overrides=[
                    p.override(
                        "capture_id", links=[p.link("This capture", "${__data.fields.report_url:raw}")]
                    ),
                    p.override("report_url", links=[p.link("This capture", "${__value.raw}")]),
                ],
            ),
            *_iterations(),
            *ranks(),
            *nccl(),
        ],
    )


def _iterations() -> list[Json]:
    """What the logs say."""
    return p.row(
        "Iterations",
        p.timeseries(
            "Age and limit",
            "Each log's time since its last iteration, and the age from which on it counts as hung. The limit changes with the phase.",
            [
                Query(f"max by (log) (training_log_iteration_age_seconds{{{JOB}}})", "age {{log}}"),
                Query(f"max by (log) (training_log_hang_limit_seconds{{{JOB}}})", "limit {{log}}"),
            ],
            unit="s",
            overrides=[
                {
                    "matcher": {"id": "byRegexp", "options": "/^limit /"},
                    "properties": [
                        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [10, 10]}},
                        {"id": "color", "value": {"mode": "fixed", "fixedColor": p.RED}},
                    ],
                }
            ],
        ),
        p.timeseries(
            "Interval between iterations",
            "Over the newest 512 records of each log: median, nine of ten, and nearly all.",
            [
                Query(
                    f"max by (quantile) (training_log_iteration_interval_seconds{{{JOB}}})",
                    "quantile {{quantile}}",
                )
            ],
            unit="s",
        ),
        p.timeseries(
            "Iterations a second",
            "Records that moved the training on, of the job's fastest log.",
            [
                Query(f"max(rate(training_log_iterations_total{{{JOB}}}[$__rate_interval]))", "now"),
                Query(f"job_id:training_log_iterations:rate30m{{{JOB}}}", "over half an hour"),
            ],
            unit="ops",
        ),
        p.timeseries(
            "Iteration",
            "Number in the newest record of each log. A step down is a restart from a checkpoint or a new epoch.",
            [Query(f"max by (log) (training_log_last_iteration{{{JOB}}})", "{{log}}")],
            unit="none",
        ),
        p.timeline(
            "Phase",
            "What each log shows the job to be doing.",
            Query(PHASE_NUMBER, "{{log}}"),
            PHASES,
            size=(12, 6),
        ),
        p.timeline(
            "Signals",
            "Signs of a hang from processes, logs and NCCL. Each is weak by itself.",
            Query(f"max by (signal) (job_id:training_hang_signal:bool{{{JOB}}})", "{{signal}}"),
            {"0": ("no", p.GREEN), "1": ("yes", p.RED)},
            size=(12, 6),
        ),
        p.timeseries(
            "Trouble in the logs",
            "Records of collective time-outs, memory that ran out, exceptions and the like, by kind.",
            [
                Query(
                    f"sum by (kind) (increase(training_log_trouble_records_total{{{JOB}}}[$__rate_interval]))",
                    "{{kind}}",
                )
            ],
            unit="short",
            size=(24, 6),
        ),
    )
