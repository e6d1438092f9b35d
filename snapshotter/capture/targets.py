"""Which processes of this node a capture takes: a job's, or given process trees. Nobody is forgotten.

The job's processes are those that the finder of training processes knows, and all their descendants.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from exporter.procfs import ProcFS, Stat, Unreadable
from exporter.ranks import ProcessId, Scan, TrainingProcess
from snapshotter.stacks import rankset


class NoSuchTarget(LookupError):
    """What was to be captured is not here; the text says what is."""


def of_job(scan: Scan, job_id: str | None, procfs: ProcFS) -> tuple[TrainingProcess, ...]:
    """The processes of a job, of every job where `job_id` is None, with descendants; by rank, role, pid."""
    members = {
        process.id.pid: process for process in scan.processes if job_id is None or process.job_id == job_id
    }
    parents = _parents(procfs)
    # A job started from within another one is not part of it.
    others = {process.id.pid for process in scan.processes} - members.keys()
    strangers = others | set(_descendants(others, parents)) - members.keys()
    return _with_descendants(
        members, {pid: parent for pid, parent in parents.items() if pid not in strangers}, procfs
    )


def of_pids(scan: Scan, pids: Sequence[int], procfs: ProcFS) -> tuple[TrainingProcess, ...]:
    """Given processes and all their descendants. Raises NoSuchTarget for a pid that is not running.

    What the scan knows keeps its identity. The others are trainers by what their environment says, or else
    numbered as ranks in the order given.
    """
    parents = _parents(procfs)
    stats = {pid: stat for pid in pids if not isinstance(stat := procfs.stat(pid), Unreadable)}
    missing = [pid for pid in pids if pid not in stats]
    if missing:
        listed = ", ".join(map(str, missing))
        raise NoSuchTarget(f"no process runs with pid {listed} on {scan.node}")
    known = {process.id.pid: process for process in scan.processes}
    members: dict[int, TrainingProcess] = {}
    for number, pid in enumerate(dict.fromkeys(pids)):
        members[pid] = known.get(pid) or _stranger(procfs, pid, stats[pid], number, len(pids))
    for pid in _descendants(members, parents):
        if pid in known:
            members[pid] = known[pid]
    return _with_descendants(members, parents, procfs)


def _parents(procfs: ProcFS) -> dict[int, int]:
    """The parent of every process that has not ended.

    Only the two fields that are needed are read: a node may have thousands of processes, and the job waits.
    """
    found: dict[int, int] = {}
    for pid, _ in procfs.entries():
        try:
            descriptor = os.open(f"{procfs.root}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.read(descriptor, 512)
            finally:
                os.close(descriptor)
        except OSError:  # it has ended meanwhile
            continue
        state, parent = data[data.rfind(b")") + 1 :].split(None, 2)[:2]
        if state not in (b"Z", b"X"):
            found[pid] = int(parent)
    return found


def _descendants(members: Iterable[int], parents: dict[int, int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: dict[int, None] = {}
    waiting = list(members)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found[child] = None
                waiting.append(child)
    return list(found)


def _with_descendants(
    members: dict[int, TrainingProcess], parents: dict[int, int], procfs: ProcFS
) -> tuple[TrainingProcess, ...]:
    """Members and what descends from them, which belongs to the rank of its nearest known ancestor."""
    result = dict(members)
    for pid in _descendants(members, parents):
        owner = result.get(parents[pid])
        stat = procfs.stat(pid)
        if pid in result or owner is None or isinstance(stat, Unreadable):
            continue
        command_line = procfs.cmdline(pid) if stat.state != "D" else ()
        result[pid] = replace(
            owner,
            id=ProcessId(pid, stat.start_ticks),
            parent_pid=stat.ppid,
            role="other",
            name=stat.comm,
            command_line=() if isinstance(command_line, Unreadable) else command_line,
            worker=None,
        )
    return tuple(sorted(result.values(), key=_order))


def _order(process: TrainingProcess) -> tuple[bool, int, str, int]:
    return process.rank is None, process.rank or 0, process.role, process.id.pid


def _stranger(procfs: ProcFS, pid: int, stat: Stat, number: int, count: int) -> TrainingProcess:
    """A process that no job is known of."""
    safe = stat.state != "D"
    environment = procfs.environ(pid) if safe else {}
    variables = {} if isinstance(environment, Unreadable) else environment
    command_line = procfs.cmdline(pid) if safe else ()
    rank = rankset.number(variables.get("RANK"))
    return TrainingProcess(
        id=ProcessId(pid, stat.start_ticks),
        parent_pid=stat.ppid,
        job_id="",
        role="trainer",
        rank=number if rank is None else rank,
        local_rank=rankset.number(variables.get("LOCAL_RANK")),
        world_size=rankset.number(variables.get("WORLD_SIZE")) or (count if rank is None else None),
        name=stat.comm,
        command_line=() if isinstance(command_line, Unreadable) else command_line,
        launcher="pid",
    )
