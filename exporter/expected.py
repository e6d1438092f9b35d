"""How many ranks of each job a node should run, remembered while a process of the job lives here.

Pure. A rank that died is expected and does not run, as long as its launcher or another rank lives. The number
is the sum over what starts ranks here (agents of torchrun, one node's share of an MPI or Slurm job) of the
ranks that each says it runs, or was seen to run at once. Over all nodes it adds up to the job's ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from exporter.rankmodel import Placed


@dataclass(frozen=True, slots=True)
class Job:
    """What this node has of one job.

    `expected`: ranks that should run here; `running`: those that have a live trainer. `missing_ranks`: those
    that had one since all of them were last there.
    """

    job_id: str
    expected: int
    running: int
    conflicts: int = 0  # processes that claim a rank which another one has
    world_size: int | None = None
    missing_ranks: tuple[int, ...] = ()


@dataclass(slots=True)
class _Memory:
    expected: int = 0
    ranks: set[int] = field(default_factory=set)  # seen since all were there
    world_size: int | None = None


class ExpectedRanks:
    """Remembers per job; `jobs()` is called with each new placement."""

    def __init__(self) -> None:
        self._memory: dict[str, _Memory] = {}

    def jobs(self, placed: Iterable[Placed], conflicts: Mapping[str, int]) -> tuple[Job, ...]:
        """The jobs that have a process here, in order of their id."""
        members: dict[str, list[Placed]] = {}
        for one in placed:
            members.setdefault(one.job_id, []).append(one)
        self._memory = {job: self._memory.get(job, _Memory()) for job in members}
        return tuple(
            self._job(job, members[job], self._memory[job], conflicts.get(job, 0)) for job in sorted(members)
        )

    def _job(self, job: str, members: list[Placed], memory: _Memory, conflicts: int) -> Job:
        trainers = [one for one in members if one.role == "trainer"]
        ranks = {one.rank for one in trainers if one.rank is not None}
        running = len(ranks) + sum(one.rank is None for one in trainers)
        sizes: dict[str, int] = {}
        seats: dict[str, set[int | None]] = {}
        for one in members:
            if one.role in ("trainer", "launcher") and one.group_size is not None:
                sizes[one.group] = max(sizes.get(one.group, 0), one.group_size)
            if one.role == "trainer":
                seats.setdefault(one.group, set()).add(one.rank)
        now = sum(max(sizes.get(group, 0), len(seats.get(group, ()))) for group in {*sizes, *seats})
        worlds = [one.world_size for one in trainers if one.world_size is not None]
        memory.world_size = max(worlds) if worlds else memory.world_size
        memory.expected = max(memory.expected, now)
        if memory.world_size is not None:
            memory.expected = min(memory.expected, memory.world_size)
        memory.ranks = ranks if running >= memory.expected else memory.ranks | ranks
        return Job(
            job_id=job,
            expected=memory.expected,
            running=running,
            conflicts=conflicts,
            world_size=memory.world_size,
            missing_ranks=tuple(sorted(memory.ranks - ranks))[:1024],
        )
