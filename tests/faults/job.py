"""The training job of the fault suite: DistributedDataParallel on gloo, until a fault strikes.

`python -m tests.faults.job FAULT --ranks 4 --folder DIR` forks its ranks, as a notebook's launcher does. Below
torchrun, mpirun or accelerate the same program is one rank.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.context import ForkProcess
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from demo.train import BATCH, FEATURES, log_iteration, train_step
from tests.faults.signs import Signs

TOTAL = 1_000_000


class Job:
    """What a rank knows of its job, and the training loop that most faults break."""

    def __init__(self, rank: int, world: int, signs: Signs) -> None:
        self.rank = rank
        self.world = world
        self.signs = signs
        self.folder = signs.folder
        self.iteration = 0
        self.quiet = False  # logs no iterations
        self.pace = 0.05  # seconds of an iteration at least
        self.group = dist.new_group()  # for metrics, beside that of the gradients
        network = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 1))
        self.model: nn.Module = DistributedDataParallel(network)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def struck(self) -> None:
        """The fault is about to take effect in this rank."""
        self.signs.strike(self.rank)

    def batches(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.randn(BATCH, FEATURES)

    def train(self, iterations: int = TOTAL, batches: Iterator[torch.Tensor] | None = None) -> None:
        """Go on for so many iterations."""
        batches = batches or self.batches()
        for _ in range(iterations):
            self.advance(batches)

    def advance(self, batches: Iterator[torch.Tensor]) -> None:
        """One iteration."""
        started = time.monotonic()
        self.iteration += 1
        self.signs.beat(self.rank, self.iteration)
        loss = train_step(self.model, self.optimizer, next(batches))
        time.sleep(max(0.0, self.pace - (time.monotonic() - started)))
        if self.rank == 0 and not self.quiet:
            log_iteration(self.iteration, TOTAL, time.monotonic() - started, loss)


Program = Callable[[Job], None]


def program_of(name: str, module: str) -> Program:
    """The function that is a fault. Raises AttributeError, ImportError."""
    found: Program = getattr(importlib.import_module(f"tests.faults.kinds.{module}"), name.replace("-", "_"))
    return found


def run_rank(program: Program, signs: Signs) -> None:
    torch.set_num_threads(1)
    before_group = getattr(program, "before_group", None)
    if before_group is not None:
        before_group(int(os.environ["RANK"]), signs)
    dist.init_process_group("gloo")
    program(Job(dist.get_rank(), dist.get_world_size(), signs))


def _forked(program: Program, signs: Signs, rank: int, world: int) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world)
    )
    run_rank(program, signs)


def fork_ranks(program: Program, signs: Signs, ranks: int) -> list[ForkProcess]:
    """Start the ranks; one that dies is nobody's business, as below a plain shell script."""
    context = multiprocessing.get_context("fork")
    started = [context.Process(target=_forked, args=(program, signs, rank, ranks)) for rank in range(ranks)]
    for process in started:
        process.start()
    return started


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault")
    parser.add_argument("--module", required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args(arguments)
    program = program_of(options.fault, options.module)
    signs = Signs(options.folder, options.ranks)
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
        os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
    if "RANK" in os.environ:
        run_rank(program, signs)
        return
    for process in fork_ranks(program, signs, options.ranks):
        process.join()


if __name__ == "__main__":
    main()
