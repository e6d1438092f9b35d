"""Lines of trouble from the job's own log: which rank they speak of, and what they say about the hang.

PyTorch 1.13 to 2.13 (ProcessGroupNCCL's watchdog); prefixes of torchrun (`[rank3]:`, `[default3]:`), srun -l
(`3: `) and mpirun (`[1,3]<stderr>:`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from snapshotter.stacks import rankset
from snapshotter.stacks.model import NodeAnswer
from snapshotter.stacks.rankset import RankSet

_RANK = (
    re.compile(r"\[rank(\d{1,7})\]"),
    re.compile(r"\[Rank (\d{1,7})\]|\bRank (\d{1,7})\]"),
    re.compile(r"^\[\d+,(\d{1,7})\]<std(?:err|out|diag)>"),
    re.compile(r"^\s*(\d{1,7}): "),
)
_LOCAL = re.compile(r"^\[default(\d{1,4})\]:?")
_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout|Timeout at NCCL work|Timed out waiting", re.I
)
_SEQUENCE = re.compile(r"SeqNum=(\d+)|Timeout at NCCL work: (\d+)")
_OPERATION = re.compile(r"OpType=(\w+)")
_SIZE = re.compile(r"NumelIn=(\d+)")
_GROUP = re.compile(
    r"\[PG (?:ID )?(?!ID\b)(?:[1-9]|\d*[A-Za-z_])"
)  # another process group than the job's first
_WITHIN = re.compile(r"\[Rank (\d{1,7})\] Watchdog")  # the rank's number in the process group that timed out
_EQUAL_SIZES = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"})
_ENQUEUED = re.compile(r"last enqueued (?:NCCL )?work: (-?\d+)")
_COMPLETED = re.compile(r"last completed (?:NCCL )?work: (-?\d+)")
_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\)|^\S*\s*(?:[\w.]+\.)?\w*(?:Error|Exception)\b: |CUDA error:|"
    r"Segmentation fault|terminate called|OutOfMemoryError|core dumped"
)


@dataclass(frozen=True, slots=True)
class Work:
    """A collective as the watchdog names it; `size` in elements, None where ranks may well differ in it."""

    sequence: int
    operation: str
    size: int | None

    def __str__(self) -> str:
        return self.operation if self.size is None else f"{self.operation} of {self.size:,} elements"


@dataclass(slots=True)
class JobLog:
    """What the lines say, by rank. Sequence numbers count the collectives of a process group."""

    timed_out: dict[int, int] = field(default_factory=dict)  # rank -> lowest sequence number that timed out
    enqueued: dict[int, int] = field(default_factory=dict)  # rank -> last collective it launched
    completed: dict[int, int] = field(default_factory=dict)
    works: dict[int, Work] = field(default_factory=dict)  # rank -> the first that timed out
    failed: dict[int, str] = field(default_factory=dict)  # rank -> first line of its trouble

    def behind(self, world: RankSet) -> RankSet:
        """The few ranks that launched fewer collectives than most, or that alone reported no time-out."""
        launched = self.enqueued or self.timed_out
        if len(launched) > 2:
            usual, many = Counter(launched.values()).most_common(1)[0]
            late = [rank for rank, number in launched.items() if number < usual]
            if late and 2 * len(late) < len(launched) and 2 * many > len(launched):
                return rankset.of(late) & world
        silent = world & ~rankset.of([r for r in self.timed_out if r <= rankset.MAX_RANK])
        if self.timed_out and silent and 4 * silent.bit_count() <= world.bit_count():
            return silent
        return rankset.EMPTY

    def unlike(self, world: RankSet) -> tuple[RankSet, Work, Work] | None:
        """The few ranks whose first collective to time out has the number of the rest's, and is another one."""
        if len(self.works) <= 2:
            return None
        usual, many = Counter(self.works.values()).most_common(1)[0]
        odd = {r: w for r, w in self.works.items() if w != usual and w.sequence == usual.sequence}
        ranks = rankset.of([rank for rank in odd if rank <= rankset.MAX_RANK]) & world
        if not ranks or 4 * len(odd) > len(self.works) or 2 * many <= len(self.works):
            return None
        return ranks, odd[rankset.lowest(ranks) or 0], usual

    def few_failed(self, world: RankSet) -> RankSet:
        """Ranks with an error of their own, if it is not most of them."""
        failed = rankset.of([rank for rank in self.failed if rank <= rankset.MAX_RANK]) & world
        return failed if 4 * failed.bit_count() <= world.bit_count() else rankset.EMPTY


def read(nodes: Iterable[NodeAnswer], local_ranks: dict[tuple[str, int], int]) -> JobLog:
    """All nodes' lines. `local_ranks`: (node, local rank) -> rank, for prefixes that name the local one."""
    log = JobLog()
    for node in nodes:
        for line in node.job_log:
            rank = _rank(line, node.node, local_ranks)
            if rank is not None:
                _take(log, rank, line)
    return log


def _rank(line: str, node: str, local_ranks: dict[tuple[str, int], int]) -> int | None:
    for pattern in _RANK:
        match = pattern.search(line)
        if match:
            return int(next(group for group in match.groups() if group is not None))
    match = _LOCAL.search(line)
    return local_ranks.get((node, int(match[1]))) if match else None


def _take(log: JobLog, rank: int, line: str) -> None:
    enqueued, completed = _ENQUEUED.search(line), _COMPLETED.search(line)
    if enqueued:
        log.enqueued[rank] = max(int(enqueued[1]), log.enqueued.get(rank, -1))
    if completed:
        log.completed[rank] = max(int(completed[1]), log.completed.get(rank, -1))
    if _TIMEOUT.search(line):
        sequence = _SEQUENCE.search(line)
        if sequence:
            number = int(sequence[1] or sequence[2])
            log.timed_out[rank] = min(number, log.timed_out.get(rank, number))
            _take_work(log, rank, number, line)
    elif enqueued is None and _TRACEBACK.search(line):
        log.failed.setdefault(rank, line.strip()[:200])


def _take_work(log: JobLog, rank: int, number: int, line: str) -> None:
    operation, size, within = _OPERATION.search(line), _SIZE.search(line), _WITHIN.search(line)
    if operation is None or _GROUP.search(line) or (within is not None and int(within[1]) != rank):
        return  # numbers of other groups are of other collectives
    known = log.works.get(rank)
    if known is not None and known.sequence <= number:
        return
    equal = size is not None and operation[1] in _EQUAL_SIZES
    log.works[rank] = Work(number, operation[1], int(size[1]) if size is not None and equal else None)
