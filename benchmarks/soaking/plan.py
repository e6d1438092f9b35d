"""What a simulated job does in its life: seeded, so that the truth is known beforehand."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

RANKS = 4
ROTATIONS = ("copytruncate", "rename", "recreate", "compress", "dated")
FAULTS = ("lock", "read", "stop", "disk")
HANGS = 0.4  # the share of jobs that hang once

Step = tuple[
    str, float | int | str
]  # ("iterate", n), ("evaluate", seconds), ("checkpoint", seconds), ("rotate", kind)
End = Literal["hang", "crash", "killed", "finish"]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job's processes; a job that goes on afterwards starts again from its checkpoint."""

    first_iteration: int
    iteration_seconds: float
    startup_seconds: float
    steps: tuple[Step, ...]
    end: End
    fault: str = ""  # of a hang
    victim: int = 0  # the rank that it strikes


@dataclass(frozen=True, slots=True)
class Plan:
    """A job: its runs in order, and where its ranks log."""

    job_id: str
    logger: int  # the rank that logs iterations: most frameworks take the first, Megatron-LM the last
    shared_log: bool  # one file for all ranks, or one each
    runs: tuple[Run, ...]


def plan(job_id: str, chance: random.Random) -> Plan:
    """A job of two to four minutes."""
    logger = chance.choice((0, RANKS - 1))
    hangs = chance.random() < HANGS
    count = chance.choice((1, 2, 2, 3))
    hanging_run = chance.randrange(count) if hangs else -1
    iteration_seconds = chance.uniform(0.05, 0.2)
    runs, first = [], 1
    for number in range(count):
        last = number == count - 1
        end: End = "finish" if last else chance.choice(("crash", "killed"))
        if number == hanging_run:
            end = "hang"
        steps = _steps(chance, iteration_seconds, seconds=chance.uniform(60, 150) / count)
        runs.append(
            Run(
                first,
                iteration_seconds,
                chance.uniform(0.5, 10.0),
                steps,
                end,
                chance.choice(FAULTS) if end == "hang" else "",
                chance.randrange(RANKS) if end == "hang" else 0,
            )
        )
        done = sum(int(value) for kind, value in steps if kind == "iterate")
        first += done - min(done, chance.randrange(1, 200))  # back to the checkpoint
    return Plan(job_id, logger, chance.random() < 0.5, tuple(runs))


def _steps(chance: random.Random, iteration_seconds: float, *, seconds: float) -> tuple[Step, ...]:
    steps: list[Step] = []
    left = seconds
    while left > 0:
        spell = chance.uniform(4, 20)
        steps.append(("iterate", max(8, int(spell / iteration_seconds))))
        left -= spell
        kind = chance.choice(("evaluate", "checkpoint", "rotate", "rotate"))
        if kind == "rotate":
            steps.append(("rotate", chance.choice(ROTATIONS)))
            continue
        pause = chance.uniform(0.5, 12.0)
        steps.append((kind, pause))
        left -= pause
    steps.append(("iterate", 20))
    return tuple(steps)
