"""Which server to ask about a job, and whether it may be asked at all.

Everything is known before the first question: the NCCL version from the library that the processes have
mapped, the address from their environment and their own listening sockets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from exporter import liveenviron
from exporter.config import NcclConfig
from exporter.nccl.environment import settings
from exporter.nccl.library import mapped_library
from exporter.nccl.model import Version, parse_version
from exporter.nccl.ras import DEFAULT_HOST, DEFAULT_PORT, Address, split_address
from exporter.nccl.sockets import (
    LISTEN,
    TcpSocket,
    network_namespace,
    socket_inodes,
    tcp_sockets,
)
from exporter.procfs import ProcFS, Unreadable
from exporter.ranks import TrainingProcess

Skip = Literal[
    "switched_off",
    "other_node",
    "unreadable",
    "disabled_by_job",
    "no_nccl",
    "old_version",
    "unknown_version",
    "unsafe_version",
    "bad_address",
    "not_listening",
    "quiet_start",
    "ambiguous",
    "back_off",
]
"""Why a job is not asked."""

SKIPS: dict[Skip, str] = {
    "switched_off": "nccl.enabled is false",
    "other_node": "the node of the job's lowest rank asks for all of them",
    "unreadable": "its processes cannot be read: run the exporter as root or as their user",
    "disabled_by_job": "the job sets NCCL_RAS_ENABLE=0",
    "no_nccl": "no process has loaded NCCL",
    "old_version": "NCCL before 2.24 has no RAS",
    "unknown_version": "the library does not say its version: set nccl.version",
    "unsafe_version": "a question can crash it: use NCCL 2.28.7 or later, or set nccl.ask_unsafe_versions",
    "bad_address": "NCCL_RAS_ADDR is no HOST:PORT (set in the environment or in nccl.conf)",
    "not_listening": "none of its processes listens there: no communicator yet, or another job has the port",
    "quiet_start": "the job, or its RAS service, started less than nccl.quiet_start ago",
    "ambiguous": "jobs share the port and cannot be told apart: give each job its own NCCL_RAS_ADDR",
    "back_off": "earlier questions failed: the next one waits longer",
}

FIRST_VERSION = Version(2, 24, 0)
FIRST_UNSAFE = Version(2, 26, 0)
"""From here a question while a communicator is set up can kill the process (NVIDIA/nccl#1669, #1718: fixed in
2.27.3, crashes reported up to 2.27.7), and a text answer about a missing process corrupts memory (#1762)."""
FIRST_JSON = Version(2, 28, 7)
"""From here there is JSON, whose code has neither fault."""
FIRST_SOUND_TEXT = Version(2, 29, 2)
"""From here the text code has its fault of #1762 mended."""

MANY_ENTRIES = 4096
"""Above so many rank entries in a JSON answer text is asked for, where sound: JSON leaks 61 bytes each."""


@dataclass(frozen=True, slots=True)
class Target:
    """A job's server. `pids` are all processes of the job on this node, as /proc here counts them."""

    job_id: str
    addresses: tuple[Address, ...]
    version: Version | None
    pids: frozenset[int]
    listeners: tuple[
        int, ...
    ]  # processes that hold a listening socket there; the first one's namespace is used
    own_pids: frozenset[int]  # the trainers' pids as they themselves and RAS see them
    shared: bool  # processes of other jobs listen at the same place
    started: float | None  # Unix seconds at which the newest trainer started


def version_gate(version: Version | None, config: NcclConfig) -> Skip | None:
    """Whether a job of this NCCL version may be asked at all."""
    if version is None:
        return None if config.ask_unsafe_versions else "unknown_version"
    if version < FIRST_VERSION:
        return "old_version"
    if FIRST_UNSAFE <= version < FIRST_JSON and not config.ask_unsafe_versions:
        return "unsafe_version"
    return None


def use_json(version: Version | None, config: NcclConfig, entries: int) -> bool:
    """Which form to ask for; `entries`: rank entries of the job's last JSON answer, 0 where none."""
    if config.format != "auto":
        return config.format == "json"
    if version is None or version < FIRST_JSON:
        return False
    return version < FIRST_SOUND_TEXT or entries <= MANY_ENTRIES


def asks_here(trainers: Sequence[TrainingProcess]) -> bool:
    """Whether this node is the one of the job's lowest rank: a rank is its own local rank there alone.

    So it stays the node that asks when rank 0 itself has died.
    """
    return any(one.rank == 0 or (one.rank is not None and one.rank == one.local_rank) for one in trainers)


@dataclass(frozen=True, slots=True)
class _Trainer:
    process: TrainingProcess
    environ: dict[str, str]


def find(
    procfs: ProcFS,
    processes: Sequence[TrainingProcess],
    config: NcclConfig,
    *,
    any_node: bool = False,
) -> Target | Skip:
    """Where to ask about the job that `processes` (all of one job, on this node) belong to, or why not.

    `any_node`: also from a node that does not hold the lowest rank, as a capture does.
    """
    if not config.enabled:
        return "switched_off"
    trainers = [one for one in processes if one.role == "trainer"]
    if not any_node and not asks_here(trainers):
        return "other_node"
    readable = _readable(procfs, trainers)
    if not readable:
        return "unreadable"
    asked = [one for one in readable if one.environ.get("NCCL_RAS_ENABLE", "1").strip() != "0"]
    if not asked:
        return "disabled_by_job"
    version = _version(procfs, asked, config)
    if not isinstance(version, Version | None):
        return version
    gate = version_gate(version, config)
    return gate or _target(procfs, processes, asked, version)


def _readable(procfs: ProcFS, trainers: Sequence[TrainingProcess]) -> list[_Trainer]:
    """Trainers whose environment can be read; none that is stuck in a page fault, where reading may hang."""
    found = []
    for one in trainers:
        stat = procfs.stat(one.id.pid)
        if isinstance(stat, Unreadable) or stat.start_ticks != one.id.start_ticks:
            continue
        if stat.state == "D" and procfs.page_fault(one.id.pid):
            continue
        environ = procfs.environ(one.id.pid)
        if not isinstance(environ, Unreadable):
            found.append(_Trainer(one, settings(procfs, one.id.pid, environ)))
    return found


def _version(procfs: ProcFS, trainers: Sequence[_Trainer], config: NcclConfig) -> Version | Skip | None:
    if config.version is not None:
        return parse_version(config.version)
    skip: Skip = "unreadable"
    for trainer in trainers:
        library = mapped_library(procfs, trainer.process.id.pid)
        if library is None:
            skip = "no_nccl"
        elif not isinstance(library, Unreadable):
            return library.version
    return skip


def _target(
    procfs: ProcFS,
    processes: Sequence[TrainingProcess],
    trainers: Sequence[_Trainer],
    version: Version | None,
) -> Target | Skip:
    pids = frozenset(one.id.pid for one in processes)
    held = {one.process.id.pid: socket_inodes(procfs, one.process.id.pid) for one in trainers}
    owned = {pid: some for pid, some in held.items() if not isinstance(some, Unreadable)}
    trainers = [one for one in trainers if one.process.id.pid in owned]
    if not trainers:
        return "unreadable"
    bad = 0
    for trainer in (*trainers, *_live(procfs, trainers)):
        try:
            _, port = _wanted(trainer.environ)
        except ValueError:
            bad += 1
            continue
        sockets = [
            one
            for one in tcp_sockets(procfs, trainer.process.id.pid)
            if one.state == LISTEN and one.local.port == port
        ]
        ours = [one for one in sockets if one.inode in owned[trainer.process.id.pid]]
        if ours:
            place = {one.local for one in ours}
            return _found(procfs, pids, trainers, owned, sockets, place, trainer, version)
    return "bad_address" if bad >= len(trainers) else "not_listening"


def _live(procfs: ProcFS, trainers: Sequence[_Trainer]) -> Iterator[_Trainer]:
    """The first trainer once more, with the address that its own program set after it was started."""
    for one in trainers[:1]:
        environ = liveenviron.read(procfs, one.process.id.pid)
        if not isinstance(environ, Unreadable):
            address = environ.get("NCCL_RAS_ADDR")
            if address is not None and address != one.environ.get("NCCL_RAS_ADDR"):
                yield _Trainer(one.process, one.environ | {"NCCL_RAS_ADDR": address})


def _wanted(environ: dict[str, str]) -> tuple[str, int]:
    text = environ.get("NCCL_RAS_ADDR")
    return (DEFAULT_HOST, DEFAULT_PORT) if text is None else split_address(text)


def _found(
    procfs: ProcFS,
    pids: frozenset[int],
    trainers: Sequence[_Trainer],
    owned: dict[int, frozenset[int]],
    sockets: Sequence[TcpSocket],
    place: set[Address],
    first: _Trainer,
    version: Version | None,
) -> Target | Skip:
    """The target at `place`, where `first` listens; others of the job may listen there as well."""
    namespace = network_namespace(procfs.root / str(first.process.id.pid))
    inodes = {one.inode for one in sockets if one.local in place}
    listeners = [
        one.process
        for one in (first, *(one for one in trainers if one.process.id != first.process.id))
        if owned[one.process.id.pid] & inodes
        and network_namespace(procfs.root / str(one.process.id.pid)) == namespace
    ]
    ranks = [one.rank for one in listeners if one.rank is not None]
    if len(set(ranks)) < len(ranks):
        return "ambiguous"  # two jobs that nothing tells apart, both without an id
    ours = frozenset().union(*(owned[one.id.pid] for one in listeners))
    starts = [start for one in trainers if (start := _started(procfs, one.process)) is not None]
    return Target(
        job_id=first.process.job_id,
        addresses=tuple(sorted({_reachable(one) for one in place}, key=str)),
        version=version,
        pids=pids,
        listeners=tuple(one.id.pid for one in listeners),
        own_pids=frozenset(pid for one in trainers for pid in own_pids(procfs, one.process.id.pid)),
        shared=bool(inodes - ours),
        started=max(starts, default=None),
    )


def own_pids(procfs: ProcFS, pid: int) -> tuple[int, ...]:
    """The pid as each pid namespace sees it: outermost first, the process's own last."""
    status = procfs.status(pid)
    return (pid,) if isinstance(status, Unreadable) or not status.ns_pids else status.ns_pids


def _reachable(address: Address) -> Address:
    """Where to connect to for a socket bound to that address."""
    wildcard = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    return Address(wildcard.get(address.host, address.host), address.port)


def _started(procfs: ProcFS, process: TrainingProcess) -> float | None:
    boot = procfs.boot_time()
    return None if boot is None else boot + process.id.start_ticks / procfs.ticks
