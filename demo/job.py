"""Starting the demo's training job under torchrun, its output in a file as a scheduler would have it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from standalone import processes
from standalone.chain import ROOT

RANKS = 4


def start(
    scenario: str, *, job_id: str, folder: Path, fault_at: int = 40, iteration_seconds: float = 0.2
) -> subprocess.Popen[bytes]:
    """Start the job; its log is `folder/<job_id>.log`."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={RANKS}",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:0",
        f"--rdzv-id={job_id}",
        "-m",
        "demo.train",
        f"--scenario={scenario}",
        f"--fault-at={fault_at}",
        f"--iteration-seconds={iteration_seconds}",
        f"--folder={folder}",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return processes.start(command, log=folder / f"{job_id}.log", environment=environment, folder=ROOT)
