"""Counters of one process and pressure of node and job, with the reason for what could not be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from exporter.procfs import Pressure, ProcFS, Unreadable
from exporter.ranks import TrainingProcess

RESOURCES = ("io", "memory", "cpu")


def read(procfs: ProcFS, pid: int) -> tuple[dict[str, float], int | None, list[tuple[str, str]]]:
    """A process's counters since it started, by the names of sampler.Totals; how many threads it has; file and
    reason of each gap.

    Seconds and bytes. Switches are those of the main thread. A process that has ended is no gap.
    """
    totals: dict[str, float] = {}
    gaps: list[tuple[str, Unreadable]] = []
    usage, switches, io = procfs.usage(pid), procfs.switches(pid), procfs.io(pid)
    threads = None
    if isinstance(usage, Unreadable):
        gaps.append(("stat", usage))
    else:
        totals["cpu_seconds"] = usage.cpu_ticks / procfs.ticks
        threads = usage.num_threads
    if isinstance(switches, Unreadable):
        gaps.append(("status", switches))
    elif switches is not None:
        totals["switches"] = sum(switches)
        totals["involuntary_switches"] = switches[1]
    if isinstance(io, Unreadable):
        gaps.append(("io", io))
    else:
        totals |= {
            "read_bytes": io.read_bytes,
            "write_bytes": io.write_bytes,
            "rchar": io.rchar,
            "wchar": io.wchar,
        }
    return totals, threads, [(name, why.value) for name, why in gaps if why is not Unreadable.GONE]


def node_pressure(procfs: ProcFS) -> Iterator[tuple[str, str, Pressure]]:
    """Resource, `some` or `full`, and how much the node's tasks stalled on it."""
    for resource in RESOURCES:
        found = procfs.pressure(resource)
        if not isinstance(found, Unreadable):
            yield from ((resource, stalled, one) for stalled, one in found.items())


def job_pressure(
    procfs: ProcFS, processes: Iterable[TrainingProcess]
) -> Iterator[tuple[str, str, str, Pressure]]:
    """The same of each job's worst control group; nothing where its ranks are in none of their own."""
    worst: dict[tuple[str, str, str], Pressure] = {}
    seen: set[object] = set()
    for one in processes:
        if one.role != "trainer":
            continue
        group = (one.job_id, procfs.cgroup(one.id.pid))
        if group in seen:
            continue  # ranks of a job share theirs as a rule
        seen.add(group)
        for resource in RESOURCES:
            found = procfs.cgroup_pressure(one.id.pid, resource)
            for stalled, pressure in ({} if isinstance(found, Unreadable) else found).items():
                key = (one.job_id, resource, stalled)
                if key not in worst or pressure.total_seconds > worst[key].total_seconds:
                    worst[key] = pressure
    yield from ((*key, pressure) for key, pressure in sorted(worst.items()))
