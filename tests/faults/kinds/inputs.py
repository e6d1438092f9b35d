"""Ranks whose input does not come: main processes that read, DataLoader workers, pipelines of their own."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from multiprocessing.queues import Queue

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from demo import faults
from demo.train import BATCH, FEATURES
from tests.faults.job import Job

FIRST_BAD = 6 * BATCH


class Tokens(Dataset[torch.Tensor]):
    """Samples made up on the spot; from FIRST_BAD on, the workers named are in trouble."""

    def __init__(self, job: Job, workers: set[int | None], trouble: Callable[[], object]) -> None:
        self._strike = job.struck
        self._workers = workers
        self._trouble = trouble

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        if index >= FIRST_BAD and (None if info is None else info.id) in self._workers:
            self._strike()
            self._trouble()
        return torch.randn(FEATURES)


def _from_workers(
    job: Job,
    ranks: set[int],
    workers: set[int | None],
    trouble: Callable[[], object] = faults.read_remote_shard,
    number: int = 2,
) -> None:
    tokens = Tokens(job, workers if job.rank in ranks else set(), trouble)
    prefetch = 2 if number else None
    loader = DataLoader(tokens, batch_size=BATCH, num_workers=number, prefetch_factor=prefetch)
    job.train(batches=iter(loader))


def stuck_worker(job: Job) -> None:
    _from_workers(job, {1}, {0})


def stuck_workers(job: Job) -> None:
    _from_workers(job, {0}, {0, 1})


def stuck_pipeline(job: Job) -> None:
    _from_workers(job, set(range(job.world)), {0, 1})


def stopped_worker(job: Job) -> None:
    _from_workers(job, {3}, {1}, lambda: os.kill(os.getpid(), signal.SIGSTOP))


def uninterruptible_worker(job: Job) -> None:
    _from_workers(job, {2}, {0}, lambda: faults.flush_metrics(2))


def read_fifo(job: Job) -> None:
    path = job.folder / f"shard-{job.rank}.bin"
    os.mkfifo(path)
    _from_workers(job, {2}, {None}, path.read_bytes, number=0)


def dead_server(job: Job) -> None:
    """Every rank asks the same server for its samples."""
    server = SilentServer()
    _from_workers(job, set(range(job.world)), {None}, server.fetch, number=0)


class SilentServer:
    """Listens, and never answers: the kernel accepts on its behalf."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))

    def fetch(self, name: str = "part-00001") -> bytes:
        url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/{name}"
        with urllib.request.urlopen(url) as answer:
            body: bytes = answer.read()
            return body


def http_read(job: Job) -> None:
    job.train(3)
    if job.rank == 2:
        server = SilentServer()
        job.struck()
        server.fetch("reference-model.bin")
    job.train()


def killed_feeder(job: Job) -> None:
    """A process of the job's own feeds it, and is killed, as the kernel does where memory is short."""
    fed: Queue[int] = multiprocessing.get_context("fork").Queue(2)
    feeder = multiprocessing.get_context("fork").Process(target=_feed, args=(fed,), daemon=True)
    feeder.start()
    for _ in range(3):
        fed.get()
        job.train(1)
    if job.rank == 1 and feeder.pid is not None:
        os.kill(feeder.pid, signal.SIGKILL)
        feeder.join()
        job.struck()
    while True:
        fed.get()
        job.train(1)


def _feed(fed: Queue[int]) -> None:
    while True:
        fed.put(1)


def dead_producer(job: Job) -> None:
    """A thread of the job's own prefetches, and died of an error that nobody saw."""
    ready: queue.Queue[torch.Tensor] = queue.Queue(2)
    threading.Thread(target=_produce, args=(job, ready), daemon=True).start()
    job.train(batches=iter(ready.get, None))


def _produce(job: Job, ready: queue.Queue[torch.Tensor]) -> None:
    for index in range(1 << 30):
        if job.rank == 1 and index > 5:
            job.struck()
            return
        ready.put(torch.randn(BATCH, FEATURES))


class Stream(IterableDataset[torch.Tensor]):
    """What rank 0 reads for all, as Accelerate's dispatcher wants it."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(1 << 30):
            if self._job.rank == 0 and index >= FIRST_BAD:
                self._job.struck()
                faults.read_remote_shard()
            yield torch.randn(FEATURES)


def dispatched_batches(job: Job) -> None:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    loader = accelerator.prepare_data_loader(DataLoader(Stream(job), batch_size=BATCH))
    job.train(batches=iter(loader))
