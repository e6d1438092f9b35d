"""Reading one node's /proc, wherever it is mounted. What cannot be read is an answer, not an exception.

Every question about a process gives its data or an `Unreadable`, as processes end while one looks at them and
as the kernel shows some files to the owner or to root alone. /proc/PID/environ, cmdline and maps take the
lock of the target's memory map: of a process stuck in a page fault they may never return, so ask
`page_fault()` first where the process may be in state D. stat, status, io, wchan and stack take no such lock.
"""
# Thousands of files are read in a scan: plain strings and os calls cost a third of what Path does.

from __future__ import annotations

import errno
import os
import resource
import stat as modes
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import BinaryIO, TypeVar

from exporter import procparse
from exporter.procparse import Cgroup, Head, Io, Pressure, Stat, Status, Usage

__all__ = ["Cgroup", "Head", "Io", "Pressure", "ProcFS", "Stat", "StatFile", "Status", "Unreadable", "Usage"]

T = TypeVar("T")

# In wchan or the kernel stack of a thread whose page fault is being served (mm/memory.c, mm/filemap.c).
_FAULT_FUNCTIONS = (
    "handle_mm_fault",
    "do_user_addr_fault",
    "exc_page_fault",
    "asm_exc_page_fault",
    "do_page_fault",
    "filemap_fault",
    "__lock_page_or_retry",
    "__folio_lock_or_retry",
    "handle_userfault",
    "do_swap_page",
    "do_numa_page",
    "migration_entry_wait",
    "faultin_page",
)
MOST_KEPT_OPEN = 4096
"""Files below /proc kept open at most, as the kernel keeps a page of memory for each."""
_LARGEST = 4 << 20  # bytes read of one file; environ and cmdline are the process's own and could be endless


class Unreadable(Enum):
    """Why a file of a process could not be read."""

    GONE = "gone"  # the process or thread has ended
    DENIED = "denied"  # not ours to read
    UNSUPPORTED = "unsupported"  # this kernel does not have or give it
    MALFORMED = "malformed"  # not what the kernel writes


class StatFile:
    """/proc/PID/task/TID/stat to be read many times.

    Where the kernel tells how long and how often a thread ran (schedstat beside stat, Linux 2.6.23), one that has
    not run since is not read at all: only by running does a thread get from one kind of sleep into another, stop
    or end. As long as not too many are, the files are kept open: then they stay those of the very thread, and
    reading them again costs a fifth.
    """

    def __init__(self, folder: str, slots: threading.BoundedSemaphore, *, often: bool) -> None:
        """`often`: it is read so often that stat itself is worth keeping open too. Raises OSError where it cannot be
        opened.
        """
        self._path = f"{folder}/stat"
        self._slots = slots
        self._state = "R"
        self.runs: bytes | None = None
        """Changes with each run of the thread, as of the last call of `state`; None: the kernel does not say."""
        try:
            self._schedule = self._open(f"{folder}/schedstat")
        except OSError:
            self._schedule = None
        self._descriptor: int | None = None
        try:
            if often or self._schedule is None:
                self._descriptor = self._open(self._path)
        except OSError:
            self.close()
            raise

    def read(self) -> Stat | None:
        """What it says now; None once the thread has ended."""
        try:
            return procparse.stat(self._data())
        except (OSError, ValueError):
            return None

    def state(self) -> str | None:
        """The letter of the state alone, at a tenth of the price; None once the thread has ended."""
        try:
            if self._schedule is not None:
                runs = os.pread(self._schedule, 256, 0)
                # The last number counts the runs; it stays 0 where the kernel has the file but does not count.
                runs_now = None if runs.endswith(b" 0\n") else runs
                if runs_now is not None and runs_now == self.runs and self._state != "R":
                    return self._state
                self.runs = runs_now
            data = self._data()
        except OSError:
            return None
        after = data.rfind(b")") + 2
        if not 2 < after < len(data):
            return None
        self._state = chr(data[after])
        return self._state

    def head(self) -> Head | None:
        """Who it is, at half the price; None once the thread has ended."""
        try:
            return procparse.head(self._data())
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        for descriptor in (self._schedule, self._descriptor):
            if descriptor is not None:
                os.close(descriptor)
                self._slots.release()
        self._schedule = self._descriptor = None

    def _open(self, path: str) -> int | None:
        """A descriptor to keep; None where too many are kept. Raises OSError."""
        if not self._slots.acquire(blocking=False):
            return None
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._slots.release()
            raise

    def _data(self) -> bytes:
        if self._descriptor is not None:
            return os.pread(self._descriptor, 4096, 0)
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, 4096)
        finally:
            os.close(descriptor)


class ProcFS:
    """/proc of a node at `root`; pids are those of the namespace which that mount shows.

    `ticks` is the number of clock ticks a second in the kernel's answers (USER_HZ).
    """

    def __init__(
        self,
        root: Path = Path("/proc"),
        *,
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        ticks: int | None = None,
        keep_open: int | None = None,
    ) -> None:
        """`keep_open`: files kept open at most; by default half of what this process may open, or MOST_KEPT_OPEN."""
        self.root = root
        self.cgroup_root = cgroup_root
        self.ticks = ticks or os.sysconf("SC_CLK_TCK")
        self._root = str(root)
        if keep_open is None:
            keep_open = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, MOST_KEPT_OPEN)
        self._slots = threading.BoundedSemaphore(keep_open)

    def entries(self) -> Iterator[tuple[int, int]]:
        """(pid, inode number) of every process.

        While a process lives its entry keeps its inode or gets another; a new process with an old pid never
        has the old one. So a pair already seen is the same process, without reading anything of it.
        """
        with os.scandir(self._root) as listing:
            for entry in listing:
                if entry.name.isdecimal():
                    yield int(entry.name), entry.inode()

    def inode(self, pid: int) -> int | Unreadable:
        """The inode number of one process's entry."""
        try:
            return os.stat(f"{self._root}/{pid}").st_ino
        except OSError as error:
            return self._reason(error, pid)

    def pids(self) -> set[int]:
        """All processes: the same without what tells a pid that is used again, at half the price."""
        return {int(name) for name in os.listdir(self._root) if name.isdecimal()}

    def newest_pid(self) -> int | None:
        """The pid given out last, to a process or a thread; None where the kernel does not say."""
        found = self._file(f"{self._root}/loadavg", _newest_pid, None)
        return None if isinstance(found, Unreadable) else found

    def tids(self, pid: int) -> tuple[int, ...] | Unreadable:
        """All threads of a process, in order."""
        try:
            names = os.listdir(f"{self._root}/{pid}/task")
        except OSError as error:
            return self._reason(error, pid)
        return tuple(sorted(int(name) for name in names if name.isdecimal()))

    def stat(self, pid: int, tid: int | None = None) -> Stat | Unreadable:
        return self._parsed(pid, tid, "stat", procparse.stat)

    def head(self, pid: int) -> Head | Unreadable:
        return self._parsed(pid, None, "stat", procparse.head)

    def usage(self, pid: int) -> Usage | Unreadable:
        return self._parsed(pid, None, "stat", procparse.usage)

    def open_stat(self, pid: int, tid: int) -> StatFile | Unreadable:
        """The stat of one thread, to be read many times; of the process where it shows no threads."""
        try:
            return StatFile(f"{self._root}/{pid}/task/{tid}", self._slots, often=tid == pid)
        except OSError as error:
            if tid != pid:
                return self._reason(error, pid)
        try:
            return StatFile(f"{self._root}/{pid}", self._slots, often=True)
        except OSError as error:
            return self._reason(error, pid)

    def status(self, pid: int, tid: int | None = None) -> Status | Unreadable:
        return self._parsed(pid, tid, "status", procparse.status)

    def switches(self, pid: int) -> tuple[int, int] | Unreadable | None:
        """Voluntary and involuntary switches of the main thread; None where the kernel counts none."""
        return self._parsed(pid, None, "status", procparse.switches)

    def io(self, pid: int) -> Io | Unreadable:
        """Needs the right to trace the process (own user and dumpable, or CAP_SYS_PTRACE)."""
        return self._parsed(pid, None, "io", procparse.io)

    def environ(self, pid: int) -> dict[str, str] | Unreadable:
        """The environment the process was started with; needs the right to trace it."""
        return self._parsed(pid, None, "environ", procparse.environ)

    def cmdline(self, pid: int) -> tuple[str, ...] | Unreadable:
        """The command line; () for kernel threads and zombies."""
        return self._parsed(pid, None, "cmdline", procparse.cmdline)

    def cgroup(self, pid: int) -> tuple[Cgroup, ...] | Unreadable:
        return self._parsed(pid, None, "cgroup", procparse.cgroup)

    def comm(self, pid: int, tid: int | None = None) -> str | Unreadable:
        return self._parsed(pid, tid, "comm", _line)

    def wchan(self, pid: int, tid: int | None = None) -> str | Unreadable | None:
        """The kernel function that the thread sleeps in; None where it runs or the kernel hides it."""
        name = self._parsed(pid, tid, "wchan", _line)
        return None if name in ("0", "") else name

    def kernel_stack(self, pid: int, tid: int | None = None) -> tuple[str, ...] | Unreadable:
        """Kernel functions, innermost first; needs root (CAP_SYS_ADMIN)."""
        return self._parsed(pid, tid, "stack", procparse.kernel_stack)

    def syscall(self, pid: int, tid: int | None = None) -> str | Unreadable:
        """`running`, or number and arguments of the system call it blocks in; needs the right to trace."""
        return self._parsed(pid, tid, "syscall", _line)

    def maps(self, pid: int) -> str | Unreadable:
        """The memory map as the kernel prints it; needs the right to trace."""
        return self._parsed(pid, None, "maps", lambda data: data.decode("utf-8", "replace"))

    def exe(self, pid: int) -> str | Unreadable:
        """Path of the executable, without the mark of a deleted one; needs the right to trace."""
        return self._link(pid, f"{self._root}/{pid}/exe")

    def cwd(self, pid: int) -> str | Unreadable:
        """The working directory; needs the right to trace."""
        return self._link(pid, f"{self._root}/{pid}/cwd")

    def descriptors(self, pid: int) -> dict[int, str] | Unreadable:
        """What the file descriptors refer to (`/a/file`, `socket:[123]`, …); needs the right to trace."""
        folder = f"{self._root}/{pid}/fd"
        try:
            numbers = sorted(int(name) for name in os.listdir(folder) if name.isdecimal())
        except OSError as error:
            return self._reason(error, pid)
        links = {number: self._link(pid, f"{folder}/{number}") for number in numbers}
        return {number: link for number, link in links.items() if isinstance(link, str)}

    def written_files(self, pid: int) -> tuple[str, ...] | Unreadable:
        """Paths of the files that a process has open for writing; needs the right to trace."""
        links = self.descriptors(pid)
        if isinstance(links, Unreadable):
            return links
        paths = {number: link for number, link in links.items() if link.startswith("/")}
        flags = {number: self._parsed(pid, None, f"fdinfo/{number}", _open_flags) for number in paths}
        return tuple(
            path
            for number, path in paths.items()
            if isinstance(mode := flags[number], int) and mode & os.O_ACCMODE != os.O_RDONLY
        )

    def page_fault(self, pid: int) -> bool:
        """Whether a thread in state D is being served a page fault, so that its memory map may be locked.

        Where the kernel hides both wchan and stack of such a thread, the answer is yes.
        """
        tids = self.tids(pid)
        return any(
            self._thread_faults(pid, tid) for tid in ((pid,) if isinstance(tids, Unreadable) else tids)
        )

    def _thread_faults(self, pid: int, tid: int) -> bool:
        stat = self.stat(pid, tid)
        if isinstance(stat, Unreadable) or stat.state != "D":
            return False
        stack = self.kernel_stack(pid, tid)
        if not isinstance(stack, Unreadable) and stack:
            return any(function in _FAULT_FUNCTIONS for function in stack)
        wchan = self.wchan(pid, tid)
        if not isinstance(wchan, str):
            return stack is Unreadable.DENIED
        return wchan in _FAULT_FUNCTIONS or "fault" in wchan

    def shares_memory(self, pid: int, other: int) -> bool:
        """Whether two processes run in the same memory, as a child does between vfork and exec.

        By the sizes of /proc/PID/statm: a forked child does not have the pages of its parent's files, so that it
        is never as large. While one of them allocates, two readings differ: hence several.
        """
        for _ in range(3):
            sizes = [self._file(f"{self._root}/{one}/statm", _line, one) for one in (pid, other)]
            if isinstance(sizes[0], Unreadable) or isinstance(sizes[1], Unreadable):
                return False
            if sizes[0] == sizes[1]:
                return True
        return False

    def pressure(self, resource: str) -> dict[str, Pressure] | Unreadable:
        """The node's pressure stall information of `io`, `memory` or `cpu`."""
        return self._file(f"{self._root}/pressure/{resource}", procparse.pressure, None)

    def cgroup_pressure(self, pid: int, resource: str) -> dict[str, Pressure] | Unreadable:
        """The same of the process's own cgroup (v2); UNSUPPORTED where that is the root: it is the node's."""
        cgroups = self.cgroup(pid)
        if isinstance(cgroups, Unreadable):
            return cgroups
        path = next((one.path for one in cgroups if not one.controllers), "/").strip("/")
        if not path or ".." in path.split("/"):
            return Unreadable.UNSUPPORTED
        for unified in (self.cgroup_root, self.cgroup_root / "unified"):
            found = self._file(f"{unified}/{path}/{resource}.pressure", procparse.pressure, None)
            if not isinstance(found, Unreadable):
                return found
        return Unreadable.UNSUPPORTED

    def delay_accounting(self) -> bool | None:
        """Whether the kernel accounts block-I/O delays; None where it does not say (then it is on)."""
        value = self._file(f"{self._root}/sys/kernel/task_delayacct", _line, None)
        return None if isinstance(value, Unreadable) else value == "1"

    def boot_time(self) -> float | None:
        """Unix seconds at which start_ticks 0 was."""
        seconds = self._file(f"{self._root}/stat", _boot_time, None)
        return None if isinstance(seconds, Unreadable) else seconds

    def _parsed(self, pid: int, tid: int | None, name: str, parse: Callable[[bytes], T]) -> T | Unreadable:
        path = f"{self._root}/{pid}/{name}" if tid is None else f"{self._root}/{pid}/task/{tid}/{name}"
        return self._file(path, parse, pid)

    def _file(self, path: str, parse: Callable[[bytes], T], pid: int | None) -> T | Unreadable:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = _read(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            return self._reason(error, pid)
        try:
            return parse(data)
        except ValueError:
            return Unreadable.MALFORMED

    def _link(self, pid: int, path: str) -> str | Unreadable:
        try:
            return os.fsencode(os.readlink(path)).decode("utf-8", "replace").removesuffix(" (deleted)")
        except OSError as error:
            return self._reason(error, pid)

    def _reason(self, error: OSError, pid: int | None) -> Unreadable:
        if isinstance(error, PermissionError):
            return Unreadable.DENIED
        if pid is None or os.path.exists(f"{self._root}/{pid}"):
            return Unreadable.UNSUPPORTED
        return Unreadable.GONE


def open_regular(path: str | Path) -> BinaryIO:
    """A file of a process's own tree, to be read. A pipe or device in its place must not hold the reader: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if not modes.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def _read(descriptor: int) -> bytes:
    """All of a small file; the kernel may give it in pieces."""
    pieces = []
    size = 0
    while size < _LARGEST and (data := os.read(descriptor, 65536)):
        pieces.append(data)
        size += len(data)
    return b"".join(pieces)


def _line(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip()


def _newest_pid(data: bytes) -> int | None:
    """The last field of /proc/loadavg; a kernel that does not count (gVisor) writes 0."""
    return int(data.split()[-1]) or None if data.split() else None


def _open_flags(data: bytes) -> int:
    """The octal `flags:` of /proc/PID/fdinfo/FD."""
    for line in data.splitlines():
        if line.startswith(b"flags:"):
            return int(line.split()[1], 8)
    raise ValueError("fdinfo: no flags")


def _boot_time(data: bytes) -> float:
    for line in data.splitlines():
        if line.startswith(b"btime "):
            return float(line.split()[1])
    raise ValueError("stat: no btime")
