"""Pure parsers of the files below /proc/PID (formats: proc(5) and fs/proc of Linux 6.x).

Each takes the bytes of one file and raises ValueError, naming the file, where they are not what the kernel
writes. Numbers keep the kernel's units; what is seconds or bytes is named so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

_KERNEL_THREAD = 0x00200000  # PF_KTHREAD, include/linux/sched.h
_STACK_LINE = re.compile(r"^(?:\[<[^>]*>\]\s*)?(\S+?)(?:\+0x[0-9a-f]+/0x[0-9a-f]+)?(?:\s+\[[^\]]*\])?\s*$")


_SWITCHES = re.compile(
    rb"^voluntary_ctxt_switches:\s*(\d+)\s+nonvoluntary_ctxt_switches:\s*(\d+)", re.MULTILINE
)
_IO_NAMES = [
    b"rchar:",
    b"wchar:",
    b"syscr:",
    b"syscw:",
    b"read_bytes:",
    b"write_bytes:",
    b"cancelled_write_bytes:",
]


class Stat(NamedTuple):
    """What is used of /proc/PID/stat or /proc/PID/task/TID/stat; times in clock ticks."""

    pid: int
    comm: str
    state: str  # R S D T t Z X I
    ppid: int
    session: int
    flags: int
    utime: int  # of all threads in PID/stat, of one in task/TID/stat
    stime: int
    num_threads: int
    start_ticks: int  # since boot
    delayacct_blkio_ticks: int | None  # None before Linux 2.6.18; 0 for ever where accounting is off

    @property
    def kernel_thread(self) -> bool:
        return bool(self.flags & _KERNEL_THREAD)


class Head(NamedTuple):
    """The part of a stat file that tells who a process is and whether it lives, without its counters."""

    comm: str
    state: str
    ppid: int
    start_ticks: int
    num_threads: int


class Usage(NamedTuple):
    """The part of /proc/PID/stat that counts."""

    cpu_ticks: int  # user and system time of all threads, ended ones included
    num_threads: int


@dataclass(frozen=True, slots=True)
class Status:
    """What is used of /proc/PID/status; the switches are those of the one thread the file belongs to."""

    name: str
    state: str
    tgid: int
    ppid: int
    uid: int  # effective
    ns_pids: tuple[
        int, ...
    ]  # NSpid: outermost namespace that this procfs shows first; empty before Linux 4.1
    threads: int
    voluntary_switches: int | None
    involuntary_switches: int | None
    peak_resident_bytes: int | None = None  # VmHWM; absent for kernel threads and zombies


class Io(NamedTuple):
    """/proc/PID/io, all threads, exited ones included; bytes."""

    rchar: int  # passed read(), page cache and network file systems included
    wchar: int
    syscr: int
    syscw: int
    read_bytes: int  # fetched from the block layer
    write_bytes: int
    cancelled_write_bytes: int


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One line of /proc/PID/cgroup; `controllers` is empty for the unified hierarchy (v2)."""

    hierarchy: int
    controllers: tuple[str, ...]
    path: str


@dataclass(frozen=True, slots=True)
class Pressure:
    """One line of a pressure file: share of the last 10 s and the total, both as time in seconds or 0-1."""

    avg10: float  # 0-1
    total_seconds: float


def stat(data: bytes) -> Stat:
    """/proc/PID/stat. The name may hold blanks and parentheses: the fields start after the last one."""
    opening = data.find(b"(")
    closing = data.rfind(b")")
    fields = data[closing + 1 :].split()
    if opening < 0 or closing < opening or len(fields) < 20:
        raise ValueError(f"stat: not what the kernel writes: {data[:80]!r}")
    return Stat(
        pid=int(data[:opening]),
        comm=data[opening + 1 : closing].decode("utf-8", "replace"),
        state=fields[0].decode("ascii", "replace"),
        ppid=int(fields[1]),
        session=int(fields[3]),
        flags=int(fields[6]),
        utime=int(fields[11]),
        stime=int(fields[12]),
        num_threads=int(fields[17]),
        start_ticks=int(fields[19]),
        delayacct_blkio_ticks=int(fields[39]) if len(fields) > 39 else None,
    )


def head(data: bytes) -> Head:
    """The same file, at half the price."""
    opening = data.find(b"(")
    closing = data.rfind(b")")
    fields = data[closing + 1 :].split(None, 20)
    if opening < 0 or closing < opening or len(fields) < 20:
        raise ValueError(f"stat: not what the kernel writes: {data[:80]!r}")
    name = data[opening + 1 : closing].decode("utf-8", "replace")
    state = fields[0].decode("ascii", "replace")
    return Head(name, state, int(fields[1]), int(fields[19]), int(fields[17]))


def usage(data: bytes) -> Usage:
    """The same file of a process: what it used."""
    fields = data[data.rfind(b")") + 1 :].split(None, 18)
    if len(fields) < 19:
        raise ValueError(f"stat: not what the kernel writes: {data[:80]!r}")
    return Usage(int(fields[11]) + int(fields[12]), int(fields[17]))


def status(data: bytes) -> Status:
    """/proc/PID/status."""
    fields: dict[bytes, bytes] = {}
    for line in data.split(b"\n"):
        key, colon, value = line.partition(b":")
        if colon:
            fields.setdefault(key, value.strip())
    try:
        return Status(
            name=fields[b"Name"].decode("utf-8", "replace"),
            state=fields[b"State"][:1].decode("ascii", "replace"),
            tgid=int(fields[b"Tgid"]),
            ppid=int(fields[b"PPid"]),
            uid=int(fields[b"Uid"].split()[1]),
            ns_pids=tuple(int(one) for one in fields.get(b"NSpid", b"").split()),
            threads=int(fields.get(b"Threads", b"1")),
            voluntary_switches=_optional(fields.get(b"voluntary_ctxt_switches")),
            involuntary_switches=_optional(fields.get(b"nonvoluntary_ctxt_switches")),
            peak_resident_bytes=_kibibytes(fields.get(b"VmHWM")),
        )
    except (KeyError, IndexError) as error:
        raise ValueError(f"status: not what the kernel writes: {error} is missing") from error


def _kibibytes(value: bytes | None) -> int | None:
    """Bytes, of a value as `5120 kB`."""
    return None if not value else int(value.split()[0]) * 1024


def switches(data: bytes) -> tuple[int, int] | None:
    """Voluntary and involuntary context switches of /proc/PID/status; None where it does not have them."""
    match = _SWITCHES.search(data, max(0, len(data) - 200))
    return (int(match[1]), int(match[2])) if match else None


def io(data: bytes) -> Io:
    """/proc/PID/io."""
    fields = data.split()
    if fields[::2] != _IO_NAMES or len(fields) % 2:
        raise ValueError(f"io: not what the kernel writes: {data[:80]!r}")
    return Io(*(int(value) for value in fields[1::2]))


def environ(data: bytes) -> dict[str, str]:
    """/proc/PID/environ: as the process was started with. Invalid UTF-8 is replaced; the first of two wins.

    A value may hold `=`; what has none is no variable (a process may write anything there).
    """
    result: dict[str, str] = {}
    for entry in data.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name:
            result.setdefault(name.decode("utf-8", "replace"), value.decode("utf-8", "replace"))
    return result


def cmdline(data: bytes) -> tuple[str, ...]:
    """/proc/PID/cmdline. A process that wrote its own title there leaves one string padded with NULs."""
    text = data.rstrip(b"\0")
    return tuple(one.decode("utf-8", "replace") for one in text.split(b"\0")) if text else ()


def cgroup(data: bytes) -> tuple[Cgroup, ...]:
    """/proc/PID/cgroup."""
    lines = []
    for line in data.decode("utf-8", "replace").splitlines():
        hierarchy, first, rest = line.partition(":")
        controllers, second, path = rest.partition(":")
        if first and second and hierarchy.isdecimal():
            lines.append(Cgroup(int(hierarchy), tuple(one for one in controllers.split(",") if one), path))
    return tuple(lines)


def kernel_stack(data: bytes) -> tuple[str, ...]:
    """/proc/PID/stack: function names, innermost first, without addresses."""
    lines = data.decode("utf-8", "replace").splitlines()
    matches = (_STACK_LINE.match(line) for line in lines)
    return tuple(match[1] for match in matches if match and not match[1].startswith("0xffffffff"))


def pressure(data: bytes) -> dict[str, Pressure]:
    """A pressure file (PSI): by `some` and `full`."""
    result = {}
    for line in data.decode("ascii", "replace").splitlines():
        match = re.match(r"(some|full) avg10=([\d.]+) .*total=(\d{1,20})$", line)
        if match:
            result[match[1]] = Pressure(float(match[2]) / 100, int(match[3]) / 1e6)
    return result


def _optional(value: bytes | None) -> int | None:
    return None if value is None else int(value)
