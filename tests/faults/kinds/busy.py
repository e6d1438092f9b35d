"""Ranks that compute for ever, or do nothing any more."""

from __future__ import annotations

import itertools
import os
import re
import signal
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.elastic.utils.store import barrier as store_barrier

from demo import faults
from tests.faults.job import Job
from tests.faults.signs import Signs


def python_loop(job: Job) -> None:
    job.train(3)
    if job.rank == 1:
        job.struck()
        pack_sequences([3, 5, 7])
    job.train()


def pack_sequences(lengths: list[int]) -> list[int]:
    """Looks for a packing that does not exist."""
    bins = [0]
    while max(bins) < 10:
        for length in lengths:
            bins = [*bins[-8:], (bins[-1] * 31 + length) % 4]
    return bins


def native_loop(job: Job) -> None:
    covariance = torch.ones(16_000 if job.rank == 3 else 1, 16_000)
    product = torch.ones_like(covariance)
    job.train(3)
    if job.rank == 3:
        job.struck()
        whiten(covariance, product)
    job.train()


def whiten(covariance: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
    return torch.mm(covariance, covariance, out=product)


def backtracking(job: Job) -> None:
    job.train(3)
    if job.rank == 0:
        job.struck()
        strip_markup("<" + "a" * 60)
    job.train()


def strip_markup(text: str) -> str:
    return re.sub(r"<(a+)+>", "", text)


def endless_layer(job: Job) -> None:
    job.train(3)
    if job.rank == 2:
        Sinkhorn(job.struck)(torch.eye(2000))
    job.train()


class Sinkhorn(nn.Module):
    """Iterates until it converges, which it does not; `struck` is called when it has all its memory."""

    def __init__(self, struck: Callable[[], None]) -> None:
        super().__init__()
        self._struck = struck

    def forward(self, plan: torch.Tensor) -> torch.Tensor:
        for number in itertools.count():
            moved = torch.mm(plan, plan)
            if (moved - plan).abs().max() < 0:
                break
            plan = moved
            if number == 3:
                self._struck()
        return plan


def stopped_rank(job: Job) -> None:
    job.train(3)
    if job.rank == 3:
        job.struck()
    faults.stop(job.rank)
    job.train()


def killed_rank(job: Job) -> None:
    job.train(3)
    if job.rank == 1:
        job.struck()
        os.kill(os.getpid(), signal.SIGKILL)
    store_barrier(_get_default_store(), job.world, "epoch-1")


def left_early(job: Job) -> None:
    job.train(3)
    if job.rank == 3:
        job.struck()
        return
    store_barrier(_get_default_store(), job.world, "epoch-1")


def never_started(job: Job) -> None:
    raise AssertionError("a rank is missing")


def _about_to_connect(rank: int, signs: Signs) -> None:
    signs.strike(rank)


never_started.before_group = _about_to_connect  # type: ignore[attr-defined]


def late_start(job: Job) -> None:
    raise AssertionError("a rank is missing")


def _ask_for_license(rank: int, signs: Signs) -> None:
    signs.strike(rank)
    if rank == 3:
        faults.read_remote_shard()


late_start.before_group = _ask_for_license  # type: ignore[attr-defined]


def all_in_own_code(job: Job) -> None:
    job.train(3)
    dist.barrier()
    job.struck()
    pack_sequences([3, 5, 7])
