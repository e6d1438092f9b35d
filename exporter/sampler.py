"""What the training processes wait for and how far they get, read in the background.

States are sampled at every poll (each second), over all threads; the counters, which cost more, every few
polls, a part of the processes each time. All is summed per job, rank and role. The sums never fall while the
job lives here, although its DataLoader workers come and go: they are sums of what was seen to grow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from exporter import counters
from exporter.procfs import Pressure, ProcFS, StatFile, Unreadable
from exporter.ranks import ProcessId, Scan, TrainingProcess

GroupKey = tuple[str, int | None, str]  # job, rank, role
THREADS_PER_POLL = 500
"""Threads besides the main ones read in one poll; of more, each keeps its state until its turn."""
THREAD_SECONDS_PER_POLL = 0.002
"""CPU time for them in one poll: those that run all the time cost more."""


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
class _Sum:
    """What is known of one job, rank and role; `group` is None where it must be made anew."""

    totals: dict[str, float] = field(default_factory=dict)  # by the names of Totals
    in_state: dict[str, float] = field(default_factory=lambda: {"D": 0.0, "T": 0.0})
    members: list[_Watched] = field(default_factory=list)
    group: Group | None = None


@dataclass(slots=True, eq=False)
class _Watched:
    """One process under watch."""

    process: TrainingProcess
    main: _Thread
    sums: _Sum
    threads: dict[int, _Thread] = field(default_factory=dict)  # all but the main one
    states: frozenset[str] = frozenset()  # of those
    totals: dict[str, float] = field(default_factory=dict)  # at the last reading
    counted_at: float = float("-inf")
    counted_runs: bytes | None = None  # of its only thread when it was counted; None: not known, or several
    missing: list[tuple[str, str]] = field(default_factory=list)  # file, reason
    since: dict[str, float] = field(default_factory=dict)  # state D or T: when it began
    blocked: Blocked | None = None

    def close(self) -> None:
        for thread in (self.main, *self.threads.values()):
            thread.file.close()
        self.threads.clear()
        self.states = frozenset()


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
        self._followed: tuple[TrainingProcess, ...] = ()
        self._polled_at: float | None = None
        self._node_read_at = float("-inf")
        self._round: list[tuple[_Watched, int]] = []  # threads to read one after another
        self._turn = 0  # how many of them were
        self.latest = Snapshot(now(), scan())

    def poll(self) -> None:
        """Sample the states; read the counters of those that are due; publish."""
        now = self._now()
        scan = self._scan()
        if scan.processes is not self._followed:
            self._follow(scan.processes)
        elapsed = 0.0 if self._polled_at is None else max(0.0, now - self._polled_at)
        self._polled_at = now
        self._sample_threads()
        for one in list(self._watched.values()):
            self._sample(one, now, elapsed)
        if not 0 <= now - self._node_read_at < self._counters_every:
            self._node_read_at = now
            self.latest = self._read_node(now, scan)
        for one in self._due(now, elapsed):
            self._count(one, now)
        self.latest = replace(
            self.latest,
            taken_at=now,
            scan=scan,
            groups=tuple(
                self._group(key, sums, now)
                for key, sums in self._sums.items()
                if sums.members or sums.totals  # never seen alive: nothing to say
            ),
            unreadable=self._unreadable(scan),
        )

    def _follow(self, processes: tuple[TrainingProcess, ...]) -> None:
        """Watch what the scan found, and no longer what it did not. Sums last as long as their job."""
        self._followed = processes
        found = {one.id: one for one in processes}
        for key in [key for key in self._watched if key not in found]:
            self._watched.pop(key).close()
        jobs = {one.job_id for one in processes}
        kept = {key: one for key, one in self._sums.items() if key[0] in jobs}
        for one in processes:
            kept.setdefault((one.job_id, one.rank, one.role), _Sum())
        self._sums = dict(
            sorted(kept.items(), key=lambda one: (one[0][0], one[0][1] is None, one[0][1], one[0][2]))
        )
        for sums in self._sums.values():
            sums.members, sums.group = [], None
        for key, process in found.items():
            watched = self._watched.get(key) or self._watch(process)
            if watched is not None:
                watched.process, watched.sums = (
                    process,
                    self._sums[process.job_id, process.rank, process.role],
                )
                watched.sums.members.append(watched)

    def _watch(self, process: TrainingProcess) -> _Watched | None:
        key = process.id
        file = self._procfs.open_stat(key.pid, key.pid)
        if isinstance(file, Unreadable):
            return None
        stat = file.read()
        if stat is None or stat.start_ticks != key.start_ticks:
            file.close()
            return None
        self._watched[key] = watched = _Watched(process, _Thread(file), _Sum())
        return watched

    def _sample_threads(self) -> None:
        """Read the state of the threads whose turn it is."""
        if self._turn >= len(self._round):
            self._round = [(one, tid) for one in self._watched.values() for tid in one.threads]
            self._turn = 0
        started = time.thread_time()
        for number, (one, tid) in enumerate(self._round[self._turn : self._turn + THREADS_PER_POLL]):
            if number % 50 == 49 and time.thread_time() - started > THREAD_SECONDS_PER_POLL:
                break
            self._turn += 1
            thread = one.threads.get(tid)
            if thread is None:
                continue
            state = thread.file.state()
            if state == thread.state:
                continue
            if state is None:
                one.threads.pop(tid).file.close()
            else:
                thread.state = state
            one.states = frozenset(each.state for each in one.threads.values())

    def _sample(self, one: _Watched, now: float, elapsed: float) -> None:
        state = one.main.file.state()
        if state is None or state in "ZX":
            self._watched.pop(one.process.id).close()
            one.sums.members.remove(one)
            one.sums.group = None
            return
        one.main.state = state
        if not one.since and state not in "DTt" and one.states.isdisjoint("DTt"):
            return
        states = {state, *one.states}
        one.sums.group = None
        for letter, now_in in (("D", "D" in states), ("T", not states.isdisjoint("Tt"))):
            if not now_in:
                one.since.pop(letter, None)
                continue
            one.sums.in_state[letter] += elapsed  # each sample stands for the time since the one before
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
        runs = one.main.file.runs if one.main.state != "R" and not one.threads else None
        if runs is not None and runs == one.counted_runs:
            self._see_blocked(one)  # its only thread has not run since: nothing was used
            return
        totals, threads, one.missing = counters.read(self._procfs, one.process.id.pid)
        if threads != 1 + len(one.threads):
            self._threads(one)
        one.counted_runs = runs if threads == 1 else None
        if (waited := self._io_wait(one)) is not None:
            totals["io_wait_seconds"] = waited
        switches = totals.get("switches")
        ran = switches is None or switches != one.totals.get("switches")
        if ran or one.main.state == "R":
            one.blocked = None
        else:
            self._see_blocked(one)
        for name, value in totals.items():
            grown = max(0.0, value - one.totals.get(name, 0.0))
            one.sums.totals[name] = one.sums.totals.get(name, 0.0) + grown
        one.totals |= totals
        one.sums.group = None

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
        one.states = frozenset(thread.state for thread in one.threads.values())

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

    def _see_blocked(self, one: _Watched) -> None:
        """Where the main thread sleeps, which has not run since it was last counted."""
        if one.blocked is None or one.blocked.state != one.main.state:  # else it sleeps where it slept
            wchan = self._procfs.wchan(one.process.id.pid)
            one.blocked = Blocked(one.main.state, wchan if isinstance(wchan, str) else "")
            one.sums.group = None

    def _group(self, key: GroupKey, sums: _Sum, now: float) -> Group:
        if sums.group is None:
            sums.group = Group(
                job_id=key[0],
                rank=key[1],
                role=key[2],
                processes=len(sums.members),
                totals=Totals(**sums.totals),
                uninterruptible_seconds=sums.in_state["D"],
                stopped_seconds=sums.in_state["T"],
                uninterruptible_longest=_longest(sums.members, "D", now),
                stopped_longest=_longest(sums.members, "T", now),
                blocked=tuple(sorted({one.blocked for one in sums.members if one.blocked is not None})),
            )
        return sums.group

    def _unreadable(self, scan: Scan) -> tuple[tuple[str, str, int], ...]:
        missing: dict[tuple[str, str], int] = {}
        for one in self._watched.values():
            for key in one.missing:
                missing[key] = missing.get(key, 0) + 1
        if scan.denied:
            missing["environ", Unreadable.DENIED.value] = scan.denied
        return tuple((name, why, count) for (name, why), count in sorted(missing.items()))


def _longest(members: list[_Watched], letter: str, now: float) -> float:
    return max((now - one.since[letter] for one in members if letter in one.since), default=0.0)
