"""Which processes of this node belong to a training job, and who each of them is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from exporter import launchers, roles
from exporter.launchers import Claim
from exporter.procfs import ProcFS, Unreadable
from exporter.roles import Role

__all__ = ["Job", "NearMiss", "ProcessId", "RankFinder", "Role", "Scan", "TrainingProcess"]


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
class Job:
    """What this node has of one job.

    `expected` is the number of ranks that the job's launchers should keep alive here, remembered while
    any process of the job lives here; `running` the ranks that have a live trainer.
    """

    job_id: str
    expected: int
    running: int
    conflicts: int  # processes that claim a rank which another one has
    world_size: int | None = None
    missing_ranks: tuple[int, ...] = ()  # ranks that were seen on this node and have no process now


@dataclass(frozen=True, slots=True)
class Scan:
    """All training processes of the node at one moment."""

    taken_at: float  # Unix seconds
    node: str
    processes: tuple[TrainingProcess, ...]
    near_misses: tuple[NearMiss, ...] = ()
    jobs: tuple[Job, ...] = ()
    dropped: int = 0  # processes beyond what a node may show


@dataclass(slots=True)
class _Known:
    """A process that may have a part in training; the others are not looked at again in every scan."""

    id: ProcessId
    inode: int
    ppid: int
    session: int
    state: str
    name: str
    command_line: tuple[str, ...]
    python: bool
    launcher: bool
    claim: Claim | None
    job_id: str | None
    problem: str | None  # why it is no rank though it nearly is one


class RankFinder:
    """Finds the training processes of a node. `scan` may be called from several threads.

    `job_id` set: all training processes of this node belong to that job.
    """

    def __init__(
        self, procfs: ProcFS, *, node: str, job_id: str | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._procfs = procfs
        self._node = node
        self._job_id = job_id
        self._now = now
        self._lock = threading.Lock()
        self._known: dict[int, _Known] = {}
        self._foreign: dict[int, tuple[int, float]] = {}  # pid: inode, when to look again
        self.latest = Scan(now(), node, ())

    def poll(self) -> None:
        """Scan and publish the result in `latest`, so that the finder is a background reader of its own."""
        self.latest = self.scan()

    def scan(self) -> Scan:
        """Look at the node now."""
        with self._lock:
            now = self._now()
            self._look(now)
            processes = self._assemble()
            misses = tuple(
                NearMiss(one.id.pid, one.command_line, one.problem)
                for one in self._known.values()
                if one.problem is not None
            )
            return Scan(now, self._node, processes, misses)

    def _look(self, now: float) -> None:
        entries = dict(self._procfs.entries())
        self._known = {pid: one for pid, one in self._known.items() if pid in entries}
        self._foreign = {pid: one for pid, one in self._foreign.items() if pid in entries}
        for pid, inode in entries.items():
            known = self._known.get(pid)
            if known is not None and self._still(known):
                continue
            self._known.pop(pid, None)
            foreign_inode, again = self._foreign.get(pid, (-1, 0.0))
            if foreign_inode == inode and now < again:
                continue
            self._inspect(pid, inode, now)

    def _still(self, known: _Known) -> bool:
        """Whether this is the same process running the same program, and what changes about it."""
        stat = self._procfs.stat(known.id.pid)
        if isinstance(stat, Unreadable) or stat.start_ticks != known.id.start_ticks:
            return False
        if stat.comm != known.name and stat.state not in "DZX":
            command_line = self._procfs.cmdline(known.id.pid)
            if command_line != known.command_line:
                return False
        known.ppid, known.session, known.state, known.name = stat.ppid, stat.session, stat.state, stat.comm
        return True

    def _inspect(self, pid: int, inode: int, now: float) -> None:
        stat = self._procfs.stat(pid)
        if isinstance(stat, Unreadable):
            return
        self._foreign[pid] = (inode, float("inf") if stat.kernel_thread else now + 1)
        if stat.kernel_thread or stat.state in "ZX":
            return
        if stat.state == "D" and self._procfs.page_fault(pid):
            return
        command_line = self._procfs.cmdline(pid)
        executable = self._procfs.exe(pid)
        if isinstance(command_line, Unreadable) or not command_line:
            return
        python = roles.is_python_name(executable if isinstance(executable, str) else command_line[0])
        launcher = roles.is_launcher(command_line, stat.comm)
        if not python and not launcher:
            return
        environ = self._procfs.environ(pid)
        claim, job_id, problem = None, None, None
        if isinstance(environ, Unreadable):
            problem = f"its environment cannot be read: {environ.value}"
        else:
            job_id = launchers.job_id(environ, self._node)
            try:
                claim = launchers.claim(environ)
            except launchers.Invalid as error:
                problem = str(error)
        del self._foreign[pid]
        self._known[pid] = _Known(
            id=ProcessId(pid, stat.start_ticks),
            inode=inode,
            ppid=stat.ppid,
            session=stat.session,
            state=stat.state,
            name=stat.comm,
            command_line=command_line,
            python=python,
            launcher=launcher,
            claim=claim,
            job_id=job_id,
            problem=problem,
        )

    def _assemble(self) -> tuple[TrainingProcess, ...]:
        alive = {pid: one for pid, one in self._known.items() if one.state not in "ZX"}
        parents: dict[int, int] = {}

        def ancestors(pid: int) -> Iterable[int]:
            seen = {pid}
            while True:
                if pid in self._known:
                    parent = self._known[pid].ppid
                elif pid in parents:
                    parent = parents[pid]
                else:
                    stat = self._procfs.stat(pid)
                    parent = 0 if isinstance(stat, Unreadable) else stat.ppid
                    parents[pid] = parent
                if parent <= 1 or parent in seen:
                    return
                seen.add(parent)
                yield parent
                pid = parent

        trainers: dict[int, _Known] = {}
        owners: dict[int, int] = {}
        for pid, one in alive.items():
            if one.claim is None or one.launcher or not one.python:
                continue
            owner = None
            for ancestor in ancestors(pid):
                above = alive.get(ancestor)
                if above is not None and above.python and not above.launcher and above.claim == one.claim:
                    owner = ancestor
            if owner is not None:
                owners[pid] = owner
            elif one.name != "pt_data_worker" and not roles.is_multiprocessing_child(one.command_line):
                trainers[pid] = one
        found = [self._trainer(one) for one in trainers.values()]
        workers: dict[int, int] = {}
        for pid in sorted(owners, key=lambda pid: (alive[pid].id.start_ticks, pid)):
            trainer = trainers.get(owners[pid])
            if trainer is None:
                continue
            role = roles.helper_role(alive[pid].command_line, alive[pid].name, trainer.command_line)
            worker = None
            if role == "dataloader":
                worker = workers.get(trainer.id.pid, 0)
                workers[trainer.id.pid] = worker + 1
            found.append(self._process(alive[pid], trainer, role, worker))
        launching: dict[int, str] = {}
        for pid in trainers:
            for ancestor in ancestors(pid):
                if ancestor in alive and alive[ancestor].launcher:
                    launching.setdefault(ancestor, self._job(trainers[pid]))
        found.extend(self._launcher(alive[pid], job) for pid, job in launching.items())
        return tuple(sorted(found, key=lambda one: (one.job_id, one.rank is None, one.rank, one.id.pid)))

    def _job(self, one: _Known) -> str:
        return self._job_id or one.job_id or "unknown"

    def _trainer(self, one: _Known) -> TrainingProcess:
        return self._process(one, one, "trainer", None)

    def _process(self, one: _Known, owner: _Known, role: Role, worker: int | None) -> TrainingProcess:
        assert owner.claim is not None
        return TrainingProcess(
            id=one.id,
            parent_pid=one.ppid,
            job_id=self._job(owner),
            role=role,
            rank=owner.claim.rank,
            local_rank=owner.claim.local_rank,
            world_size=owner.claim.world_size,
            name=one.name,
            command_line=one.command_line,
            launcher=owner.claim.launcher,
            worker=worker,
        )

    def _launcher(self, one: _Known, job: str) -> TrainingProcess:
        return TrainingProcess(
            id=one.id,
            parent_pid=one.ppid,
            job_id=job,
            role="launcher",
            rank=None,
            local_rank=None,
            world_size=None,
            name=one.name,
            command_line=one.command_line,
            launcher="",
        )
