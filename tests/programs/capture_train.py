"""A small training job under torchrun: data-parallel over gloo, with DataLoader workers, until it is ended.

Rank 0 stops in iteration 3 where `--hang` says so, and the others wait for it.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index % 7))


def hang() -> None:
    time.sleep(3600)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hang", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pace", type=float, default=0.05, help="seconds slept in each iteration")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(Numbers(), batch_size=4, num_workers=options.workers)
    for iteration, batch in enumerate(loader):
        if options.hang and iteration == 3:
            print(f"rank {dist.get_rank()} has come to the hang in process {os.getpid()}", flush=True)
            if dist.get_rank() == 0:
                hang()
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"iteration {iteration}", flush=True)
        if options.pace:
            time.sleep(options.pace)


if __name__ == "__main__":
    main()
