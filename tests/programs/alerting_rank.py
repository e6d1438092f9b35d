"""A rank without torch: logs iterations as Megatron-LM does, then goes wrong in the way it is told.

`alerting_rank.py FAULT ITERATIONS`; only rank 1 goes wrong, the others of a job that stops wait for ever. The job
that slows goes on at a tenth of its speed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def wait_for_rank_1() -> None:
    while True:
        time.sleep(1)


def sleep_in_the_kernel() -> None:
    """State D: vfork's parent sleeps until the child executes; it opens a FIFO that nobody writes."""
    fifo = Path(f"/tmp/alerting-rank-{os.getpid()}.fifo")
    os.mkfifo(fifo)
    actions = [(os.POSIX_SPAWN_OPEN, 0, str(fifo), os.O_RDONLY, 0)]
    try:
        os.posix_spawn("/bin/true", ["true"], {}, file_actions=actions)
    finally:
        fifo.unlink()


def main() -> None:
    fault, iterations, rank = sys.argv[1], int(sys.argv[2]), int(os.environ["RANK"])
    last = 1_000_000 if fault == "slows" else iterations
    for iteration in range(1, last + 1):
        if rank == 0:
            print(
                f" iteration {iteration:8d}/ 1000000 | elapsed time per iteration (ms): 300.0 |", flush=True
            )
        time.sleep(0.3 if iteration <= iterations else 3.0)
    if rank == 1 and fault == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == 1 and fault == "sleeps":
        sleep_in_the_kernel()
    wait_for_rank_1()


if __name__ == "__main__":
    main()
