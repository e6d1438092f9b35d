"""What /proc says of one process at one moment: states, wait channels, kernel stack, threads, counters.

Nothing here takes the lock of the target's memory map, so that it returns even where py-spy would not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from exporter.procfs import ProcFS, Stat, Unreadable
from snapshotter.capture.pyspy import Look, PySpy
from snapshotter.stacks.model import Counters, KernelThread

T = TypeVar("T")

_MOST_THREADS = 512  # read of one process; a runaway one must not take the time of all others


@dataclass(frozen=True, slots=True)
class Facts:
    """One process; `state`, `wchan`, `kernel_stack` and `syscall` are its main thread's."""

    start_ticks: int
    state: str
    wchan: str | None
    kernel_stack: tuple[str, ...]
    syscall: str | None
    counters: Counters
    threads: tuple[KernelThread, ...]

    @property
    def blocked(self) -> bool:
        """Whether any thread is in uninterruptible sleep."""
        return self.state == "D" or any(thread.state == "D" for thread in self.threads)


def look(procfs: ProcFS, pid: int) -> Look | None:
    """State and start time of a process now; None when there is none."""
    stat = procfs.stat(pid)
    return None if isinstance(stat, Unreadable) else Look(stat.state, stat.start_ticks)


def reader(procfs: ProcFS, *, binary: Path | None = None, timeout: float = 10.0) -> PySpy:
    """A py-spy that looks at its targets through `procfs`, which has to be this process's own /proc.

    Raises PySpyMissing.
    """
    return PySpy(
        lambda pid: look(procfs, pid),
        thread_states=lambda pid: thread_states(procfs, pid),
        binary=binary,
        timeout=timeout,
    )


def thread_states(procfs: ProcFS, pid: int) -> list[str]:
    """State letters of all threads of a process."""
    tids = procfs.tids(pid)
    stats = () if isinstance(tids, Unreadable) else (procfs.stat(pid, tid) for tid in tids)
    return [stat.state for stat in stats if not isinstance(stat, Unreadable)]


def read_facts(procfs: ProcFS, pid: int, *, delays: bool) -> Facts | None:
    """Everything readable; None when the process is gone. `delays`: the kernel accounts block-I/O delays."""
    stat = procfs.stat(pid)
    if isinstance(stat, Unreadable):
        return None
    tids = procfs.tids(pid)
    threads = () if isinstance(tids, Unreadable) else tids[:_MOST_THREADS]
    return Facts(
        start_ticks=stat.start_ticks,
        state=stat.state,
        wchan=_known(procfs.wchan(pid)),
        kernel_stack=_known(procfs.kernel_stack(pid)) or (),
        syscall=_known(procfs.syscall(pid)),
        counters=_process_counters(procfs, pid, stat, delays),
        threads=tuple(thread for tid in threads if (thread := _thread(procfs, pid, tid, delays)) is not None),
    )


def in_page_fault(procfs: ProcFS, pid: int, facts: Facts) -> bool:
    """Whether reading the process's memory could hang its reader: a thread in D is being served a fault.

    A thread in D outside any system call (proc(5): `-1` in its syscall file) can only be in one. Where the
    kernel says nothing at all of a main thread in D, the answer is yes.
    """
    if not facts.blocked:
        return False
    if procfs.page_fault(pid):
        return True
    if facts.state != "D":
        return False
    if facts.syscall is not None:
        return facts.syscall.startswith("-1 ")
    return facts.wchan is None and not facts.kernel_stack


def _thread(procfs: ProcFS, pid: int, tid: int, delays: bool) -> KernelThread | None:
    stat = procfs.stat(pid, tid)
    if isinstance(stat, Unreadable):
        return None
    status = _known(procfs.status(pid, tid))
    return KernelThread(
        tid=tid,
        name=stat.comm,
        state=stat.state,
        wchan=_known(procfs.wchan(pid, tid)),
        counters=Counters(
            cpu_seconds=(stat.utime + stat.stime) / procfs.ticks,
            io_wait_seconds=_delay(procfs, stat, delays),
            voluntary_switches=None if status is None else status.voluntary_switches,
            involuntary_switches=None if status is None else status.involuntary_switches,
        ),
    )


def _process_counters(procfs: ProcFS, pid: int, stat: Stat, delays: bool) -> Counters:
    status = _known(procfs.status(pid))
    io = _known(procfs.io(pid))
    return Counters(
        cpu_seconds=(stat.utime + stat.stime) / procfs.ticks,
        io_wait_seconds=_delay(procfs, stat, delays),
        voluntary_switches=None if status is None else status.voluntary_switches,
        involuntary_switches=None if status is None else status.involuntary_switches,
        read_bytes=None if io is None else io.read_bytes,
        write_bytes=None if io is None else io.write_bytes,
        rchar=None if io is None else io.rchar,
        wchar=None if io is None else io.wchar,
        peak_resident_bytes=None if status is None else status.peak_resident_bytes,
    )


def _delay(procfs: ProcFS, stat: Stat, delays: bool) -> float | None:
    if not delays or stat.delayacct_blkio_ticks is None:
        return None
    return stat.delayacct_blkio_ticks / procfs.ticks


def _known(answer: T | Unreadable | None) -> T | None:
    return None if isinstance(answer, Unreadable) else answer
