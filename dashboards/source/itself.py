"""Hangscope itself: does the chain from log to report work?"""

from __future__ import annotations

from source import panels as p
from source.panels import Json, Query


def itself() -> Json:
    down = p.thresholds((None, p.GREEN), (1, p.RED))
    return p.dashboard(
        "hangscope-self",
        "Itself",
        "Does the chain from log to report work? Exporters, captures, notifications.",
        variables=[],
        annotations=[p.alert_annotation("", names="Hangscope.+")],
        panels=[
            p.stat("Exporters up", "Exporters that can be scraped.", Query("sum(hangscope:exporter_up)")),
            p.stat(
                "Exporters down",
                "Exporters that cannot be scraped.",
                Query("count(hangscope:exporter_up == 0) or vector(0)"),
                thresholds=down,
            ),
            p.stat(
                "Snapshotters up",
                "Snapshotters that can be scraped.",
                Query("sum(hangscope:snapshotter_up)"),
                thresholds=p.thresholds((None, p.RED), (1, p.GREEN)),
            ),
            p.stat(
                "Captures waiting",
                "Captures that were asked for and wait.",
                Query("sum(snapshotter_queue_length)"),
            ),
            p.stat(
                "Bundles", "Size of all stored bundles.", Query("max(snapshotter_bundle_bytes)"), unit="bytes"
            ),
            p.stat(
                "Refused configurations",
                "Programs that refused their configuration at the last reload.",
                Query(
                    "count(hangscope_exporter_config_last_reload_successful == 0"
                    " or snapshotter_config_last_reload_successful == 0) or vector(0)"
                ),
                thresholds=down,
            ),
            *p.row(
                "Snapshotter",
                p.timeseries(
                    "Captures",
                    "Captures that ended, and that wait. Complete: a stack of every process; empty: none was found.",
                    [
                        Query(
                            "sum by (trigger, outcome) (increase(snapshotter_captures_total[$__rate_interval]))",
                            "{{trigger}}: {{outcome}}",
                        ),
                        Query("sum by (instance) (snapshotter_queue_length)", "waiting {{instance}}"),
                    ],
                    unit="short",
                ),
                p.timeseries(
                    "Notifications",
                    "Requests of Alertmanager, by what became of them.",
                    [
                        Query(
                            "sum by (result) (increase(snapshotter_notifications_total[$__rate_interval]))",
                            "{{result}}",
                        )
                    ],
                    unit="short",
                ),
                p.timeseries(
                    "Duration of captures",
                    "From the start of a capture to its stored verdict.",
                    [
                        Query(
                            "histogram_quantile(0.5, sum by (le)"
                            " (rate(snapshotter_capture_duration_seconds_bucket[$__rate_interval])))",
                            "median",
                        ),
                        Query(
                            "histogram_quantile(0.99, sum by (le)"
                            " (rate(snapshotter_capture_duration_seconds_bucket[$__rate_interval])))",
                            "99 of 100",
                        ),
                    ],
                    unit="s",
                ),
                p.timeseries(
                    "Pause of captured processes",
                    "How long a process was kept stopped for one of its samples.",
                    [
                        Query(
                            "histogram_quantile(0.99, sum by (le)"
                            " (rate(snapshotter_target_pause_seconds_bucket[$__rate_interval])))",
                            "99 of 100",
                        )
                    ],
                    unit="s",
                ),
                p.timeseries(
                    "Captured processes",
                    "Processes of captures, by what became of each.",
                    [
                        Query(
                            "sum by (outcome) (increase(snapshotter_captured_processes_total[$__rate_interval]))",
                            "{{outcome}}",
                        )
                    ],
                    unit="short",
                ),
                p.timeseries(
                    "Room on disk",
                    "What may still be written where bundles and index are, beside what bundles take and may take.",
                    [
                        Query(
                            "min by (instance, holds) (snapshotter_storage_free_bytes)",
                            "free for {{holds}} {{instance}}",
                        ),
                        Query("max by (instance) (snapshotter_bundle_bytes)", "bundles {{instance}}"),
                        Query("max by (instance) (snapshotter_bundle_limit_bytes)", "size cap {{instance}}"),
                    ],
                    unit="bytes",
                    thresholds=p.thresholds((None, p.RED), (134217728, p.GREEN)),
                    threshold=True,
                ),
            ),
            *p.row(
                "Exporters",
                p.timeseries(
                    "Duration of collectors",
                    "The slowest exporter's, in the last scrape.",
                    [
                        Query(
                            "max by (collector) (hangscope_exporter_collector_duration_seconds)",
                            "{{collector}}",
                        )
                    ],
                    unit="s",
                ),
                p.timeseries(
                    "Collectors that fail",
                    "Exporters on which each collector failed in the last scrape.",
                    [
                        Query(
                            "count by (collector) (hangscope_exporter_collector_success == 0)",
                            "{{collector}}",
                        )
                    ],
                    unit="short",
                ),
                p.timeseries(
                    "Age of what is served",
                    "Time since each background reader last came through, on the worst exporter.",
                    [
                        Query(
                            "max by (reader) (time() - hangscope_exporter_reader_last_success_timestamp_seconds)",
                            "{{reader}}",
                        )
                    ],
                    unit="s",
                    thresholds=p.thresholds((None, p.GREEN), (900, p.YELLOW)),
                    threshold=True,
                ),
                p.timeseries(
                    "Failures of readers",
                    "Polls of background readers that failed, over all exporters.",
                    [
                        Query(
                            "sum by (reader) (increase(hangscope_exporter_reader_failures_total[$__rate_interval]))",
                            "{{reader}}",
                        )
                    ],
                    unit="short",
                ),
                p.timeseries(
                    "NCCL questions that failed",
                    "By reason, over all jobs.",
                    [
                        Query(
                            "sum by (reason) (increase(nccl_ras_scrape_errors_total[$__rate_interval]))",
                            "{{reason}}",
                        )
                    ],
                    unit="short",
                ),
                p.table(
                    "Versions",
                    "What runs where.",
                    [
                        Query("count by (version, python_version) (hangscope_exporter_build_info)"),
                    ],
                    columns={"version": "Exporter", "python_version": "Python", "Value": "Nodes"},
                    size=(12, 8),
                ),
            ),
        ],
    )
