"""Look-alikes: no iteration is logged, and the job is well."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from demo import faults
from demo.train import BATCH, FEATURES
from tests.faults.job import Job
from tests.faults.signs import Signs


def slow_checkpoint(job: Job) -> None:
    job.train(3)
    if job.rank == 0:
        job.struck()
    faults.save_checkpoint(job.rank, job.iteration, job.folder)
    job.train()


def long_evaluation(job: Job) -> None:
    job.train(3)
    job.struck()
    evaluate(job.model)


def evaluate(model: nn.Module) -> float:
    """Goes through a validation set without a word."""
    total = 0.0
    with torch.no_grad():
        for _ in range(1_000_000):
            inputs = torch.randn(4096, FEATURES)
            total += float(model(inputs).square().mean())
    return total


def evaluation_on_one(job: Job) -> None:
    job.train(3)
    if job.rank == 0:
        job.struck()
        evaluate(nn.Sequential(nn.Linear(FEATURES, 1024), nn.ReLU(), nn.Linear(1024, 1)))
    dist.barrier()


def first_compile(job: Job) -> None:
    job.train(1)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(job.folder / f"cache-{job.rank}")
    import torch._inductor.compile_fx

    dist.barrier()
    job.struck()

    def block(x: torch.Tensor) -> torch.Tensor:
        for number in range(400):
            x = torch.softmax(x.sin() + x.roll(number), -1).cos() @ x.relu()
        return x

    torch.compile(block)(torch.randn(16, 16))
    dist.barrier()


def log_elsewhere(job: Job) -> None:
    job.train(3)
    job.struck()
    job.quiet = True
    job.train()


def straggler(job: Job) -> None:
    job.train(2)
    job.quiet = True
    if job.rank == 2:
        job.struck()
        job.pace = 0.6
    job.train()


def preprocessing(job: Job) -> None:
    job.train(1)
    if job.rank == 0:
        job.struck()
        build_vocabulary(10_000_000)
    dist.barrier()


def build_vocabulary(documents: int) -> Counter[str]:
    words: Counter[str] = Counter()
    for number in range(documents):
        text = " ".join(str(number * factor) for factor in range(300))
        words.update(re.findall(r"\d+", text))
    return words


def slow_iterations(job: Job) -> None:
    """Iterations of many seconds, as of a large model."""
    deep = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(64)))
    job.struck()
    for iteration in range(1000):
        job.signs.beat(job.rank, iteration)
        loss = deep(torch.randn(512, 1024)).mean()
        loss.backward()
        dist.all_reduce(loss.detach(), group=job.group)


def accumulation(job: Job) -> None:
    """Hundreds of micro-batches without a collective and without a line."""
    job.train(1)
    deep = nn.Sequential(*(nn.Linear(512, 512) for _ in range(16)))
    job.struck()
    for _ in range(1_000_000):
        deep(torch.randn(64, 512)).mean().backward()


def download(job: Job) -> None:
    """Rank 0 fetches data for all, slowly."""
    job.train(1)
    if job.rank == 0:
        here, there = socket.socketpair()
        threading.Thread(target=_serve, args=(there,), daemon=True).start()
        job.struck()
        fetch_archive(here, job.folder / "archive.tar")
    dist.barrier()


def child_download(job: Job) -> None:
    job.train(1)
    if job.rank == 0:
        job.struck()
        mirror_bucket()
    dist.barrier()


def mirror_bucket() -> None:
    subprocess.run(["dd", "if=/dev/zero", "of=/dev/null", "bs=64k"], check=True)


def _serve(there: socket.socket) -> None:
    while True:
        there.sendall(bytes(1 << 20))
        time.sleep(0.2)


def fetch_archive(here: socket.socket, path: Path) -> None:
    with path.open("wb") as file:
        while data := here.recv(1 << 16):
            file.seek(0)  # the disk must not fill
            file.write(data)


class Images(Dataset[torch.Tensor]):
    """A worker takes its time over each sample."""

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        image = torch.rand(400, 400)
        for _ in range(40):
            image = torch.softmax(image @ image, -1)
        return image[0, :FEATURES]


def slow_workers(job: Job) -> None:
    loader = iter(DataLoader(Images(), batch_size=BATCH, num_workers=2, prefetch_factor=1))
    job.struck()
    job.train(batches=loader)


def last_export(job: Job) -> None:
    """Three ranks are done and gone; rank 0 still writes."""
    job.train(3)
    if job.rank == 0:
        while len(job.signs.struck()) < job.world - 1:
            time.sleep(0.05)
        job.struck()
        faults.save_checkpoint(0, job.iteration, job.folder)
        return
    dist.destroy_process_group()
    job.struck()


def pipeline(job: Job) -> None:
    """Four stages that pass micro-batches on, each waiting for its neighbours most of the time."""
    layer = nn.Linear(512, 512)
    job.struck()
    for micro_batch in range(1_000_000):
        job.signs.beat(job.rank, micro_batch)
        inputs = torch.randn(64, 512)
        if job.rank > 0:
            dist.recv(inputs, src=job.rank - 1)
        output = layer(inputs).detach()
        time.sleep(0.02)
        if job.rank + 1 < job.world:
            dist.send(output, dst=job.rank + 1)


def loading(job: Job) -> None:
    raise AssertionError("it loads for ever")


def _build_index(rank: int, signs: Signs) -> None:
    signs.strike(rank)
    build_vocabulary(10_000_000)


loading.before_group = _build_index  # type: ignore[attr-defined]
