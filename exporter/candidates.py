"""Looks through a node's processes for those that may have a part in training, as cheaply as it can.

Most processes of a node have none. They are looked at once, and again now and then, as a shell may become
a Python program by exec and a Python program may join a process group: young ones sooner than old ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from exporter import roles
from exporter.inspector import Facts, Inspector
from exporter.procfs import ProcFS, Stat, StatFile, Unreadable
from exporter.rankmodel import Candidate

RECHECKS = 100  # foreign processes looked at again in one thorough look, at most
_FEWER_RECHECKS = 25  # the same in any other look
_SETTLED = 10.0  # seconds after which a process has the name it will keep
_SUSPECT = 5.0  # seconds between two looks at what multiprocessing started
_SOONEST, _LATEST = 2.0, 300.0  # seconds between two looks at a process; in between a quarter of its age
_STEADY = 4.0  # seconds between two looks at whether a candidate still has its name and parent, at most
_YOUNG = 15.0  # seconds: who is to be looked at again sooner is looked at first
_FEWEST_PIDS = 30  # so many may be tried one by one, and a thirtieth of the processes there are


@dataclass(slots=True)
class _Known:
    """A candidate and what tells that it is still the same."""

    candidate: Candidate
    facts: Facts
    inode: int
    file: StatFile
    ppid: int
    state: str
    again: float  # when to look closer again
    due: float = 0.0  # when to look at it again
    runs: bytes | None = None  # of its only thread when it was looked at closely
    miss: str | None = None  # what is wrong with what it says of itself
    denied: bool = False  # its environment is not ours to read


@dataclass(slots=True)
class _Foreign:
    """A process with no part in training, as far as is known."""

    inode: int
    ppid: int
    name: str
    python: bool
    due: float = 0.0  # when to look at it again
    miss: str | None = None
    denied: bool = False  # its environment is not ours to read
    command_line: tuple[str, ...] = ()


@dataclass(slots=True)
class Look:
    """What one look at the node found. `changed`: something is not as it was at the last look."""

    candidates: dict[int, Candidate] = field(default_factory=dict)
    facts: dict[int, Facts] = field(default_factory=dict)
    # Pid, command line, reason; of candidates too, which may have found a place nevertheless.
    misses: list[tuple[int, tuple[str, ...], str]] = field(default_factory=list)
    denied: set[int] = field(default_factory=set)  # Python processes whose environment is not ours to read
    changed: bool = True


class CandidateReader:
    """Keeps track of a node's processes. Not for several threads at once."""

    def __init__(self, procfs: ProcFS, node: str) -> None:
        self._procfs = procfs
        self._inspector = Inspector(procfs, node)
        self._known: dict[int, _Known] = {}
        self._foreign: dict[int, _Foreign] = {}
        # When, pid: foreign processes to look at again, the young and the others.
        self._due: tuple[list[tuple[float, int]], list[tuple[float, int]]] = ([], [])
        self._boot_time = procfs.boot_time() or 0.0
        self._last = Look()
        self._newest: int | None = None  # the pid given out last, at the last look
        self._early: list[int] = []  # pids given out whose process was not there yet
        self._pids_tell = True  # the pid given out last is of the namespace that we see

    def look(self, now: float, *, thorough: bool = True) -> Look:
        """The candidates as they are now; `now` in Unix seconds.

        Not `thorough`: only the processes that are new or gone since the last look, and those of the others
        that are due. A name, parent or state that changes is then seen some seconds later; a pid that was used
        again between two looks, and foreign processes that are gone, at the next thorough one.
        """
        changed = False
        if thorough:
            entries, changed = self._all_entries()
        else:
            newcomers = self._newcomers()
            if newcomers is None:
                changed = self._drop_gone(pids := self._procfs.pids())
                newcomers = self._inodes(pids.difference(self._known, self._foreign))
            entries = newcomers
        changed |= self._refresh(now, thorough=thorough)
        changed |= self._take_new(entries, now)
        changed |= self._recheck(now, RECHECKS if thorough else _FEWER_RECHECKS)
        if changed:
            self._last = self._compose()
        return replace(self._last, changed=changed)

    def _all_entries(self) -> tuple[dict[int, int], bool]:
        """Pid and inode of every process, after dropping those that are gone; whether a candidate was."""
        before, begun = self._newest, self._procfs.newest_pid()
        entries = dict(self._procfs.entries())
        ended = self._procfs.newest_pid()
        if before is not None and ended is not None and before <= ended:
            # Some kernels show a container the host's newest pid beside its own processes.
            unforeseen = entries.keys() - self._known.keys() - self._foreign.keys() - set(self._early)
            self._pids_tell &= all(before < pid <= ended for pid in unforeseen)
        self._newest, self._early = begun, []
        changed = self._drop_gone(entries.keys())
        return entries, changed | self._drop_replaced(entries)

    def _newcomers(self) -> dict[int, int] | None:
        """Pid and inode of the processes that started since the last look; None where all must be listed to know."""
        before, newest = self._newest, self._procfs.newest_pid()
        self._newest = newest
        most = max(_FEWEST_PIDS, (len(self._known) + len(self._foreign)) // 30)
        if not self._pids_tell or before is None or newest is None or not 0 <= newest - before <= most:
            self._early = []
            return None
        given = range(before + 1, newest + 1)
        found = self._inodes((*self._early, *given))
        self._early = [pid for pid in given if pid not in found]  # it may be about to start
        for pid in [pid for pid in found if pid in self._foreign and self._foreign[pid].inode != found[pid]]:
            del self._foreign[pid]
        return {pid: inode for pid, inode in found.items() if self._is_process(pid)}

    def _inodes(self, pids: Iterable[int]) -> dict[int, int]:
        inodes = ((pid, self._procfs.inode(pid)) for pid in pids)
        return {pid: inode for pid, inode in inodes if not isinstance(inode, Unreadable)}

    def _is_process(self, pid: int) -> bool:
        """Not a thread: a thread can be looked up as a process is, though it is not listed."""
        status = self._procfs.status(pid)
        return not isinstance(status, Unreadable) and status.tgid == pid

    def _drop_gone(self, alive: Set[int]) -> bool:
        gone = self._known.keys() - alive
        for pid in gone:
            self._known.pop(pid).file.close()
        for pid in self._foreign.keys() - alive:
            del self._foreign[pid]
        return bool(gone)

    def _drop_replaced(self, entries: Mapping[int, int]) -> bool:
        """Forget processes whose pid is another's now."""
        gone = [pid for pid, one in self._known.items() if not self._same(pid, one, entries[pid])]
        for pid in gone:
            self._known.pop(pid).file.close()
        for pid in [pid for pid, one in self._foreign.items() if entries[pid] != one.inode]:
            del self._foreign[pid]
        return bool(gone)

    def _same(self, pid: int, known: _Known, inode: int) -> bool:
        """Whether the entry is that of the process we know; its inode may change while it lives."""
        if inode == known.inode:
            return True
        stat, file = self._procfs.stat(pid), self._procfs.open_stat(pid, pid)
        if isinstance(file, Unreadable):
            return False
        if isinstance(stat, Unreadable) or stat.start_ticks != known.candidate.id.start_ticks:
            file.close()
            return False
        known.file.close()
        known.file, known.inode = file, inode
        return True

    def _refresh(self, now: float, *, thorough: bool) -> bool:
        """Read again what may change about the candidates."""
        changed = False
        for pid, known in list(self._known.items()):
            if not thorough and known.due - _STEADY <= now < known.due:
                letter = known.file.state()
                if letter is not None and (letter in "ZX") == (known.state in "ZX"):
                    continue
            known.due = now + min(_STEADY, self._age(known.candidate.id.start_ticks, now) / 4)
            head = known.file.head()
            if head is None or head.start_ticks != known.candidate.id.start_ticks:
                self._known.pop(pid).file.close()
                changed = True
                continue
            name, state, ppid = head.comm, head.state, head.ppid
            if (name, ppid) != (known.candidate.name, known.ppid) or (state in "ZX") != (known.state in "ZX"):
                changed = True
                known.ppid = ppid
                known.candidate = replace(known.candidate, name=name)
                known.again = now if state not in "DZX" else known.again
            known.state = state
            if now >= known.again and state not in "DZX":
                changed |= self._look_closer(known, now, alone=head.num_threads == 1)
        return changed

    def _look_closer(self, known: _Known, now: float, *, alone: bool) -> bool:
        """What costs more: did it exec, did torch start threads in it, does it write a checkpoint.

        `alone`: it has one thread. If that has not run since the last time, there is nothing new.
        """
        one = known.candidate
        pid = one.id.pid
        known.again = now + self._pause(one.id.start_ticks, now)
        sleeps = alone and known.file.state() not in ("R", None)
        before, known.runs = known.runs, known.file.runs if sleeps else None
        if before is not None and before == known.runs and one.settled:
            return False
        # What trains is never asked again: a page fault in one of its threads could hold the reader for ever.
        trains = roles.has_process_group(one.threads) or one.name == "pt_data_worker"
        command_line = one.command_line if trains else self._procfs.cmdline(pid)
        if isinstance(command_line, tuple) and command_line and command_line != one.command_line:
            self._known.pop(pid).file.close()
            stat = self._procfs.stat(pid)
            if not isinstance(stat, Unreadable):
                self._inspect(stat, known.inode, now)
            return True
        updated = replace(
            self._inspector.closer(one, known.ppid), settled=self._age(one.id.start_ticks, now) >= _SETTLED
        )
        known.candidate = updated
        return updated != one

    def _take_new(self, entries: Mapping[int, int], now: float) -> bool:
        new = [pid for pid in entries if pid not in self._known and pid not in self._foreign]
        stats = [
            (stat, entries[pid]) for pid in new if not isinstance(stat := self._procfs.stat(pid), Unreadable)
        ]
        changed = False
        for stat, inode in sorted(stats, key=lambda one: (one[0].start_ticks, one[0].pid)):  # parents first
            changed |= self._inspect(stat, inode, now) or self._foreign_miss(stat.pid)
        return changed

    def _foreign_miss(self, pid: int) -> bool:
        foreign = self._foreign.get(pid)
        return foreign is not None and foreign.miss is not None

    def _recheck(self, now: float, most: int) -> bool:
        changed = False
        for _ in range(most):
            heap = next((each for each in self._due if each and each[0][0] <= now), None)
            if heap is None:
                break
            due, pid = heapq.heappop(heap)
            foreign = self._foreign.get(pid)
            if foreign is None or foreign.due != due:
                continue  # gone, or planned anew
            head = self._procfs.head(pid)
            if isinstance(head, Unreadable):
                changed |= self._foreign.pop(pid).miss is not None
                continue
            if not foreign.python and (head.comm, head.ppid) == (foreign.name, foreign.ppid):
                self._again(pid, head.start_ticks, now)
                continue
            stat = self._procfs.stat(pid)
            if not isinstance(stat, Unreadable):
                changed |= self._inspect(stat, foreign.inode, now) or self._foreign[pid].miss != foreign.miss
        return changed

    def _inspect(self, stat: Stat, inode: int, now: float, *, wanted: bool = False) -> bool:
        """Read a process for the first time, or anew; whether it became a candidate.

        `wanted`: it is one for the sake of its children.
        """
        pid = stat.pid
        foreign = _Foreign(inode, stat.ppid, stat.comm, python=False)
        self._foreign[pid] = foreign
        if stat.kernel_thread or stat.state in "ZX":
            return False
        self._again(pid, stat.start_ticks, now)
        if (stat.state == "D" or stat.num_threads > 1) and self._procfs.page_fault(pid):
            foreign.python = True  # so that it is read in full once the fault is over
            foreign.miss = "is in a page fault: reading its environment could block for ever"
            return False
        reading = self._inspector.read(stat, settled=self._age(stat.start_ticks, now) >= _SETTLED)
        if reading is None:
            return False
        candidate = reading.candidate
        if not wanted and not self._matters(candidate, stat.ppid):
            foreign.python, foreign.command_line = candidate.python, candidate.command_line
            foreign.miss, foreign.denied = reading.miss, reading.denied
            self._again(pid, stat.start_ticks, now)
            return False
        file = self._procfs.open_stat(pid, pid)
        if isinstance(file, Unreadable):
            return False
        del self._foreign[pid]
        self._known[pid] = _Known(
            candidate=candidate,
            facts=reading.facts,
            inode=inode,
            file=file,
            ppid=stat.ppid,
            state=stat.state,
            again=now + self._pause(stat.start_ticks, now),
            miss=reading.miss,
            denied=reading.denied,
        )
        self._take_relatives(candidate, stat.ppid, now)
        return True

    def _matters(self, one: Candidate, ppid: int) -> bool:
        """Whether a process may have a part in training, or is the child of one that trains."""
        if one.launcher or (one.python and one.claim is not None):
            return True
        if one.python and (roles.has_process_group(one.threads) or roles.is_ray_worker(one.command_line)):
            return True
        parent = self._known.get(ppid)
        return parent is not None and not parent.candidate.launcher

    def _take_relatives(self, one: Candidate, ppid: int, now: float) -> None:
        """A rank whose environment says nothing makes its Python parent count; who counts, its children."""
        children = [pid for pid, foreign in self._foreign.items() if foreign.ppid == one.id.pid]
        parent = self._foreign.get(ppid)
        own_place = one.claim is not None and one.claim.rank is not None
        if not own_place and not one.launcher and parent is not None and parent.python:
            self._take(ppid, now, wanted=True)
        if not one.launcher:
            for pid in children:
                self._take(pid, now)

    def _take(self, pid: int, now: float, *, wanted: bool = False) -> None:
        foreign = self._foreign.pop(pid)
        stat = self._procfs.stat(pid)
        if not isinstance(stat, Unreadable):
            self._inspect(stat, foreign.inode, now, wanted=wanted)

    def _compose(self) -> Look:
        """Candidates with their ancestors."""
        parents: dict[int, int] = {}
        alive = {pid: one for pid, one in self._known.items() if one.state not in "ZX"}
        look = Look(
            candidates={
                pid: replace(one.candidate, ancestors=tuple(self._ancestors(pid, parents)))
                for pid, one in alive.items()
            },
            facts={pid: one.facts for pid, one in alive.items()},
        )
        for pid, known in alive.items():
            if known.miss is not None:
                look.misses.append((pid, known.candidate.command_line, known.miss))
            if known.denied:
                look.denied.add(pid)
        for pid, foreign in self._foreign.items():
            if foreign.miss is not None:
                look.misses.append((pid, foreign.command_line, foreign.miss))
            if foreign.denied:
                look.denied.add(pid)
        return look

    def _ancestors(self, pid: int, parents: dict[int, int]) -> Iterator[int]:
        seen = {pid}
        while True:
            if pid not in parents:
                parents[pid] = self._parent(pid)
            pid = parents[pid]
            if pid <= 0 or pid in seen:
                return
            seen.add(pid)
            yield pid

    def _parent(self, pid: int) -> int:
        if pid in self._known:
            return self._known[pid].ppid
        if pid in self._foreign:
            return self._foreign[pid].ppid
        stat = self._procfs.stat(pid)
        return 0 if isinstance(stat, Unreadable) else stat.ppid

    def _again(self, pid: int, start_ticks: int, now: float) -> None:
        """Plan the next look at a foreign process; what multiprocessing started may soon turn out a rank."""
        foreign = self._foreign[pid]
        pause = self._pause(start_ticks, now)
        if foreign.python and roles.is_multiprocessing_child(foreign.command_line):
            pause = min(pause, _SUSPECT)
        foreign.due = now + pause
        heapq.heappush(self._due[0 if pause < _YOUNG else 1], (foreign.due, pid))

    def _pause(self, start_ticks: int, now: float) -> float:
        return min(_LATEST, max(_SOONEST, self._age(start_ticks, now) / 4))

    def _age(self, start_ticks: int, now: float) -> float:
        """Seconds since the process started."""
        return now - self._boot_time - start_ticks / self._procfs.ticks
