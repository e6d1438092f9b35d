"""A small training: a process group over gloo, DataLoader workers, no end.

`spawn STORE` starts its own ranks; `checkpoint FOLDER` saves once in a process of its own, as torch does it.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

WORLD = 2


class Endless(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.05)
        return torch.zeros(1)


def train() -> None:
    for _ in DataLoader(Endless(), num_workers=2):
        dist.all_reduce(torch.ones(1))
        time.sleep(0.1)


def spawned(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    train()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sys.argv[1:2] == ["spawn"]:
        mp.spawn(spawned, args=(sys.argv[2],), nprocs=WORLD)
    else:
        dist.init_process_group("gloo")
        if sys.argv[1:2] == ["checkpoint"]:
            # Seconds of CPU time to import, which the spawned ranks need not take.
            import torch.distributed.checkpoint as dcp
            from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

            kind = AsyncCheckpointerType.PROCESS
            dcp.async_save(
                {"weight": torch.zeros(1)}, checkpoint_id=sys.argv[2], async_checkpointer_type=kind
            )
        train()
