"""Ranks stuck in files and storage: disk sleep, checkpoints, file locks, compilers that wait for one."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.utils.file_baton import FileBaton

from demo import faults
from tests.faults.job import Job


def uninterruptible(job: Job) -> None:
    job.train(3)
    if job.rank == 2:
        job.struck()
    faults.flush_metrics(job.rank)
    job.train()


def stuck_save(job: Job) -> None:
    job.train(3)
    if job.rank == 0:
        path = job.folder / "weights.pt"
        os.mkfifo(path)
        job.struck()
        torch.save(job.model.state_dict(), path)
    dist.barrier()


def stuck_shard(job: Job) -> None:
    """Every rank writes its part of a distributed checkpoint; that of rank 2 never gets to the disk."""
    job.train(3)
    folder = job.folder / "iter_0000003"
    if job.rank == 2:
        folder.mkdir()
        os.mkfifo(folder / "__2_0.distcp")
        job.struck()
    dist.barrier()
    parts = {f"part.{job.rank}": torch.zeros(1000)}
    dcp.save(parts, storage_writer=dcp.FileSystemWriter(folder, overwrite=True), process_group=job.group)


def background_save(job: Job) -> None:
    job.train(3)
    if job.rank == 1:
        path = job.folder / "optimizer.pt"
        os.mkfifo(path)
        job.struck()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(torch.save, job.optimizer.state_dict(), path).result()
    dist.barrier(job.group)


_HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(3600)
"""


def _hold(path: Path) -> None:
    """Have another process lock a file, as one left over from an earlier run."""
    holder = subprocess.Popen([sys.executable, "-c", _HOLD, path], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()


def enter_cache(path: Path) -> None:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def cache_in_use(job: Job) -> None:
    job.train(3)
    if job.rank == 2:
        _hold(job.folder / "cache.lock")
        job.struck()
        enter_cache(job.folder / "cache.lock")
    job.train()


def everyone_locks(job: Job) -> None:
    job.train(3)
    if job.rank == 0:
        _hold(job.folder / "cache.lock")
    dist.barrier()
    job.struck()
    enter_cache(job.folder / "cache.lock")


def stale_baton(job: Job) -> None:
    """The lock of torch's extension builder, left over from a build that was killed."""
    job.train(3)
    if job.rank == 1:
        lock = job.folder / "lock"
        lock.touch()
        job.struck()
        FileBaton(str(lock)).wait()
    dist.barrier()


def stuck_compiler(job: Job) -> None:
    """torch.compile's C++ compiler never returns."""
    job.train(3)
    if job.rank == 0:
        compiler = job.folder / "g++"
        compiler.write_text(
            '#!/bin/sh\ncase "$*" in *--version*) exec g++ --version;; esac\n'
            f"touch {job.folder}/struck-0\nexec sleep 3600\n"
        )
        compiler.chmod(0o755)
        import torch._inductor.config as inductor

        inductor.cpp.cxx = (str(compiler),)  # type: ignore[assignment]
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(job.folder / "cache")
        torch.compile(lambda x: (x.sin() + x.cos()).relu())(torch.randn(64, 64))
    dist.barrier()
