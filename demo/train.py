"""The demo's training job: DistributedDataParallel on gloo with DataLoader workers, run by torchrun.

It knows nothing of Hangscope. It logs iterations as Megatron-LM does, on its last rank.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, get_worker_info

from demo import faults

BATCH = 8
FEATURES = 64


class Shards(Dataset[torch.Tensor]):
    """Samples made up on the spot; from `stuck_from` on, reading one waits for ever."""

    def __init__(self, rank: int, scenario: str, stuck_from: int) -> None:
        self.rank = rank
        self.scenario = scenario
        self.stuck_from = stuck_from

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.stuck_from and self._is_stuck():
            faults.read_remote_shard()
        return torch.randn(FEATURES)

    def _is_stuck(self) -> bool:
        worker = get_worker_info()
        one = self.scenario == "stuck-dataloader" and self.rank == 1 and worker is not None and worker.id == 0
        return one or self.scenario == "stuck-data-pipeline"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenario", required=True)
    parser.add_argument("--fault-at", type=int, default=40, help="iteration at which the fault strikes")
    parser.add_argument("--iterations", type=int, default=1_000_000)
    parser.add_argument("--iteration-seconds", type=float, default=0.2)
    parser.add_argument("--folder", type=Path, required=True, help="where checkpoints go")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    last = rank == dist.get_world_size() - 1
    model = DistributedDataParallel(nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    shards = Shards(rank, arguments.scenario, stuck_from=arguments.fault_at * BATCH)
    batches = iter(DataLoader(shards, batch_size=BATCH, num_workers=2, prefetch_factor=2))

    for iteration in range(1, arguments.iterations + 1):
        started = time.monotonic()
        loss = train_step(model, optimizer, next(batches))
        if iteration == arguments.fault_at:
            strike(arguments.scenario, rank, iteration, arguments.folder)
        time.sleep(max(0.0, arguments.iteration_seconds - (time.monotonic() - started)))
        if last:
            log_iteration(iteration, arguments.iterations, time.monotonic() - started, loss)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def strike(scenario: str, rank: int, iteration: int, folder: Path) -> None:
    """The fault of the scenario, if it sits in the training loop."""
    if scenario == "stuck-rank":
        faults.assign_experts(rank)
    elif scenario == "stopped-rank":
        faults.stop(rank)
    elif scenario == "disk-sleep":
        faults.flush_metrics(rank)
    elif scenario == "collective-mismatch":
        faults.synchronize_metrics(rank)
    elif scenario == "slow-checkpoint":
        faults.save_checkpoint(rank, iteration, folder)


def log_iteration(iteration: int, total: int, seconds: float, loss: float) -> None:
    print(
        f" iteration {iteration:8d}/{total:8d} | consumed samples: {iteration * BATCH:12d} | "
        f"elapsed time per iteration (ms): {seconds * 1000:.1f} | learning rate: 1.000E-03 | "
        f"global batch size: {BATCH:5d} | lm loss: {loss:.6E} | loss scale: 1.0 |",
        flush=True,
    )


if __name__ == "__main__":
    main()
