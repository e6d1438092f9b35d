"""Which processes of this node belong to a training job, and who each of them is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["trainer", "dataloader", "launcher", "checkpoint", "other"]


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for as long as it lives: a pid alone may be used again."""

    pid: int
    start_ticks: int  # /proc/PID/stat field 22, clock ticks since boot


@dataclass(frozen=True, slots=True)
class TrainingProcess:
    """One process of a training job. `rank` of a helper process is that of the rank which owns it."""

    id: ProcessId
    parent_pid: int
    job_id: str
    role: Role
    rank: int | None  # None: the launcher, or not known
    local_rank: int | None
    world_size: int | None
    name: str  # comm
    command_line: tuple[str, ...]
    launcher: str  # how the identity was found: torchrun, slurm, openmpi, …
    worker: int | None = None  # number of a DataLoader worker within its rank, in order of start
    gpu: str | None = None
    pod: str | None = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A Python process that was nearly taken for a rank, and why it was not."""

    pid: int
    command_line: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Scan:
    """All training processes of the node at one moment."""

    taken_at: float  # Unix seconds
    node: str
    processes: tuple[TrainingProcess, ...]
    near_misses: tuple[NearMiss, ...] = ()
