"""How the demo job goes wrong: each fault is a place where one rank, or all, stop for real."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

CHECKPOINT_SECONDS = 20.0


def assign_experts(rank: int) -> None:
    """Rank 2 takes a lock that is never released: stuck in user code."""
    if rank == 2:
        expert_lock = threading.Lock()
        expert_lock.acquire()
        expert_lock.acquire()


def read_remote_shard() -> bytes:
    """Wait for a storage server that never answers."""
    here, _there = socket.socketpair()
    return here.recv(1 << 20)


def stop(rank: int) -> None:
    """Rank 3 is stopped as by a debugger or a job scheduler."""
    if rank == 3:
        os.kill(os.getpid(), signal.SIGSTOP)


def flush_metrics(rank: int) -> None:
    """Rank 2 enters uninterruptible sleep.

    vfork's parent sleeps in state D until the child executes, and the child waits to open a FIFO that nobody
    writes: a real D state that needs neither root nor a broken disk.
    """
    if rank == 2:
        fifo = Path(tempfile.mkdtemp(prefix="hangscope-demo-")) / "fifo"
        os.mkfifo(fifo)
        opened = [(os.POSIX_SPAWN_OPEN, 0, str(fifo), os.O_RDONLY, 0)]
        os.posix_spawn("/bin/true", ["true"], {}, file_actions=opened)


def synchronize_metrics(rank: int) -> None:
    """Rank 1 waits for a broadcast that no other rank sends: a collective mismatch."""
    if rank == 1:
        dist.broadcast(torch.zeros(1), src=0)


def save_checkpoint(rank: int, iteration: int, folder: Path) -> None:
    """Rank 0 writes a checkpoint slowly, the others wait for it: slow, but no hang."""
    if rank == 0:
        print(f"saving checkpoint at iteration {iteration:7d} to {folder}", flush=True)
        _write_shards(folder / f"iter_{iteration:07d}.pt")
        print(f"  successfully saved checkpoint at iteration {iteration:7d} to {folder}", flush=True)
    dist.barrier()


def _write_shards(path: Path) -> None:
    deadline = time.monotonic() + CHECKPOINT_SECONDS
    block = os.urandom(1 << 20)
    with path.open("wb") as file:
        while time.monotonic() < deadline:
            file.seek(0)  # the demo must not fill the disk
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.05)
