"""Ranks that call for others who do not come: mismatched collectives, missing messages, groups out of order."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from demo import faults
from tests.faults.job import Job


def collective_mismatch(job: Job) -> None:
    job.train(3)
    if job.rank == 1:
        job.struck()
    faults.synchronize_metrics(job.rank)
    job.train()


def gather_mismatch(job: Job) -> None:
    job.train(3)
    if job.rank == 2:
        job.struck()
        dist.all_gather([torch.zeros(1) for _ in range(job.world)], torch.ones(1), group=job.group)
    dist.all_reduce(torch.ones(1))


def conditional_collective(job: Job) -> None:
    """Only the rank that sees an overflow tells the others about it, who do not listen."""
    job.train(3)
    if job.rank == 2:
        job.struck()
        share_overflow(job)
    job.train()


def share_overflow(job: Job) -> None:
    dist.all_reduce(torch.ones(1), group=job.group)


def skipped_batch(job: Job) -> None:
    """A rank leaves out the backward of a batch whose loss is not finite."""
    job.train(3)
    loss = job.model(next(job.batches())).square().mean()
    if job.rank == 1:
        job.struck()
    else:
        loss.backward()
    dist.all_reduce(loss.detach(), group=job.group)


def uneven_data(job: Job) -> None:
    """A rank has fewer batches and waits at the end of the epoch."""
    job.train(3)
    if job.rank == 3:
        job.struck()
        dist.barrier(job.group)
    job.train()


def missing_message(job: Job) -> None:
    """A rank waits for a message, whose sender is with the others already."""
    job.train(3)
    if job.rank == 3:
        job.struck()
        dist.recv(torch.zeros(1), src=2)
    job.train()


def pipeline_order(job: Job) -> None:
    """Stage 1 leaves out one send: every stage then waits for a neighbour."""
    job.struck()
    for micro_batch in range(1000):
        job.signs.beat(job.rank, micro_batch)
        if job.rank > 0:
            dist.recv(torch.zeros(8), src=job.rank - 1)
        if job.rank + 1 < job.world:
            if not (job.rank == 1 and micro_batch == 3):
                dist.send(torch.ones(8), dst=job.rank + 1)
            dist.recv(torch.zeros(8), src=job.rank + 1)
        if job.rank > 0:
            dist.send(torch.ones(8), dst=job.rank - 1)


def pipeline_stage(job: Job) -> None:
    """Stage 2 never leaves its forward; the others wait for their neighbours."""
    for micro_batch in range(1000):
        job.signs.beat(job.rank, micro_batch)
        if job.rank > 0:
            dist.recv(torch.zeros(8), src=job.rank - 1)
        if job.rank == 2 and micro_batch == 3:
            job.struck()
            faults.assign_experts(2)
        if job.rank + 1 < job.world:
            dist.send(torch.ones(8), dst=job.rank + 1)
            dist.recv(torch.zeros(8), src=job.rank + 1)
        if job.rank > 0:
            dist.send(torch.ones(8), dst=job.rank - 1)


def pair_out_of_order(job: Job) -> None:
    """Two ranks that share two groups call them in different order."""
    job.train(3)
    pair = [2, 3]
    tensor, context = dist.new_group(pair), dist.new_group(pair)
    if job.rank in pair:
        job.struck()
        if job.rank == 2:
            dist.all_reduce(torch.ones(1), group=tensor)
        dist.all_gather([torch.zeros(1)] * 2, torch.ones(1), group=context)
        dist.all_reduce(torch.ones(1), group=tensor)
    job.train()


def _sharded(job: Job, branch: nn.Module) -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 64), branch, nn.Linear(64, 1))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model


class Branch(nn.Module):
    """Takes a shortcut, or gets stuck, on one rank."""

    def __init__(self, trouble: object = None) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.trouble = trouble

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if callable(self.trouble):
            self.trouble()
        out: torch.Tensor = self.layer(x)
        return out


def sharded_stuck(job: Job) -> None:
    def trouble() -> None:
        if job.rank == 2:
            job.struck()
            faults.assign_experts(2)

    model = _sharded(job, Branch(trouble))
    model(torch.randn(8, 64)).mean().backward()


def sharded_branch(job: Job) -> None:
    """A rank leaves the forward of a sharded model early and reports its loss."""
    model = _sharded(job, Branch())
    model(torch.randn(8, 64)).mean().backward()
    dist.barrier()
    if job.rank == 1:
        job.struck()
        dist.all_reduce(torch.zeros(1), group=job.group)
    model(torch.randn(8, 64)).mean().backward()


def full_state_dict(job: Job) -> None:
    """Rank 0 alone gathers a sharded model's weights, which takes all."""
    model = _sharded(job, Branch())
    model(torch.randn(8, 64)).mean().backward()
    dist.barrier()
    if job.rank == 0:
        job.struck()
        get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    dist.barrier(job.group)


def group_of_some(job: Job) -> None:
    """All ranks must make a group; rank 0 goes past."""
    job.train(3)
    if job.rank == 0:
        job.struck()
    else:
        dist.new_group()
    dist.all_reduce(torch.ones(1), group=job.group)
