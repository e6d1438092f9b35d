"""The data of finding ranks: candidates as they were read, and the places they were given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.jobs import JobName
from exporter.launchers import Claim
from exporter.roles import Role


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for as long as it lives: a pid alone may be used again."""

    pid: int
    start_ticks: int  # /proc/PID/stat field 22, clock ticks since boot


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process that may have a part in training."""

    id: ProcessId
    ancestors: tuple[int, ...]  # pids, the parent first
    name: str
    command_line: tuple[str, ...]
    python: bool
    launcher: bool
    claim: Claim | None = None
    job: JobName | None = None
    host: str = ""  # what a loopback address means to it: the name of pod, container or node
    container: str | None = None
    threads: frozenset[str] = frozenset()  # names of its threads that torch gave
    writes_checkpoint: bool = False
    asked: bool = False  # its environment was read anew once it was in a process group
    settled: bool = True  # old enough to have named itself
    borrowed: bool = False  # runs in its parent's memory, as between vfork and exec


@dataclass(frozen=True, slots=True)
class Placed:
    """A candidate and its place. `group` is what starts and restarts it together with others on this node."""

    id: ProcessId
    role: Role
    job_id: str
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    launcher: str = ""
    worker: int | None = None
    owner: int | None = None  # pid of the trainer that a helper belongs to
    group: str = ""
    group_size: int | None = None  # ranks of the group, where its launcher says so


@dataclass(frozen=True, slots=True)
class Placement:
    """All places, why some candidates got none, and how many claims of a job contradict each other."""

    placed: tuple[Placed, ...]
    refused: tuple[tuple[int, str], ...]  # pid, reason
    conflicts: Mapping[str, int]
