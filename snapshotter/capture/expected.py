"""Which ranks should live on this node, by what the processes that are left say of themselves.

torchrun gives every rank LOCAL_WORLD_SIZE, and a node's ranks consecutive numbers; mpirun and srun may deal
them out in turn, so nothing is concluded from theirs, unless the whole job is on one node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from snapshotter.stacks import rankset
from snapshotter.stacks.model import Process

_LARGEST_NODE = 1024  # ranks; more is no number of GPUs but an accident


def missing_here(processes: Iterable[Process], remembered: Iterable[int] = ()) -> tuple[int, ...]:
    """Ranks that should be among `processes` and are not; sorted.

    `remembered`: ranks of this job that were seen on this node before.
    """
    trainers = [process for process in processes if process.role == "trainer" and process.rank is not None]
    expected = set(remembered)
    for process in trainers:
        expected |= _neighbours(process)
    for process in processes:
        if process.role == "launcher":
            expected |= _launched(process.command_line)
    return tuple(sorted(expected - {process.rank for process in trainers if process.rank is not None}))


def _neighbours(process: Process) -> set[int]:
    count = _number(process.environment.get("LOCAL_WORLD_SIZE"))
    if count is None or process.rank is None or process.local_rank is None:
        return set()
    if count == process.world_size:
        return set(range(count))
    if "TORCHELASTIC_RUN_ID" not in process.environment or process.local_rank >= count:
        return set()
    first = process.rank - process.local_rank
    return set(range(first, first + count)) if first >= 0 else set()


def _launched(command_line: str) -> set[int]:
    """The ranks that torchrun starts here, where its command line gives plain numbers."""
    count = _number(_option(command_line, "nproc[-_]per[-_]node"))
    nodes = _option(command_line, "nnodes") or "1"
    number = _number(_option(command_line, "node[-_]rank") or ("0" if nodes == "1" else None))
    if count is None or number is None:
        return set()
    return set(range(number * count, (number + 1) * count))


def _option(command_line: str, name: str) -> str | None:
    match = re.search(rf"(?:^|\s)--{name}(?:=|\s+)(\S+)", command_line)
    return match[1] if match else None


def _number(text: str | None) -> int | None:
    number = rankset.number(text)
    return number if number is not None and number <= _LARGEST_NODE else None
