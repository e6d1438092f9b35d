"""The communicators of one job, as NCCL's RAS service sees them."""

from __future__ import annotations

from source import panels as p
from source.panels import JOB, Json, Query


def nccl() -> list[Json]:
    """Whether RAS answers, and what it says."""
    return p.row(
        "NCCL",
        p.stat(
            "RAS",
            "Whether the job gave a whole answer when its NCCL was last asked.",
            Query(f"max(nccl_ras_up{{{JOB}}})"),
            mappings=p.mapping({"0": ("no answer", p.YELLOW), "1": ("answers", p.GREEN)}),
        ),
        p.text_stat(
            "NCCL",
            "The version that the job reports.",
            Query(f"max by (nccl_version) (nccl_ras_info{{{JOB}}})", "{{nccl_version}}"),
        ),
        p.text_stat(
            "Not asked because",
            "Why the job's NCCL is not asked now; empty while it is.",
            Query(f"max by (reason) (nccl_ras_skipped{{{JOB}}} == 1)", "{{reason}}"),
            width=8,
        ),
        p.stat(
            "Processes dead",
            "Processes that NCCL holds for dead.",
            Query(f"max(nccl_ras_processes_dead{{{JOB}}})"),
            thresholds=p.thresholds((None, p.GREEN), (1, p.RED)),
        ),
        p.stat(
            "Processes missing",
            "Processes that gave no data and are not held for dead yet.",
            Query(f"max(nccl_ras_processes_missing{{{JOB}}})"),
            thresholds=p.thresholds((None, p.GREEN), (1, p.YELLOW)),
        ),
        p.timeseries(
            "Communicators",
            "By status and errors. MISMATCH comes and goes in a busy healthy job.",
            [
                Query(
                    f"max by (status, error) (nccl_ras_communicators{{{JOB}}})",
                    "{{status}} {{error}}",
                )
            ],
            unit="short",
            size=(8, 8),
        ),
        p.timeseries(
            "Communicators that stand still",
            "How long ranks at different launch counts have launched nothing more.",
            [
                Query(
                    f"max by (communicator) (nccl_ras_communicator_stalled_seconds{{{JOB}}})",
                    "{{communicator}}",
                )
            ],
            unit="s",
            size=(8, 8),
            thresholds=p.thresholds((None, p.GREEN), (120, p.YELLOW)),
            threshold=True,
        ),
        p.timeseries(
            "Launch lag",
            "Highest minus lowest number of launched collectives among the ranks of a communicator.",
            [
                Query(
                    f"max by (communicator, op) (nccl_ras_communicator_launch_lag{{{JOB}}})",
                    "{{communicator}} {{op}}",
                )
            ],
            unit="short",
            size=(8, 8),
        ),
    )
