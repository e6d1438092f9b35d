"""What the training processes wait for and how far they get, read in the background.

States are sampled at every poll (each second), over all threads; the counters, which cost more, every few
polls, a part of the processes each time. All is summed per job, rank and role. The sums never fall while the
job lives here, although its DataLoader workers come and go: they are sums of what was seen to grow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from exporter import counters
from exporter.procfs import Pressure, ProcFS, StatFile, Unreadable
from exporter.ranks import ProcessId, Scan, TrainingProcess

GroupKey = tuple[str, int | None, str]  # job, rank, role
THREADS_PER_POLL = 500
"""Threads besides the main ones read in one poll; of more, each keeps its state until its turn."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the processes of one job, rank and role, ended ones included; None: none could be read."""

    cpu_seconds: float | None = None
    io_wait_seconds: float | None = None
    switches: float | None = None  # of the main threads, voluntary and involuntary
    involuntary_switches: float | None = None
    read_bytes: float | None = None
    write_bytes: float | None = None
    rchar: float | None = None
    wchar: float | None = None


@dataclass(frozen=True, slots=True, order=True)
class Blocked:
    """A main thread that did not run between two readings."""

    state: str
    wchan: str  # empty where it could not be read


@dataclass(frozen=True, slots=True)
class Group:
    """The processes of one job, rank and role."""

    job_id: str
    rank: int | None
    role: str
    processes: int
    totals: Totals
    uninterruptible_seconds: float
    stopped_seconds: float
    uninterruptible_longest: float  # seconds that the worst live process has been so, 0: none is
    stopped_longest: float
    blocked: tuple[Blocked, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one poll found."""

    taken_at: float  # Unix seconds
    scan: Scan
    groups: tuple[Group, ...] = ()
    unreadable: tuple[tuple[str, str, int], ...] = ()  # file, reason, number of processes
    delay_accounting: bool | None = None
    node_pressure: tuple[tuple[str, str, Pressure], ...] = ()  # resource, some or full
    job_pressure: tuple[tuple[str, str, str, Pressure], ...] = ()  # job, resource, some or full


@dataclass(slots=True)
class _Thread:
    file: StatFile
    state: str = "S"
    delay_ticks: int = 0


@dataclass(slots=True)
class _Watched:
    """One process under watch."""

    process: TrainingProcess
    main: _Thread
    threads: dict[int, _Thread] = field(default_factory=dict)  # all but the main one
    totals: dict[str, float] = field(default_factory=dict)  # by name of Totals' fields, at the last reading
    counted_at: float = float("-inf")
    missing: list[tuple[str, str]] = field(default_factory=list)  # file, reason
    since: dict[str, float] = field(default_factory=dict)  # state D or T: when it began
    blocked: Blocked | None = None

    def close(self) -> None:
        for thread in (self.main, *self.threads.values()):
            thread.file.close()


@dataclass(slots=True)
class _Sum:
    totals: dict[str, float] = field(default_factory=dict)
    in_state: dict[str, float] = field(default_factory=lambda: {"D": 0.0, "T": 0.0})


class ProcessSampler:
    """A background reader: `poll()` once a second, the result in `latest`.

    `scan` gives the node's training processes as last found. `counters_every` is in seconds.
    """

    def __init__(
        self,
        procfs: ProcFS,
        scan: Callable[[], Scan],
        *,
        counters_every: float = 15.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._procfs = procfs
        self._scan = scan
        self._counters_every = counters_every
        self._now = now
        self._watched: dict[ProcessId, _Watched] = {}
        self._sums: dict[GroupKey, _Sum] = {}
        self._polled_at: float | None = None
        self._node_read_at = float("-inf")
        self._turn = 0
        self.latest = Snapshot(now(), scan())

    def poll(self) -> None:
        """Sample the states; read the counters of those that are due; publish."""
        now = self._now()
        scan = self._scan()
        self._follow(scan)
        elapsed = 0.0 if self._polled_at is None else max(0.0, now - self._polled_at)
        self._polled_at = now
        self._sample_threads()
        for one in list(self._watched.values()):
            self._sample(one, now, elapsed)
        if now - self._node_read_at >= self._counters_every:
            self._node_read_at = now
            self.latest = self._read_node(now, scan)
        for one in self._due(now, elapsed):
            self._count(one, now)
        missing: dict[tuple[str, str], int] = {}
        for one in self._watched.values():
            for key in one.missing:
                missing[key] = missing.get(key, 0) + 1
        if scan.denied:
            missing["environ", Unreadable.DENIED.value] = scan.denied
        self.latest = replace(
            self.latest,
            taken_at=now,
            scan=scan,
            groups=tuple(self._groups(now)),
            unreadable=tuple((name, why, n) for (name, why), n in sorted(missing.items())),
        )

    def _follow(self, scan: Scan) -> None:
        """Watch what the scan found, and no longer what it did not."""
        found = {one.id: one for one in scan.processes}
        for key in [key for key in self._watched if key not in found]:
            self._watched.pop(key).close()
        for key, process in found.items():
            if key in self._watched:
                self._watched[key].process = process
                continue
            file = self._procfs.open_stat(key.pid, key.pid)
            stat = None if isinstance(file, Unreadable) else file.read()
            if isinstance(file, Unreadable):
                continue
            if stat is None or stat.start_ticks != key.start_ticks:
                file.close()
                continue
            self._watched[key] = _Watched(process, _Thread(file))
        jobs = {one.job_id for one in scan.processes}
        self._sums = {key: one for key, one in self._sums.items() if key[0] in jobs}

    def _sample_threads(self) -> None:
        """Read the state of the threads whose turn it is."""
        threads = [(one, tid) for one in self._watched.values() for tid in one.threads]
        if self._turn >= len(threads):
            self._turn = 0
        turn = (threads + threads)[self._turn : self._turn + min(THREADS_PER_POLL, len(threads))]
        self._turn += len(turn)
        for one, tid in turn:
            state = one.threads[tid].file.state()
            if state is None:
                one.threads.pop(tid).file.close()
            else:
                one.threads[tid].state = state

    def _sample(self, one: _Watched, now: float, elapsed: float) -> None:
        state = one.main.file.state()
        if state is None or state in "ZX":
            self._watched.pop(one.process.id).close()
            return
        one.main.state = state
        states = {state, *(thread.state for thread in one.threads.values())}
        sums = self._sums.setdefault(_key(one.process), _Sum())
        for letter, now_in in (("D", "D" in states), ("T", not states.isdisjoint("Tt"))):
            if not now_in:
                one.since.pop(letter, None)
                continue
            sums.in_state[letter] += elapsed  # each sample stands for the time since the one before
            one.since.setdefault(letter, now)

    def _due(self, now: float, elapsed: float) -> list[_Watched]:
        """Those never counted, and of those whose turn it is again an equal share of all at each poll."""
        due = [one for one in self._watched.values() if not 0 <= now - one.counted_at < self._counters_every]
        new = [one for one in due if one.counted_at == float("-inf")]
        old = [one for one in due if one.counted_at != float("-inf")]
        share = math.ceil(len(self._watched) * min(1.0, elapsed / self._counters_every))
        return new + sorted(old, key=lambda one: one.counted_at)[:share]

    def _count(self, one: _Watched, now: float) -> None:
        one.counted_at = now
        self._threads(one)
        totals, one.missing = counters.read(self._procfs, one.process.id.pid)
        if (waited := self._io_wait(one)) is not None:
            totals["io_wait_seconds"] = waited
        switches = totals.get("switches")
        ran = switches is None or switches != one.totals.get("switches")
        one.blocked = None if ran or one.main.state == "R" else self._blocked(one)
        sums = self._sums.setdefault(_key(one.process), _Sum())
        for name, value in totals.items():
            grown = max(0.0, value - one.totals.get(name, 0.0))
            sums.totals[name] = sums.totals.get(name, 0.0) + grown
        one.totals |= totals

    def _read_node(self, now: float, scan: Scan) -> Snapshot:
        return Snapshot(
            taken_at=now,
            scan=scan,
            delay_accounting=self._procfs.delay_accounting(),
            node_pressure=tuple(counters.node_pressure(self._procfs)),
            job_pressure=tuple(counters.job_pressure(self._procfs, scan.processes)),
        )

    def _threads(self, one: _Watched) -> None:
        """Open the stat of threads that are new."""
        pid = one.process.id.pid
        tids = self._procfs.tids(pid)
        for tid in () if isinstance(tids, Unreadable) else tids:
            if tid != pid and tid not in one.threads:
                file = self._procfs.open_stat(pid, tid)
                if not isinstance(file, Unreadable):
                    one.threads[tid] = _Thread(file)

    def _io_wait(self, one: _Watched) -> float | None:
        """Seconds that all threads, ended ones included, waited for block I/O; None: not accounted."""
        if self.latest.delay_accounting is False:
            return None
        waited = one.totals.get("io_wait_seconds", 0.0)
        for thread in (one.main, *one.threads.values()):
            stat = thread.file.read()
            if stat is not None and stat.delayacct_blkio_ticks is not None:
                waited += max(0, stat.delayacct_blkio_ticks - thread.delay_ticks) / self._procfs.ticks
                thread.delay_ticks = stat.delayacct_blkio_ticks
        # A kernel without the switch (before 5.14) may have been built without the accounting.
        return waited if waited or self.latest.delay_accounting else None

    def _blocked(self, one: _Watched) -> Blocked:
        wchan = self._procfs.wchan(one.process.id.pid)
        return Blocked(one.main.state, wchan if isinstance(wchan, str) else "")

    def _groups(self, now: float) -> Iterator[Group]:
        members: dict[GroupKey, list[_Watched]] = {key: [] for key in self._sums}
        for one in self._watched.values():
            members.setdefault(_key(one.process), []).append(one)
        for key in sorted(members, key=lambda key: (key[0], -1 if key[1] is None else key[1], key[2])):
            sums = self._sums.get(key, _Sum())
            yield Group(
                job_id=key[0],
                rank=key[1],
                role=key[2],
                processes=len(members[key]),
                totals=Totals(**sums.totals),
                uninterruptible_seconds=sums.in_state["D"],
                stopped_seconds=sums.in_state["T"],
                uninterruptible_longest=_longest(members[key], "D", now),
                stopped_longest=_longest(members[key], "T", now),
                blocked=tuple(sorted({one.blocked for one in members[key] if one.blocked is not None})),
            )


def _key(process: TrainingProcess) -> GroupKey:
    return process.job_id, process.rank, process.role


def _longest(members: list[_Watched], letter: str, now: float) -> float:
    return max((now - one.since[letter] for one in members if letter in one.since), default=0.0)
