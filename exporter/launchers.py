"""Who a process says it is: rank and job from the environment and command line its launcher gave it.

Pure functions. Sources: torch.distributed.run (2.13) sets RANK, LOCAL_RANK, LOCAL_WORLD_SIZE and
TORCHELASTIC_RUN_ID; DeepSpeed's launcher RANK and CROSS_RANK; Open MPI OMPI_COMM_WORLD_*; MPICH, Intel MPI and
Slurm's pmi2 PMI_RANK; PMIx PMIX_RANK; srun SLURM_PROCID; Lightning LOCAL_RANK and NODE_RANK without RANK.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LARGEST_WORLD = 1 << 20  # more ranks than any job has; a larger number is no rank
_NUMBER = re.compile(r"\d{1,9}\Z")
_LOOPBACK = re.compile(r"(localhost(\.localdomain)?|127(\.\d+){3}|::1|\[::1\]|0\.0\.0\.0)\Z", re.IGNORECASE)
_POD_INDEX = re.compile(
    r"(?P<job>.+?)-(?:master|worker|launcher|chief|ps|evaluator|node|replica|task)-\d+(-[a-z0-9]{5})?\Z"
)
JOB_ID_LENGTH = 128  # characters; a longer id is cut


class Invalid(ValueError):
    """A variable that should hold a number of the job holds something else."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What environment and command line say. `local_world_size`: ranks that one agent or node starts."""

    launcher: str
    rank: int
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None


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
    _Variables(
        "mpich",
        "PMI_RANK",
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    ),
    _Variables("slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",)),
    _Variables("pmix", "PMIX_RANK", ("PMIX_SIZE",), ("PMIX_LOCAL_RANK",)),
)


def claim(environ: Mapping[str, str]) -> Claim | None:
    """The place that the environment gives a process; None where it gives none. Raises Invalid."""
    for variables in _LAUNCHERS:
        if variables.rank in environ:
            return _claim(environ, variables)
    return None


def _claim(environ: Mapping[str, str], variables: _Variables) -> Claim:
    rank = number(environ, variables.rank)
    world_size = _first(environ, variables.world_size)
    if rank is None or rank >= LARGEST_WORLD:
        raise Invalid(f"{variables.rank} is {environ[variables.rank][:40]!r}: not a number below 2^20")
    if world_size is not None and not rank < world_size <= LARGEST_WORLD:
        raise Invalid(f"rank {rank} is outside a world of {world_size}")
    return Claim(
        launcher=_launcher(environ, variables.launcher),
        rank=rank,
        local_rank=_first(environ, variables.local_rank),
        world_size=world_size,
        local_world_size=_first(environ, variables.local_world_size),
        node_rank=_first(environ, ("GROUP_RANK", "NODE_RANK", "CROSS_RANK", "SLURM_NODEID")),
    )


def _launcher(environ: Mapping[str, str], kind: str) -> str:
    if kind != "env":
        return kind
    if "TORCHELASTIC_RUN_ID" in environ:
        return "torchrun"
    if "CROSS_RANK" in environ:
        return "deepspeed"
    return "env"


def number(environ: Mapping[str, str], name: str) -> int | None:
    """A variable that should hold a natural number; None where it is missing or holds something else."""
    text = environ.get(name, "").strip()
    return int(text) if _NUMBER.match(text) else None


def _first(environ: Mapping[str, str], names: Iterable[str]) -> int | None:
    return next((value for name in names if (value := number(environ, name)) is not None), None)


def job_id(environ: Mapping[str, str], node: str) -> str | None:
    """The job a process belongs to: run id, Slurm job, name in the cluster, address of the master; else None.

    A master at a loopback address is this node's own, so the node's name takes its place.
    """
    run = environ.get("TORCHELASTIC_RUN_ID", "").strip()
    if run and run.lower() != "none":
        return clean(run)
    if slurm := environ.get("SLURM_JOB_ID", environ.get("SLURM_JOBID", "")).strip():
        return clean(slurm)
    if pod := _pod_owner(environ):
        return clean(pod)
    address = environ.get("MASTER_ADDR", "").strip()
    if address:
        host = node if _LOOPBACK.match(address) else address
        port = environ.get("MASTER_PORT", "").strip()
        return clean(f"{host}:{port}" if port else host)
    return None


def _pod_owner(environ: Mapping[str, str]) -> str | None:
    for name in ("PYTORCH_JOB_NAME", "JOBSET_NAME", "JOB_NAME", "MPI_JOB_NAME", "VC_JOB_NAME", "RAY_JOB_ID"):
        if value := environ.get(name, "").strip():
            return value
    if "KUBERNETES_SERVICE_HOST" not in environ:
        return None
    match = _POD_INDEX.match(environ.get("POD_NAME") or environ.get("HOSTNAME", ""))
    return match["job"] if match else None


def clean(text: str) -> str:
    """A job id fit for a label: one line of printable characters, not endless."""
    return "".join(one if one.isprintable() else "_" for one in text)[:JOB_ID_LENGTH]
