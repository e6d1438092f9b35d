"""Which processes of this node a capture takes: a job's, or given process trees. Nobody is forgotten.

The job's processes are those that the finder of training processes knows, and all their descendants.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from exporter.procfs import ProcFS, Stat, Unreadable
from exporter.ranks import ProcessId, Scan, TrainingProcess


class NoSuchTarget(LookupError):
    """What was to be captured is not here; the text says what is."""


def of_job(scan: Scan, job_id: str | None, procfs: ProcFS) -> tuple[TrainingProcess, ...]:
    """The processes of a job, of every job where `job_id` is None, with descendants; by rank, role, pid."""
    members = {
        process.id.pid: process for process in scan.processes if job_id is None or process.job_id == job_id
    }
    table = _table(procfs)
    # A job started from within another one is not part of it.
    others = {process.id.pid for process in scan.processes} - members.keys()
    strangers = others | set(_descendants(others, table)) - members.keys()
    return _with_descendants(
        members, {pid: stat for pid, stat in table.items() if pid not in strangers}, procfs
    )


def of_pids(scan: Scan, pids: Sequence[int], procfs: ProcFS) -> tuple[TrainingProcess, ...]:
    """Given processes and all their descendants. Raises NoSuchTarget for a pid that is not running.

    What the scan knows keeps its identity. The others are trainers by what their environment says, or else
    numbered as ranks in the order given.
    """
    table = _table(procfs)
    missing = [pid for pid in pids if pid not in table]
    if missing:
        listed = ", ".join(map(str, missing))
        raise NoSuchTarget(f"no process runs with pid {listed} on {scan.node}")
    known = {process.id.pid: process for process in scan.processes}
    members: dict[int, TrainingProcess] = {}
    for number, pid in enumerate(dict.fromkeys(pids)):
        members[pid] = known.get(pid) or _stranger(procfs, pid, table[pid], number, len(pids))
    for pid in _descendants(members, table):
        if pid in known:
            members[pid] = known[pid]
    return _with_descendants(members, table, procfs)


def _table(procfs: ProcFS) -> dict[int, Stat]:
    stats = ((pid, procfs.stat(pid)) for pid in procfs.pids())
    return {pid: stat for pid, stat in stats if not isinstance(stat, Unreadable)}


def _descendants(members: Iterable[int], table: dict[int, Stat]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, stat in table.items():
        children.setdefault(stat.ppid, []).append(pid)
    found: dict[int, None] = {}
    waiting = list(members)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found[child] = None
                waiting.append(child)
    return list(found)


def _with_descendants(
    members: dict[int, TrainingProcess], table: dict[int, Stat], procfs: ProcFS
) -> tuple[TrainingProcess, ...]:
    """Members and what descends from them, which belongs to the rank of its nearest known ancestor."""
    result = dict(members)
    for pid in _descendants(members, table):
        stat = table[pid]
        owner = result.get(stat.ppid)
        if pid in result or owner is None:
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
    rank = _number(variables.get("RANK"))
    return TrainingProcess(
        id=ProcessId(pid, stat.start_ticks),
        parent_pid=stat.ppid,
        job_id="",
        role="trainer",
        rank=number if rank is None else rank,
        local_rank=_number(variables.get("LOCAL_RANK")),
        world_size=_number(variables.get("WORLD_SIZE")) or (count if rank is None else None),
        name=stat.comm,
        command_line=() if isinstance(command_line, Unreadable) else command_line,
        launcher="pid",
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
