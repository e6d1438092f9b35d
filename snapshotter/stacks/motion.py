"""Two samples of one process compared: did its main thread move, burn the processor, or stand still?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from snapshotter.stacks.activity import Activity
from snapshotter.stacks.model import Counters, Frame, Sample

Motion = Literal["progressing", "spinning", "frozen", "unknown"]

SPINNING_SHARE = 0.5  # of the time between the samples on a processor
CROWDED_SHARE = 0.05  # the same for a thread that was runnable each time: others may want the processor, too
IDLE_SHARE = 0.02
IO_BYTES = 1 << 20  # less than this between two samples is background noise: heartbeats, trackers
GROWTH_BYTES = 1 << 20  # of memory, likewise
SWITCHES_PER_SECOND = 3.0  # a thread that waits for one thing wakes less often
MOVING_SWITCHES = 8

# Their two samples may differ in how far a retry or a poll loop has come.
_POLLS = frozenset({"dataloader", "idle", "lock", "network", "subprocess", "sleep"})


@dataclass(frozen=True, slots=True)
class Delta:
    """What counters gained between two samples; None where they are not known. Seconds and bytes."""

    seconds: float | None = None
    cpu_seconds: float | None = None  # of the main thread, else of the process
    io_bytes: int | None = None
    switches: int | None = None  # voluntary, of the main thread, else of the process
    grown_bytes: int | None = None  # above the most memory that was resident before
    runnable: bool = False  # the main thread was in state R in both samples
    native: bool = False  # the main thread held the interpreter's lock in neither
    threads: tuple[tuple[str, Motion], ...] = ()  # (name, motion) of the other threads

    @property
    def cpu_share(self) -> float | None:
        """Part of the time on a processor."""
        if self.cpu_seconds is None or not self.seconds:
            return None
        return self.cpu_seconds / self.seconds

    @property
    def busy(self) -> bool:
        """Did the main thread want a processor all the time?"""
        share = self.cpu_share
        return share is not None and share >= (CROWDED_SHARE if self.runnable else SPINNING_SHARE)

    @property
    def fills(self) -> bool:
        """Does it work and keep what it makes in memory? What loops in vain comes back to what it had."""
        return self.busy and self.grown_bytes is not None and self.grown_bytes >= GROWTH_BYTES

    @property
    def wakes(self) -> bool:
        """Does the main thread wake up as often as one that gets things done?"""
        if self.switches is None or not self.seconds:
            return False
        return self.switches >= max(MOVING_SWITCHES, SWITCHES_PER_SECOND * self.seconds)


def delta_of(
    first: Sample,
    second: Sample,
    pid: int,
    threads: tuple[tuple[str, Motion], ...] = (),
    *,
    native: bool = False,
) -> Delta:
    """The gain of one process's counters from the first sample to the second."""
    seconds = second.taken_at - first.taken_at
    mine = _main_counters(first, pid), _main_counters(second, pid)
    before, after = (first.counters, second.counters) if None in mine else mine
    assert before is not None
    assert after is not None
    return Delta(
        seconds=seconds if seconds > 0 else None,
        cpu_seconds=_gain(before.cpu_seconds, after.cpu_seconds),
        io_bytes=_io(first.counters, second.counters),
        switches=_whole(_gain(before.voluntary_switches, after.voluntary_switches)),
        grown_bytes=_whole(_gain(first.counters.peak_resident_bytes, second.counters.peak_resident_bytes)),
        runnable=first.state == second.state == "R",
        native=native,
        threads=threads,
    )


def spinning_threads(first: Sample, second: Sample) -> frozenset[int]:
    """Ids of the kernel threads that used a processor for most of the time between two samples."""
    seconds = second.taken_at - first.taken_at
    before = {thread.tid: thread.counters.cpu_seconds for thread in first.kernel_threads}
    gains = (
        (thread.tid, _gain(before.get(thread.tid), thread.counters.cpu_seconds))
        for thread in second.kernel_threads
    )
    return frozenset(tid for tid, gain in gains if gain is not None and gain >= SPINNING_SHARE * seconds > 0)


def _main_counters(sample: Sample, pid: int) -> Counters | None:
    return next((thread.counters for thread in sample.kernel_threads if thread.tid == pid), None)


def _gain(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _io(before: Counters, after: Counters) -> int | None:
    """Bytes moved: what passed read and write, or what went to and from devices, whichever is more."""
    passed = (_gain(before.rchar, after.rchar), _gain(before.wchar, after.wchar))
    device = (_gain(before.read_bytes, after.read_bytes), _gain(before.write_bytes, after.write_bytes))
    sums = [
        sum(part for part in pair if part is not None) for pair in (passed, device) if pair != (None, None)
    ]
    return int(max(sums)) if sums else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The main thread of one process at two moments."""

    before: tuple[Frame, ...]
    after: tuple[Frame, ...]
    then: Activity
    now: Activity
    delta: Delta


def motion_of(pair: Comparison) -> Motion:
    """How the main thread got on.

    A stack that stays the same while bytes flow or memory fills, or that changes, is progress. Exceptions: a
    change within a poll loop is none; nor is one within a single function that only burns the processor, or
    that neither uses it nor moves bytes (a retry loop).
    """
    share = pair.delta.cpu_share
    busy = pair.delta.busy
    flows = pair.delta.fills or (pair.delta.io_bytes is not None and pair.delta.io_bytes >= IO_BYTES)
    if _same_place(pair):
        if flows and not pair.now.waits:
            return "progressing"
        return "spinning" if busy else "frozen"
    if _one_function(pair.before, pair.after) and not flows and pair.delta.io_bytes is not None:
        unknown = pair.now.kind == pair.then.kind and pair.now.kind in ("user", *_POLLS)
        if busy and unknown:
            return "spinning"
        if share is not None and share < IDLE_SHARE and unknown and not pair.delta.wakes:
            return "frozen"
    return "progressing"


def _same_place(pair: Comparison) -> bool:
    if pair.before == pair.after:
        return True
    then, now = pair.then, pair.now
    if then.kind != now.kind:
        return False
    if now.waits:
        return (then.place, then.site) == (now.place, now.site)
    if now.kind in _POLLS:
        return pair.before[then.anchor :] == pair.after[now.anchor :]
    return False


def _one_function(before: tuple[Frame, ...], after: tuple[Frame, ...]) -> bool:
    """Do the stacks differ only below one activation of one function, or in its line?"""
    shared = 0
    for outer, other in zip(reversed(before), reversed(after), strict=False):
        if outer != other:
            break
        shared += 1
    rest = len(before) - shared, len(after) - shared
    if min(rest) > 1 or max(rest) > 2:
        return False
    if 0 in rest:
        return True
    here, there = before[rest[0] - 1], after[rest[1] - 1]
    return (here.name, here.filename) == (there.name, there.filename)
