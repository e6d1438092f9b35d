"""One question about one job, tied to that job: used by the watcher and by a capture."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from exporter.config import NcclConfig as NcclConfig  # also for those who ask: the capture of a job
from exporter.nccl import apart
from exporter.nccl.find import Skip, Target, find, use_json
from exporter.nccl.model import RasReport
from exporter.nccl.ras import LIMITS, Address, Answer, Limits, ask, understand
from exporter.nccl.sockets import socket_inodes, socket_maker, tcp_sockets
from exporter.procfs import ProcFS, Unreadable
from exporter.ranks import TrainingProcess


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of wanting to ask. Exactly one of `skip` and `answer` is set."""

    skip: Skip | None = None
    answer: Answer | None = None


def ask_job(
    procfs: ProcFS,
    processes: Sequence[TrainingProcess],
    config: NcclConfig,
    *,
    limits: Limits = LIMITS,
    now: Callable[[], float] = time.time,
) -> Asked:
    """Ask about the job of `processes` once, from whatever node this is: for a capture.

    The same versions are left alone as by the watcher, and the same first minutes of a job.
    """
    target = find(procfs, processes, config, any_node=True)
    if not isinstance(target, Target):
        return Asked(skip=target)
    if target.started is not None and now() - target.started < config.quiet_start:
        return Asked(skip="quiet_start")
    return ask_target(procfs, target, json=use_json(target.version, config, 0), limits=limits)


def ask_target(
    procfs: ProcFS,
    target: Target,
    *,
    json: bool,
    hashes: Collection[str] = (),
    limits: Limits = LIMITS,
) -> Asked:
    """Ask the job's server; an answer that may be another job's is refused as ambiguous.

    `hashes`: communicators of the job that earlier answers named.
    """
    admit = Doorkeeper(procfs, target)
    reply = ask(
        target.addresses,
        json=json,
        limits=limits,
        admit=admit,
        make_socket=socket_maker(procfs, target.listeners[0]),
    )
    answer = understand(reply, read=apart.read)
    if answer.reason == "other_job":
        return Asked(skip="ambiguous")
    if target.shared and not admit.sure and not belongs(answer.report, target.own_pids, hashes):
        return Asked(skip="ambiguous")
    return Asked(answer=answer)


class Doorkeeper:
    """Says of a connection, before anything is asked, whether a process of the job accepted it.

    The kernel lists the server's end of the connection with the inode of its socket, and the process that
    holds that inode is the one that will answer. `sure`: so it was for the connection admitted last.
    """

    def __init__(self, procfs: ProcFS, target: Target) -> None:
        self._procfs = procfs
        self._target = target
        self.sure = False

    def __call__(self, connection: socket.socket) -> bool:
        inode = self._inode(_address(connection.getpeername()), _address(connection.getsockname()))
        self.sure = False
        if not inode:
            return True  # not to be seen: the answer itself has to show whose it is
        held = (socket_inodes(self._procfs, pid) for pid in self._target.listeners)
        self.sure = any(not isinstance(some, Unreadable) and inode in some for some in held)
        return self.sure or not self._target.shared

    def _inode(self, server: Address, client: Address) -> int:
        for one in tcp_sockets(self._procfs, self._target.listeners[0]):
            if one.local == server and one.remote == client:
                return one.inode
        return 0


def _address(name: tuple[str, int] | tuple[str, int, int, int]) -> Address:
    return Address(name[0].partition("%")[0], name[1])


def belongs(report: RasReport, pids: frozenset[int], hashes: Collection[str] = ()) -> bool:
    """Whether the answer is about the job that has these processes, or these communicators.

    A communicator's hash is drawn at random for each. Where the answer names neither, it is not known to be.
    """
    named = {process.pid for process in report.processes}
    return bool(named & pids) or any(one.hash in hashes for one in report.communicators)
