"""Which processes of this node belong to a training job, and who each of them is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from exporter.candidates import CandidateReader, Look
from exporter.expected import ExpectedRanks, Job
from exporter.procfs import ProcFS
from exporter.rankmodel import Placed, ProcessId
from exporter.ranktree import RankTree
from exporter.roles import Role

__all__ = ["Job", "NearMiss", "ProcessId", "RankFinder", "Role", "Scan", "TrainingProcess"]

_LONGEST_PAUSE = 10.0  # seconds between two scans at most
_THOROUGH, _LONGEST_THOROUGH = 15.0, 60.0  # seconds between two scans of everything, at least and at most
_PAUSE_PER_SECOND = 2000.0  # seconds of pause for each second of CPU that a scan took, of either kind


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
    container: str | None = None  # its id, by the control group


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
    jobs: tuple[Job, ...] = ()
    dropped: int = 0  # processes beyond what a node may show
    denied: int = 0  # Python processes whose environment is not ours to read: ranks may be among them


MOST_PROCESSES = 4096
"""Processes of training jobs that a scan shows; the rest is counted. The oldest jobs come first."""
MOST_JOBS = 64


class RankFinder:
    """Finds the training processes of a node, and remembers how many ranks of each job it should run.

    A background reader: `poll()` scans where a scan is due and publishes it in `latest`. Scans that take long
    (many processes) are due less often, so that they take a few thousandths of a core at most, and a scan looks
    again only at what may have changed. `scan()` looks at everything at once. Both may be called from several threads.

    `job_id` set: all training processes of this node belong to that job. `gpus` gives the GPU of a pid where
    the driver was asked; it must not block.
    """

    def __init__(
        self,
        procfs: ProcFS,
        *,
        node: str,
        job_id: str | None = None,
        gpus: Callable[[], Mapping[int, str]] = dict,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._job_id = job_id
        self._gpus = gpus
        self._now = now
        self._lock = threading.Lock()
        self._reader = CandidateReader(procfs, node)
        self._tree = RankTree(job_id)
        self._expected = ExpectedRanks()
        self._due = self._thorough_due = float("-inf")
        self._gpu_of: Mapping[int, str] = {}
        self.latest = Scan(now(), node, ())

    def configure(self, job_id: str | None) -> None:
        """Another `job_id` from now on; what is known of the processes and of ranks that are gone stays."""
        with self._lock:
            if job_id != self._job_id:
                self._job_id, self._tree = job_id, RankTree(job_id)
                now = self._now()
                self.latest = self._compose(self._reader.look(now), now)

    def poll(self) -> None:
        """Scan where one is due."""
        now = self._now()
        # A clock set back must not stop the scans.
        thorough = not self._thorough_due - _LONGEST_THOROUGH <= now < self._thorough_due
        if not thorough and self._due - _LONGEST_PAUSE <= now < self._due:
            return
        started = time.thread_time()
        self._scan(thorough=thorough)
        # The first scan looks into every process of the node and says nothing of what the next ones cost.
        first = self._thorough_due == float("-inf")
        pause = 0.0 if first else (time.thread_time() - started) * _PAUSE_PER_SECOND
        if thorough:
            self._thorough_due = now + min(_LONGEST_THOROUGH, max(_THOROUGH, pause))
        else:
            self._due = now + min(_LONGEST_PAUSE, pause)

    def scan(self) -> Scan:
        """Look at the node now."""
        return self._scan(thorough=True)

    def _scan(self, *, thorough: bool) -> Scan:
        with self._lock:
            now = self._now()
            look = self._reader.look(now, thorough=thorough)
            gpu_of = self._gpus()
            if look.changed or gpu_of != self._gpu_of:
                self._gpu_of = gpu_of
                self.latest = self._compose(look, now)
            else:
                self.latest = replace(self.latest, taken_at=now)
            return self.latest

    def _compose(self, look: Look, now: float) -> Scan:
        placement = self._tree.place(look.candidates)
        kept, dropped = _cap(placement.placed)
        misses = {
            pid: NearMiss(pid, look.candidates[pid].command_line, why) for pid, why in placement.refused
        }
        misses |= {pid: NearMiss(pid, argv, why) for pid, argv, why in look.misses}
        for one in placement.placed:
            misses.pop(one.id.pid, None)
        return Scan(
            taken_at=now,
            node=self._node,
            processes=tuple(self._process(one, look) for one in kept),
            near_misses=tuple(sorted(misses.values(), key=lambda one: one.pid)[:MOST_PROCESSES]),
            jobs=self._expected.jobs(kept, placement.conflicts),
            dropped=dropped,
            denied=len(look.denied - {one.id.pid for one in placement.placed}),
        )

    def _process(self, one: Placed, look: Look) -> TrainingProcess:
        candidate = look.candidates[one.id.pid]
        facts = look.facts[one.id.pid]
        owner = look.facts.get(one.owner, facts) if one.owner is not None else facts
        gpu = self._gpu_of.get(one.id.pid) or (self._gpu_of.get(one.owner) if one.owner is not None else None)
        return TrainingProcess(
            id=one.id,
            parent_pid=candidate.ancestors[0] if candidate.ancestors else 0,
            job_id=one.job_id,
            role=one.role,
            rank=one.rank,
            local_rank=one.local_rank,
            world_size=one.world_size,
            name=candidate.name,
            command_line=candidate.command_line,
            launcher=one.launcher,
            worker=one.worker,
            gpu=gpu or (None if one.role == "launcher" else owner.gpu),
            pod=facts.pod,
            namespace=facts.namespace,
            container=candidate.container,
        )


def _cap(placed: Iterable[Placed]) -> tuple[list[Placed], int]:
    """The processes to show, in order of job, rank and start; and how many are left out.

    The oldest jobs come first, so that a process which lies about its job cannot push out another.
    """
    by_job: dict[str, list[Placed]] = {}
    for one in placed:  # in order of start
        by_job.setdefault(one.job_id, []).append(one)
    kept: list[Placed] = []
    total = 0
    for number, members in enumerate(by_job.values()):
        total += len(members)
        if number < MOST_JOBS:
            kept.extend(members[: MOST_PROCESSES - len(kept)])
    kept.sort(key=lambda one: (one.job_id, one.rank is None, one.rank or 0, one.id.start_ticks, one.id.pid))
    return kept, total - len(kept)
