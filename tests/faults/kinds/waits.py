"""Ranks that wait in code of the job's own: locks, events, queues, children, signals, corners of the interpreter."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import multiprocessing
import os
import pdb  # noqa: T100 - one of the faults
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tests.faults.job import Job


def two_threads(job: Job) -> None:
    job.train(3)
    if job.rank == 2:
        job.struck()
        ExpertTable().rebalance()
    job.train()


class ExpertTable:
    """Two locks, taken in one order by the trainer and in the other by its thread."""

    def __init__(self) -> None:
        self._table = threading.Lock()
        self._usage = threading.Lock()
        self._started = threading.Barrier(2)

    def rebalance(self) -> None:
        threading.Thread(target=self._flush_usage, daemon=True).start()
        with self._table:
            self._started.wait()
            with self._usage:
                pass

    def _flush_usage(self) -> None:
        with self._usage:
            self._started.wait()
            with self._table:
                pass


def lost_event(job: Job) -> None:
    job.train(3)
    if job.rank == 3:
        job.struck()
        RouterStats().exchange()
    job.train()


class RouterStats:
    """Its reporter ends without a word when there is nothing to report."""

    def __init__(self) -> None:
        self._done = threading.Event()

    def exchange(self) -> None:
        threading.Thread(target=self._report, args=([],), daemon=True).start()
        self._done.wait()

    def _report(self, rows: list[int]) -> None:
        if rows:
            self._done.set()


def queue_get(job: Job) -> None:
    job.train(3)
    if job.rank == 1:
        job.struck()
        answers: queue.Queue[int] = queue.Queue()
        threading.Thread(target=score, args=({}, answers), daemon=True).start()
        answers.get()
    job.train()


def score(table: dict[str, int], answers: queue.Queue[int]) -> None:
    if "reward" in table:
        answers.put(table["reward"])


def coroutine(job: Job) -> None:
    job.train(3)
    if job.rank == 1:
        job.struck()
        asyncio.run(announce())
    job.train()


async def announce() -> None:
    """Waits for a confirmation that nobody gives."""
    await asyncio.get_running_loop().create_future()


def child_process(job: Job) -> None:
    job.train(3)
    if job.rank == 2:
        job.struck()
        read_topology()
    job.train()


def read_topology() -> str:
    """A tool that does not return, as nvidia-smi with a GPU off the bus."""
    return subprocess.run(["sleep", "3600"], capture_output=True, text=True, check=True).stdout


def signal_handler(job: Job) -> None:
    job.train(3)
    if job.rank == 1:
        signal.signal(signal.SIGUSR1, on_preemption)
        job.struck()
        os.kill(os.getpid(), signal.SIGUSR1)
    job.train()


def on_preemption(number: int, frame: object) -> None:
    """Waits for a scheduler that says when to go on."""
    released = threading.Condition()
    with released:
        released.wait()


def fork_deadlock(job: Job) -> None:
    job.train(3)
    if job.rank == 2:
        job.struck()
        registry = threading.Lock()
        registry.acquire()  # as another thread may hold it at the moment of the fork
        child = multiprocessing.get_context("fork").Process(target=count_parameters, args=(registry,))
        child.start()
        child.join()
    job.train()


def count_parameters(registry: threading.Lock) -> None:
    with registry:
        pass


def full_pipe(job: Job) -> None:
    job.train(3)
    if job.rank == 0:
        _, write = os.pipe()
        logger = logging.getLogger("metrics")
        logger.propagate = False
        logger.addHandler(logging.StreamHandler(os.fdopen(write, "w")))
        job.struck()
        while True:
            logger.warning("loss %s", "0.123456 " * 100)
    job.train()


def breakpoint_left(job: Job) -> None:
    job.train(3)
    if job.rank == 3:
        read, _ = os.pipe()
        sys.stdin = os.fdopen(read)
        job.struck()
        pdb.set_trace()  # noqa: T100 - it is the fault
    job.train()


def finalizer(job: Job) -> None:
    job.train(3)
    if job.rank == 2:
        job.struck()
        buffer = PinnedBuffer()
        del buffer
    job.train()


class PinnedBuffer:
    """Waits, when it is collected, for a copy that has never been started."""

    def __init__(self) -> None:
        self._copied = threading.Event()

    def __del__(self) -> None:
        self._copied.wait()


def exit_join(job: Job) -> None:
    job.train(3)
    if job.rank == 1:
        threading.Thread(target=threading.Event().wait).start()
        job.struck()
        return
    job.train()


def native_pause(job: Job) -> None:
    job.train(3)
    if job.rank == 2:
        job.struck()
        reserve_huge_pages()
    job.train()


def reserve_huge_pages() -> None:
    """A library in C that does not return."""
    ctypes.CDLL(None).pause()


def gradient_hook(job: Job) -> None:
    stalled = threading.Lock()
    stalled.acquire()

    def record_norm(gradient: torch.Tensor) -> torch.Tensor:
        if job.rank == 2 and job.iteration == 4:
            job.struck()
            stalled.acquire()
        return gradient

    next(iter(job.model.parameters())).register_hook(record_norm)
    job.train()


def marker_file(job: Job) -> None:
    job.train(3)
    if job.rank == 3:
        job.struck()
        until_published(job.folder / "vocabulary.ready")
    dist.barrier(job.group)


def until_published(path: Path) -> None:
    """Looks ten times a second for a file that another rank was to write."""
    while not path.exists():
        time.sleep(0.1)


def everyone_polls(job: Job) -> None:
    job.train(3)
    job.struck()
    until_published(job.folder / "vocabulary.ready")


def slow_retries(job: Job) -> None:
    job.train(3)
    if job.rank == 0:
        job.struck()
        register_endpoint()
    dist.barrier(job.group)


def register_endpoint() -> None:
    """A service that refuses, asked again and again."""
    pause = 1.0
    while True:
        asked = subprocess.run(["false"], check=False)
        if asked.returncode == 0:
            return
        time.sleep(pause)
        pause = min(8.0, pause * 2)
