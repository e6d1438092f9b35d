"""What the JSON leaves to its reader: states, errors, groups and the summary, by the rules of NCCL's text
report.

State of a rank, the first that holds (NCCL source, 2.24.3 to 2.30.7): ABORT, FINALIZE (finalize called or
destroy flag), RUNNING (init state 0), INIT; NOCOMM for a member whose process answered without holding the
communicator. A communicator's status is the highest state any of its ranks has.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Literal

import msgspec

from exporter.nccl.model import (
    ERROR,
    INCOMPLETE,
    MISMATCH,
    Communicator,
    Group,
    LaunchMismatch,
    LaunchShare,
    RankErrors,
    RasProcess,
    RasRank,
    RasReport,
    Share,
    Span,
    StatusMismatch,
    Summary,
    span,
)

_STATES = ("NOCOMM", "INIT", "RUNNING", "FINALIZE", "ABORT")  # rising
_FINE = (0, 7)  # ncclSuccess, ncclInProgress
_RESULTS = {
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
    8: "Timeout",
}
_NAMED_AT_MOST = 4096


class RawStatus(msgspec.Struct, frozen=True, gc=False):
    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False


class RawRank(msgspec.Struct, gc=False):
    rank: int
    host: str
    pid: int
    cuda_dev: int
    nvml_dev: int
    status: RawStatus
    collective_counts: dict[str, int] = {}


class RawMissingStatus(msgspec.Struct, frozen=True, gc=False):
    unresponsive: bool = True
    considered_dead: bool = False


class RawMissing(msgspec.Struct, gc=False):
    rank: int
    host: str = "unknown"
    pid: int = -1
    cuda_dev: int = -1
    nvml_dev: int = -1
    status: RawMissingStatus = RawMissingStatus()


class RawCommunicator(msgspec.Struct):
    """A communicator as the JSON has it."""

    hash: str
    size: int
    ranks: list[RawRank] = []
    missing_ranks: list[RawMissing] = []


Gpu = tuple[str, int, int, int]  # host, pid, CUDA device, NVML device

# Loops over the ranks of big answers run in C.
_gpu = attrgetter("host", "pid", "cuda_dev", "nvml_dev")
_host = attrgetter("host")
_status = attrgetter("status")
_launched = attrgetter("collective_counts")


@dataclass
class _Row:
    size: int
    nodes: int
    status: int
    errors: tuple[str, ...]
    communicators: int = 0
    low: int = 0
    high: int = 0
    gpus: set[int] = field(default_factory=set)
    bad: list[Communicator] = field(default_factory=list)


class Derivation:
    """Takes communicators one by one and keeps of each only what the report needs."""

    def __init__(self) -> None:
        self.not_understood: list[str] = []
        self._rows: dict[tuple[int, int, int, tuple[str, ...]], _Row] = {}
        # Each once, by number: an answer names them a hundred thousand times.
        self._gpus: defaultdict[Gpu, int] = defaultdict(itertools.count().__next__)
        self._dead: set[Gpu] = set()
        self._missing: set[Gpu] = set()
        self._entries = 0
        self._read = 0
        self._largest: RawCommunicator | None = None

    def add(self, raw: RawCommunicator) -> None:
        gpus = set(map(self._gpus.__getitem__, map(_gpu, raw.ranks)))
        self._entries += len(raw.ranks) + len(raw.missing_ranks)
        self._read += 1
        if self._largest is None or raw.size > self._largest.size:
            self._largest = raw
        self._note_missing(raw.missing_ranks)
        states = {status: _state(status) for status in set(map(_status, raw.ranks))}
        launched = list(map(_launched, raw.ranks))
        alike = len(states) == 1 and launched.count(launched[0]) == len(launched)
        errors = () if alike and not raw.missing_ranks and not _wrong(states) else _errors(raw, states)
        per_node = Counter(map(_host, raw.ranks)).values()
        row = self._row(raw.size, len(per_node), max(states.values(), default=0), errors)
        low = min(per_node, default=0)
        row.low = min(row.low, low) if row.communicators else low
        row.high = max(row.high, max(per_node, default=0))
        row.communicators += 1
        row.gpus |= gpus
        if errors or raw.size <= 0:
            row.bad.append(_communicator(raw, states, errors))

    def _row(self, size: int, nodes: int, status: int, errors: tuple[str, ...]) -> _Row:
        key = (size, nodes, status, errors)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row(*key)
        return row

    def _note_missing(self, ranks: list[RawMissing]) -> None:
        for missing in ranks:
            if missing.pid < 0:
                continue
            gpu = (missing.host, missing.pid, missing.cuda_dev, missing.nvml_dev)
            self._gpus.__getitem__(gpu)  # numbers it
            if missing.status.considered_dead:
                self._dead.add(gpu)
            elif missing.status.unresponsive:
                self._missing.add(gpu)

    def report(self) -> RasReport:
        rows = sorted(self._rows.values(), key=_largest_first)
        processes = _processes(self._gpus)
        dead = _processes(self._dead)
        gone = {(process.pid, process.node) for process in dead}
        missing = tuple(one for one in _processes(self._missing) if (one.pid, one.node) not in gone)
        per_node = Counter(process.node for process in processes)
        summary = Summary(
            nodes=len(per_node),
            processes=len(processes),
            gpus=sum(len(process.gpus) for process in processes),
            processes_per_node=span(per_node.values()),
            gpus_per_process=span(len(process.gpus) for process in processes),
        )
        return RasReport(
            format="json",
            summary=summary if processes else None,
            groups=tuple(
                Group(
                    number=number,
                    communicators=row.communicators,
                    nodes=row.nodes,
                    ranks_per_node=Span(row.low, row.high),
                    size=row.size,
                    ranks=len(row.gpus),
                    status=_STATES[row.status],
                    errors=row.errors,
                )
                for number, row in enumerate(rows)
            ),
            communicators=tuple(
                replace(one, group=number) for number, row in enumerate(rows) for one in row.bad
            ),
            processes=processes,
            dead_count=len(dead),
            dead=dead,
            missing_count=len(missing),
            missing=missing,
            largest=_members(self._largest),
            rank_entries=self._entries,
            understood=self._read + 1,
            not_understood=tuple(self.not_understood),
        )


def _wrong(states: Iterable[RawStatus]) -> bool:
    return any(one.init_state not in _FINE or one.async_error not in _FINE for one in states)


def _errors(raw: RawCommunicator, states: dict[RawStatus, int]) -> tuple[str, ...]:
    absent = any(one.status.unresponsive for one in raw.missing_ranks)
    left = any(not one.status.unresponsive for one in raw.missing_ranks)
    apart = any(rank.collective_counts != raw.ranks[0].collective_counts for rank in raw.ranks)
    mismatch = len(set(states.values())) > 1 or (left and bool(raw.ranks)) or apart
    found = ((INCOMPLETE, absent), (ERROR, _wrong(states)), (MISMATCH, mismatch))
    return tuple(name for name, holds in found if holds)


def _largest_first(row: _Row) -> tuple[int, int, int, list[bool]]:
    return (
        -row.size,
        -row.nodes,
        -row.status,
        [name not in row.errors for name in (MISMATCH, ERROR, INCOMPLETE)],
    )


def _state(status: RawStatus) -> int:
    if status.abort_flag:
        return 4
    if status.finalize_called or status.destroy_flag:
        return 3
    return 2 if status.init_state == 0 else 1


def _processes(gpus: Iterable[Gpu]) -> tuple[RasProcess, ...]:
    held: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for host, pid, cuda, nvml in sorted(gpus):
        held.setdefault((host, pid), []).append((cuda, nvml))
    return tuple(
        RasProcess(
            pid=pid,
            node=host,
            gpus=tuple(cuda for cuda, _ in devices),
            nvml=tuple(nvml for _, nvml in devices) if any(c != n for c, n in devices) else (),
        )
        for (host, pid), devices in held.items()
    )


def _rank(raw: RawRank | RawMissing) -> RasRank:
    return RasRank(
        rank=raw.rank,
        gpu=raw.cuda_dev if raw.cuda_dev >= 0 else None,
        nvml=raw.nvml_dev if raw.nvml_dev not in (raw.cuda_dev, -1) else None,
        pid=raw.pid if raw.pid >= 0 else None,
        node=raw.host if raw.host != "unknown" else None,
    )


def _members(raw: RawCommunicator | None) -> tuple[RasRank, ...]:
    if raw is None:
        return ()
    return (*(_rank(one) for one in raw.ranks), *(_rank(one) for one in raw.missing_ranks))


def _named(ranks: list[RasRank]) -> tuple[RasRank, ...]:
    return tuple(ranks[:_NAMED_AT_MOST])


def _communicator(
    raw: RawCommunicator, states: dict[RawStatus, int], errors: tuple[str, ...]
) -> Communicator:
    absent = [_rank(one) for one in raw.missing_ranks if one.status.unresponsive]
    return Communicator(
        hash=f"{_number(raw.hash):016x}",
        group=0,
        size=raw.size,
        errors=errors,
        missing=len(absent),
        missing_ranks=_named(absent),
        rank_errors=(
            *_rank_errors(raw.ranks, "initialization"),
            *_rank_errors(raw.ranks, "asynchronous"),
        ),
        statuses=_status_mismatch(raw, states),
        launches=tuple(_launch_mismatches(raw.ranks)),
        launched=sum(sum(rank.collective_counts.values()) for rank in raw.ranks),
    )


def _number(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


def _rank_errors(
    ranks: list[RawRank], kind: Literal["initialization", "asynchronous"]
) -> tuple[RankErrors, ...]:
    by_code: dict[int, list[RasRank]] = {}
    for rank in ranks:
        code = rank.status.init_state if kind == "initialization" else rank.status.async_error
        if code not in _FINE:
            by_code.setdefault(code, []).append(_rank(rank))
    if not by_code:
        return ()
    shares = tuple(
        Share(_RESULTS.get(code, f"Unknown error {code}"), len(alike), _named(alike))
        for code, alike in sorted(by_code.items(), key=lambda item: -len(item[1]))
    )
    return (RankErrors(kind, sum(share.count for share in shares), shares),)


def _status_mismatch(raw: RawCommunicator, states: dict[RawStatus, int]) -> StatusMismatch | None:
    by_state: dict[int, list[RasRank]] = {}
    for rank in raw.ranks:
        by_state.setdefault(states[rank.status], []).append(_rank(rank))
    left = [_rank(one) for one in raw.missing_ranks if not one.status.unresponsive]
    if left:
        by_state[0] = left
    if len(by_state) < 2:
        return None
    ordered = sorted(by_state.items(), key=lambda item: -len(item[1]))
    return StatusMismatch(tuple(Share(_STATES[state], len(ranks), _named(ranks)) for state, ranks in ordered))


def _launch_mismatches(ranks: list[RawRank]) -> Iterable[LaunchMismatch]:
    operations = list(dict.fromkeys(op for rank in ranks for op in rank.collective_counts))
    for op in operations:
        by_count: dict[int, list[RasRank]] = {}
        for rank in ranks:
            by_count.setdefault(rank.collective_counts.get(op, 0), []).append(_rank(rank))
        if len(by_count) > 1:
            ordered = sorted(by_count.items(), key=lambda item: (-len(item[1]), -item[0]))
            yield LaunchMismatch(op, tuple(LaunchShare(n, len(some), _named(some)) for n, some in ordered))
