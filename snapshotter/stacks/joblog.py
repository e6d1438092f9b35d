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
_ENQUEUED = re.compile(r"last enqueued (?:NCCL )?work: (-?\d+)")
_COMPLETED = re.compile(r"last completed (?:NCCL )?work: (-?\d+)")
_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\)|^\S*\s*(?:[\w.]+\.)?\w*(?:Error|Exception)\b: |CUDA error:|"
    r"Segmentation fault|terminate called|OutOfMemoryError|core dumped"
)


@dataclass(slots=True)
class JobLog:
    """What the lines say, by rank. Sequence numbers count the collectives of a process group."""

    timed_out: dict[int, int] = field(default_factory=dict)  # rank -> lowest sequence number that timed out
    enqueued: dict[int, int] = field(default_factory=dict)  # rank -> last collective it launched
    completed: dict[int, int] = field(default_factory=dict)
    operations: Counter[str] = field(default_factory=Counter)
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
        sequence, operation = _SEQUENCE.search(line), _OPERATION.search(line)
        if sequence:
            number = int(sequence[1] or sequence[2])
            log.timed_out[rank] = min(number, log.timed_out.get(rank, number))
        if operation:
            log.operations[operation[1]] += 1
    elif enqueued is None and _TRACEBACK.search(line):
        log.failed.setdefault(rank, line.strip()[:200])
