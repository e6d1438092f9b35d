"""Every metric of the exporter: name, type, labels and help, in one table.

Collectors ask `family(name)` for a fresh family and add samples; nothing else makes one. The documentation,
the rules and the dashboards are tested against this table.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from exporter.families import Family, Spec

TABLE: tuple[Spec, ...] = (
    Spec("hangscope_exporter_build_info", "gauge", ("version", "python_version"), "1, with what runs here."),
    Spec(
        "hangscope_exporter_collector_duration_seconds",
        "gauge",
        ("collector",),
        "Time that the collector took in this scrape.",
    ),
    Spec(
        "hangscope_exporter_collector_success",
        "gauge",
        ("collector",),
        "1 where the collector gave all it has in this scrape, 0 where it failed or was too slow.",
    ),
    Spec(
        "hangscope_exporter_reader_last_success_timestamp_seconds",
        "gauge",
        ("reader",),
        "When the background reader last came through (Unix time); what it publishes is as old as that.",
    ),
    Spec(
        "hangscope_exporter_reader_failures_total",
        "counter",
        ("reader",),
        "Polls of the background reader that failed.",
    ),
    Spec(
        "hangscope_exporter_reader_duration_seconds",
        "gauge",
        ("reader",),
        "Time that the reader's last successful poll took.",
    ),
    Spec(
        "hangscope_exporter_config_last_reload_successful",
        "gauge",
        (),
        "1 where the last reading of the configuration succeeded, 0 where the one before stays in force.",
    ),
    Spec(
        "hangscope_exporter_config_last_reload_success_timestamp_seconds",
        "gauge",
        (),
        "When the configuration was last read without error (Unix time).",
    ),
    # Training logs
    Spec(
        "training_log_info",
        "gauge",
        ("job_id", "log", "path", "framework"),
        "1 for each followed log, with its path and the framework that its records look like.",
    ),
    Spec(
        "training_log_last_iteration",
        "gauge",
        ("job_id", "log"),
        "Number in the newest iteration record that shows one.",
    ),
    Spec(
        "training_log_last_iteration_timestamp_seconds",
        "gauge",
        ("job_id", "log"),
        "When the newest record that moved the training on was read (Unix time).",
    ),
    Spec(
        "training_log_iteration_age_seconds",
        "gauge",
        ("job_id", "log"),
        "Time since the training last moved on in this log, or since it was first followed where it never has.",
    ),
    Spec(
        "training_log_iterations_total",
        "counter",
        ("job_id", "log"),
        "Training-iteration records read that moved the training on.",
    ),
    Spec(
        "training_log_iteration_interval_seconds",
        "summary",
        ("job_id", "log"),
        "Time between records that moved the training on; quantiles over the newest 512.",
    ),
    Spec(
        "training_log_hang_limit_seconds",
        "gauge",
        ("job_id", "log"),
        "Age of the last iteration from which on this log counts as hung, in the phase that it is in.",
    ),
    Spec(
        "training_log_phase",
        "gauge",
        ("job_id", "log", "phase"),
        "1 for the phase that the log is in, 0 for all others.",
    ),
    Spec(
        "training_log_trouble_records_total",
        "counter",
        ("job_id", "log", "kind"),
        "Records read that tell of trouble (collective time-out, out of memory, traceback and others).",
    ),
    Spec(
        "training_log_skipped_records_total",
        "counter",
        ("job_id", "log"),
        "Records longer than 1 MiB, which are not looked at.",
    ),
    Spec(
        "training_log_reading_failures_total",
        "counter",
        ("job_id", "log"),
        "Records and reads at which the exporter itself failed; what came behind them was read. A fault to report.",
    ),
    Spec(
        "training_log_readable",
        "gauge",
        ("job_id", "log"),
        "1 where the log could be read the last time, 0 where not; the landing page and the exporter's log say why.",
    ),
    Spec(
        "training_log_searches_hanging",
        "gauge",
        (),
        "Searches for logs (one per configured path, one for all processes) that take longer than 2 s or never come "
        "back; the exporter's log names them.",
    ),
    Spec(
        "training_log_searches_failing",
        "gauge",
        (),
        "Searches for logs that failed the last time; what they found before is still followed. The landing page and "
        "the exporter's log say why.",
    ),
    Spec(
        "training_rank_output_unfollowed",
        "gauge",
        ("job_id", "rank", "kind"),
        "1 for each rank whose output goes to no file that can be followed: a pipe, terminal, socket or nowhere.",
    ),
    # Processes of the training jobs
    Spec(
        "training_process_info",
        "gauge",
        ("job_id", "rank", "local_rank", "role", "node", "pid", "gpu", "pod"),
        "1 for each process of a training job on this node.",
    ),
    Spec(
        "training_processes",
        "gauge",
        ("job_id", "rank", "role"),
        "Live processes of the rank in this role.",
    ),
    Spec(
        "training_ranks_expected",
        "gauge",
        ("job_id",),
        "Ranks of the job that this node should run, as its launchers say; over all nodes, the job's.",
    ),
    Spec(
        "training_ranks_running",
        "gauge",
        ("job_id",),
        "Ranks of the job whose trainer process lives on this node.",
    ),
    Spec(
        "training_rank_conflicts",
        "gauge",
        ("job_id",),
        "Processes that claim a rank of the job which another process has, or a place outside its world.",
    ),
    Spec(
        "training_rank_near_misses",
        "gauge",
        (),
        "Python processes of this node that were nearly taken for ranks; list-ranks gives the reasons.",
    ),
    Spec(
        "training_processes_dropped",
        "gauge",
        (),
        "Processes of training jobs beyond what one node may show in metrics; they have no series.",
    ),
    Spec(
        "training_process_unreadable",
        "gauge",
        ("file", "reason"),
        "Processes of training jobs whose file in /proc could not be read; what comes from it is absent.",
    ),
    Spec(
        "training_process_cpu_seconds_total",
        "counter",
        ("job_id", "rank", "role"),
        "CPU time, user and system, of all threads.",
    ),
    Spec(
        "training_process_context_switches_total",
        "counter",
        ("job_id", "rank", "role"),
        "Context switches of the main threads, voluntary and involuntary.",
    ),
    Spec(
        "training_process_involuntary_context_switches_total",
        "counter",
        ("job_id", "rank", "role"),
        "Context switches of the main threads that the scheduler forced.",
    ),
    Spec(
        "training_process_read_bytes_total",
        "counter",
        ("job_id", "rank", "role"),
        "Bytes fetched from the block layer; network file systems and the page cache do not count.",
    ),
    Spec(
        "training_process_write_bytes_total",
        "counter",
        ("job_id", "rank", "role"),
        "Bytes sent to the block layer; network file systems do not count.",
    ),
    Spec(
        "training_process_rchar_bytes_total",
        "counter",
        ("job_id", "rank", "role"),
        "Bytes that passed read() and its like, from any file system, pipe or socket.",
    ),
    Spec(
        "training_process_wchar_bytes_total",
        "counter",
        ("job_id", "rank", "role"),
        "Bytes that passed write() and its like, to any file system, pipe or socket.",
    ),
    Spec(
        "training_process_io_wait_seconds_total",
        "counter",
        ("job_id", "rank", "role"),
        "Time that threads waited for block I/O; absent where the kernel does not account delays.",
    ),
    Spec(
        "training_process_uninterruptible_seconds_total",
        "counter",
        ("job_id", "rank", "role"),
        "Time in which a thread was in uninterruptible sleep (D), sampled, summed over processes.",
    ),
    Spec(
        "training_process_stopped_seconds_total",
        "counter",
        ("job_id", "rank", "role"),
        "Time in which a signal or debugger kept a process stopped (T), sampled, summed over processes.",
    ),
    Spec(
        "training_process_uninterruptible_longest_seconds",
        "gauge",
        ("job_id", "rank", "role"),
        "How long the worst process of the rank and role has been in uninterruptible sleep; 0: none is.",
    ),
    Spec(
        "training_process_stopped_longest_seconds",
        "gauge",
        ("job_id", "rank", "role"),
        "How long the worst process of the rank and role has been stopped; 0: none is.",
    ),
    Spec(
        "training_process_blocked_info",
        "gauge",
        ("job_id", "rank", "role", "state", "wchan"),
        "1 where a main thread did not run since the last reading: state, kernel function it sleeps in.",
    ),
    Spec(
        "training_delay_accounting_enabled",
        "gauge",
        (),
        "1 where the kernel accounts block-I/O delays (sysctl kernel.task_delayacct), 0 where it does not.",
    ),
    Spec(
        "training_node_pressure_seconds_total",
        "counter",
        ("resource", "stalled"),
        "Time in which some or all (full) tasks of this node stalled on the resource (PSI).",
    ),
    Spec(
        "training_job_pressure_seconds_total",
        "counter",
        ("job_id", "resource", "stalled"),
        "Time in which some or all (full) tasks of the job's worst cgroup stalled on the resource (PSI).",
    ),
    # NCCL RAS, as each job was last asked; one node a job asks.
    Spec(
        "nccl_ras_up",
        "gauge",
        ("job_id",),
        "1 where the job gave a whole answer when last asked, 0 where not; absent: never asked.",
    ),
    Spec(
        "nccl_ras_skipped",
        "gauge",
        ("job_id", "reason"),
        "1 for the reason why the job is not asked now, 0 for all others.",
    ),
    Spec(
        "nccl_ras_last_answer_timestamp_seconds",
        "gauge",
        ("job_id",),
        "Unix time of the answer that the job's other nccl_ras metrics are from.",
    ),
    Spec(
        "nccl_ras_scrape_duration_seconds",
        "gauge",
        ("job_id",),
        "Time that the last question took from connecting to the last byte.",
    ),
    Spec(
        "nccl_ras_scrape_errors_total",
        "counter",
        ("job_id", "reason"),
        "Questions that failed, and answers whose figures were impossible (reason corrupt).",
    ),
    Spec(
        "nccl_ras_info",
        "gauge",
        ("job_id", "nccl_version", "cuda_runtime", "cuda_driver", "format"),
        "1, with the versions that the job's NCCL reports and the form of its answer.",
    ),
    Spec("nccl_ras_nodes", "gauge", ("job_id",), "Nodes of the job, as RAS counts them."),
    Spec(
        "nccl_ras_processes",
        "gauge",
        ("job_id",),
        "Processes of the job that RAS ever saw, dead ones included.",
    ),
    Spec("nccl_ras_gpus", "gauge", ("job_id",), "GPUs of those processes."),
    Spec(
        "nccl_ras_processes_dead",
        "gauge",
        ("job_id",),
        "Processes that RAS considers dead: unreachable for a minute. Dead is final.",
    ),
    Spec(
        "nccl_ras_processes_missing",
        "gauge",
        ("job_id",),
        "Processes that gave no data and are not considered dead yet.",
    ),
    Spec(
        "nccl_ras_communicators",
        "gauge",
        ("job_id", "status", "error"),
        "Communicators by status and errors as RAS writes them: OK, or INCOMPLETE,ERROR,MISMATCH in part.",
    ),
    Spec(
        "nccl_ras_communicators_unlisted",
        "gauge",
        ("job_id",),
        "Bad communicators beyond those that have series of their own.",
    ),
    Spec(
        "nccl_ras_communicator_missing_ranks",
        "gauge",
        ("job_id", "communicator"),
        "Ranks of a bad communicator whose processes gave no data.",
    ),
    Spec(
        "nccl_ras_communicator_launch_lag",
        "gauge",
        ("job_id", "communicator", "op"),
        "Highest minus lowest number of collectives that the ranks of a mismatched communicator launched.",
    ),
    Spec(
        "nccl_ras_communicator_stalled_seconds",
        "gauge",
        ("job_id", "communicator"),
        "How long a mismatch has stood with counters that do not move; 0 where seen once, or moving.",
    ),
)

_BY_NAME: dict[str, Spec] = {spec.name: spec for spec in TABLE}


def family(name: str) -> Family:
    """A fresh, empty family of a metric of the table."""
    return Family(_BY_NAME[name])


def metrics(families: Iterable[Family]) -> list[Metric]:
    """The families that hold a sample; an empty family would only print its help."""
    return [one.metric for one in families if one.metric.samples]
