"""The place that a launcher gave a process: rank, local rank and world size, from its environment.

Pure functions. Sources: torch.distributed.run 2.13 (RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, TORCHELASTIC_RUN_ID);
deepspeed.launcher.launch (RANK, LOCAL_SIZE, CROSS_RANK); Open MPI 4 and 5 (OMPI_COMM_WORLD_*); MPICH 4 and
Intel MPI (PMI_RANK, MPI_LOCALRANKID, MPI_LOCALNRANKS); PMIx (PMIX_RANK); srun (SLURM_PROCID, SLURM_LOCALID);
MVAPICH 2 and 3 (MV2_COMM_WORLD_*, MVP_COMM_WORLD_*); jsrun (JSM_NAMESPACE_*); Horovod's gloo launcher
(HOROVOD_RANK); Flux (FLUX_TASK_RANK); Cray's PALS and ALPS (PALS_RANKID, ALPS_APP_PE);
Lightning 2 (LOCAL_RANK and WORLD_SIZE without RANK); the PyTorchJob operator (RANK of the pod).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

LARGEST_WORLD = 1 << 20  # more ranks than any job has; a larger number is no rank
LARGEST_NODE = 1024  # ranks on one node; a larger number is not believed
_NUMBER = re.compile(r"\d{1,9}\Z", re.ASCII)
_TASKS = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?\Z", re.ASCII)


class Invalid(ValueError):
    """A variable that should hold a number of the job holds something else."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What the environment says of a process's place in its job.

    `local_world_size`: ranks that one agent, or one node of an MPI or Slurm job, runs. `rank` is None where
    it follows from the processes around (Lightning's launcher names the local rank alone).
    """

    launcher: str
    rank: int | None
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    weak: bool = False  # every program in the allocation has it, training or not


@dataclass(frozen=True, slots=True)
class _Variables:
    """The variables in which one kind of launcher tells a process its place."""

    launcher: str
    rank: str
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_world_size: tuple[str, ...] = ()


# The strongest first: what is set last, nearest to the training code, wins.
_LAUNCHERS = (
    _Variables("env", "RANK", ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")),
    _Variables(
        "openmpi",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    *(
        _Variables(
            "mvapich",
            f"{prefix}_COMM_WORLD_RANK",
            (f"{prefix}_COMM_WORLD_SIZE",),
            (f"{prefix}_COMM_WORLD_LOCAL_RANK",),
            (f"{prefix}_COMM_WORLD_LOCAL_SIZE",),
        )
        for prefix in ("MV2", "MVP")
    ),
    _Variables(
        "jsrun",
        "JSM_NAMESPACE_RANK",
        ("JSM_NAMESPACE_SIZE",),
        ("JSM_NAMESPACE_LOCAL_RANK",),
        ("JSM_NAMESPACE_LOCAL_SIZE",),
    ),
    _Variables(
        "horovod", "HOROVOD_RANK", ("HOROVOD_SIZE",), ("HOROVOD_LOCAL_RANK",), ("HOROVOD_LOCAL_SIZE",)
    ),
    # Where PMI comes from Flux, PALS or oneCCL's wrapper, the local rank has another name.
    _Variables(
        "mpich",
        "PMI_RANK",
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID", "CCL_LOCAL_RANK"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE", "CCL_LOCAL_SIZE"),
    ),
    _Variables("flux", "FLUX_TASK_RANK", ("FLUX_JOB_SIZE",), ("FLUX_TASK_LOCAL_ID",)),
    _Variables("pals", "PALS_RANKID", ("PALS_SIZE",), ("PALS_LOCAL_RANKID",), ("PALS_LOCAL_SIZE",)),
    _Variables("alps", "ALPS_APP_PE", (), ()),
    _Variables("slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",)),
    _Variables("pmix", "PMIX_RANK", ("PMIX_SIZE",), ("PMIX_LOCAL_RANK",)),
)
# They give it to every program that they start, training or not.
_OF_ALL_PROGRAMS = ("slurm", "flux", "pals", "alps", "jsrun")
_NODE_RANK = ("GROUP_RANK", "CROSS_RANK", "NODE_RANK", "SLURM_NODEID")


def claim(environ: Mapping[str, str]) -> Claim | None:
    """The place that the environment gives a process; None where it gives none. Raises Invalid."""
    for variables in _LAUNCHERS:
        if variables.rank in environ:
            return _claim(environ, variables)
    return _lightning(environ) or _accelerate(environ)


def partial(environ: Mapping[str, str]) -> str | None:
    """Which variables of a job are there although none says the rank; None: there are none."""
    found = [name for name in ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR") if environ.get(name)]
    return ", ".join(found) if found else None


def _claim(environ: Mapping[str, str], variables: _Variables) -> Claim:
    rank = number(environ, variables.rank)
    world_size = first(environ, variables.world_size)
    if rank is None or rank >= LARGEST_WORLD:
        raise Invalid(
            f"{variables.rank} is {environ[variables.rank][:40]!r}: not a number below {LARGEST_WORLD}"
        )
    if world_size is not None and not rank < world_size <= LARGEST_WORLD:
        raise Invalid(f"rank {rank} has no place in a world of {world_size}")
    local_world_size = first(environ, variables.local_world_size)
    if local_world_size is None and variables.launcher in ("slurm", "pmix"):
        local_world_size = _slurm_tasks(environ)
    return Claim(
        launcher=_launcher(environ, variables.launcher),
        rank=rank,
        local_rank=_below(first(environ, variables.local_rank), world_size),
        world_size=world_size,
        local_world_size=_at_most(local_world_size, world_size),
        node_rank=first(environ, _NODE_RANK),
        weak=variables.launcher in _OF_ALL_PROGRAMS and (world_size or rank + 1) == 1,
    )


def _launcher(environ: Mapping[str, str], kind: str) -> str:
    """The launcher's name; RANK alone may come from several."""
    if kind != "env":
        return kind
    if "TORCHELASTIC_RUN_ID" in environ:
        return "accelerate" if "ACCELERATE_MIXED_PRECISION" in environ else "torchrun"
    if "RAY_JOB_ID" in environ or "RAY_RAYLET_PID" in environ:
        return "ray"
    if "CROSS_RANK" in environ:
        return "deepspeed"
    if "SLURM_PROCID" in environ:
        return "slurm"
    return "openmpi" if "OMPI_COMM_WORLD_RANK" in environ else "env"


def _lightning(environ: Mapping[str, str]) -> Claim | None:
    """A child of Lightning's own launcher: it has a local rank, and its parent is local rank 0."""
    local_rank, world_size = number(environ, "LOCAL_RANK"), number(environ, "WORLD_SIZE")
    if local_rank is None or world_size is None or not local_rank < world_size <= LARGEST_WORLD:
        return None
    return Claim(
        launcher="lightning",
        rank=None,
        local_rank=local_rank,
        world_size=world_size,
        node_rank=number(environ, "NODE_RANK") or 0,
    )


def _accelerate(environ: Mapping[str, str]) -> Claim | None:
    """What `accelerate launch` starts where one process is enough (accelerate 1.15)."""
    if "ACCELERATE_MIXED_PRECISION" not in environ or "ACCELERATE_DYNAMO_BACKEND" not in environ:
        return None
    return Claim("accelerate", rank=0, local_rank=0, world_size=1, local_world_size=1)


def _slurm_tasks(environ: Mapping[str, str]) -> int | None:
    """Tasks of this step on this node: SLURM_STEP_TASKS_PER_NODE is like `2(x3),1`, one entry a node."""
    node = number(environ, "SLURM_NODEID") or 0
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = _TASKS.match(part.strip())
        if match is None:
            break
        times = int(match[2] or 1)
        if node < times:
            return int(match[1])
        node -= times
    return number(environ, "SLURM_NTASKS_PER_NODE")


def from_arguments(argv: Sequence[str]) -> Claim | None:
    """The place that a command line gives: `--rank 3 --world-size 8`, as many scripts take it."""
    options: dict[str, str] = {}
    for index, one in enumerate(argv):
        name, equals, value = one.partition("=")
        if name.startswith("--"):
            options[name[2:].replace("-", "_")] = value if equals else "".join(argv[index + 1 : index + 2])
    rank = number(options, "rank")
    world_size = first(options, ("world_size", "num_processes"))
    if rank is None or world_size is None or not rank < world_size <= LARGEST_WORLD:
        return None
    return Claim("arguments", rank, _below(number(options, "local_rank"), world_size), world_size)


def started_by(argv: Sequence[str]) -> int | None:
    """Ranks that a launcher with this command line keeps on its node; None where it does not say a number."""
    for index, one in enumerate(argv):
        name, equals, value = one.partition("=")
        if name.lstrip("-").replace("_", "-") in ("nproc-per-node", "num-gpus") and name.startswith("--"):
            text = value if equals else (argv[index + 1] if index + 1 < len(argv) else "")
            return _at_most(int(text), None) if _NUMBER.match(text) else None
    return None


def number(environ: Mapping[str, str], name: str) -> int | None:
    """A variable that should hold a natural number; None where it is missing or holds something else."""
    text = environ.get(name, "").strip()
    return int(text) if _NUMBER.match(text) else None


def first(environ: Mapping[str, str], names: Iterable[str]) -> int | None:
    """The first of the variables that holds a natural number."""
    return next((value for name in names if (value := number(environ, name)) is not None), None)


def _below(value: int | None, world_size: int | None) -> int | None:
    limit = LARGEST_NODE if world_size is None else min(LARGEST_NODE, world_size)
    return value if value is not None and value < limit else None


def _at_most(value: int | None, world_size: int | None) -> int | None:
    limit = LARGEST_NODE if world_size is None else min(LARGEST_NODE, world_size)
    return value if value is not None and 0 < value <= limit else None
