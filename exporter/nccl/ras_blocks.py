"""The blocks below Errors and Warnings of a text answer: processes that are gone, bad communicators.

A block begins with a line in column 0 and ends at the next such line: after some there is no blank line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from exporter.nccl.model import (
    UNCLASSIFIED,
    Communicator,
    LaunchMismatch,
    LaunchShare,
    RankErrors,
    RasProcess,
    RasRank,
    Share,
    StatusMismatch,
)

_BLOCK = re.compile(r"#(\d+)-(\d+) \(([0-9a-fA-F]+)\) ([A-Z]+)$")
_PROCESS = re.compile(r"Process (-?\d+) on node (\S+) managing GPUs? (.+)$")
_GPUS = re.compile(r"(\d+(?:,\d+)*)(?: \(NVML (\d+(?:,\d+)*)\))?$")
_TAIL = (
    r"(?: -- (?:GPU (?P<gpu>-?\d+)(?: \(NVML (?P<nvml>-?\d+)\))? managed by process (?P<pid>-?\d+) on node "
    r"(?P<node>\S+)|\[process information not found\]))?$"
)
_RANK = re.compile(r"Rank (?P<rank>-?\d+)" + _TAIL)
_RANK_LIST = re.compile(r"The (?:missing|unknown) ranks?: (\d+(?:, ?\d+)*)$")
_NOT_FOUND = re.compile(r"\[could not find information on (\d+) process(?:es)?\]$")
_MISSING_PROCESSES = re.compile(r"Missing communicator data from (\d+) job process(?:es)?$")
_MISSING_RANKS = re.compile(r"Missing communicator data from (-?\d+) ranks?$")
_DEAD = re.compile(r"(\d+) job process(?:es)? (?:is|are) considered dead\b.*$")
_TIMEOUTS = re.compile(r"Encountered (\d+) communication timeouts? while gathering communicator data$")
_ERRORS_ON = re.compile(r"(Initialization|Asynchronous) errors? on (\d+) ranks?$")
_REPORTED_MANY = re.compile(r"(\d+) ranks reported (.+)$")
_REPORTED_ONE = re.compile(r"Rank (?P<rank>-?\d+) reported (?P<value>.+?)" + _TAIL)
_STATUS_HEAD = re.compile(r"Communicator ranks have different status$")
_STATUS_MANY = re.compile(r"(\d+) ranks? (?:have|has) status (\w+)$")
_STATUS_ONE = re.compile(r"Rank (?P<rank>-?\d+) has status (?P<value>\w+)" + _TAIL)
_LAUNCH_HEAD = re.compile(r"Communicator ranks have different (collective|\w+) operation counts$")
_LAUNCH_MANY = re.compile(
    r"(\d+) ranks? (?:have|has) (?:launched up to operation (\d{1,20})|not launched any operations)$"
)
_LAUNCH_ONE = re.compile(
    r"Rank (?P<rank>-?\d+) has (?:launched up to operation (?P<value>\d{1,20})|not launched any operations)"
    + _TAIL
)


@dataclass
class _Share:
    value: str
    count: int
    ranks: list[RasRank] = field(default_factory=list)


@dataclass
class _Part:
    """A paragraph of a communicator's block: status, one operation, or one kind of error."""

    name: str
    count: int = 0
    shares: list[_Share] = field(default_factory=list)


@dataclass
class _Block:
    """All that is said of one communicator, over both sections."""

    hash: str
    group: int
    errors: list[str] = field(default_factory=list)
    missing: int = 0
    missing_ranks: list[RasRank] = field(default_factory=list)
    rank_errors: list[_Part] = field(default_factory=list)
    statuses: list[_Part] = field(default_factory=list)
    launches: list[_Part] = field(default_factory=list)


class Blocks:
    """Takes the lines of both sections, and knows what was said of each communicator and process."""

    def __init__(self) -> None:
        self.timeouts = 0
        self._blocks: dict[str, _Block] = {}
        self._block: _Block | None = None
        self._kind = ""
        self._part: _Part | None = None
        self._processes: dict[str, list[RasProcess]] = {"DEAD": [], "INCOMPLETE": []}
        self._counts = {"DEAD": 0, "INCOMPLETE": 0}

    def new_section(self) -> None:
        """A heading: what follows belongs to no block until one begins."""
        self._block = None
        self._part = None
        self._kind = ""

    def communicators(self, sizes: dict[int, int]) -> tuple[Communicator, ...]:
        """The bad communicators, in order; `sizes` by group number."""
        return tuple(_communicator(block, sizes.get(block.group)) for block in self._blocks.values())

    def processes(self, kind: str) -> tuple[tuple[RasProcess, ...], int]:
        """The processes that were named in a block `DEAD` or `INCOMPLETE`, and how many there are in all."""
        named = self._processes[kind]
        return tuple(named), max(self._counts[kind], len(named))

    def take(self, line: str) -> bool:
        """Whether the line belongs to a block; then it is taken."""
        if not line.startswith(" "):
            return self._block_heading(line)
        detail = line.strip()
        if self._block is not None:
            return self._about_communicator(detail)
        return self._about_processes(detail)

    def _block_heading(self, line: str) -> bool:
        block = _BLOCK.match(line)
        if block:
            self._part = None
            name = f"{int(block[3], 16):016x}"
            self._block = self._blocks.setdefault(name, _Block(name, int(block[1])))
            self._block.errors.append(block[4])
            self._kind = block[4]
        elif line in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            self._block = self._part = None
            self._kind = line
        else:
            return False  # a line of something else, as where a log holds the answer: the block goes on
        return True

    @property
    def unclosed(self) -> bool:
        """Whether the line taken last is one of launch counts, after which NCCL puts a blank line."""
        return self._kind == "MISMATCH" and self._part is not None and self._part.name != "status"

    def _about_processes(self, detail: str) -> bool:
        process = _PROCESS.match(detail)
        if process and self._kind in self._processes:
            gpus = _GPUS.match(process[3])
            if gpus is None:
                return False
            numbers, nvml = (tuple(int(n) for n in (part or "").split(",") if n) for part in gpus.groups())
            self._processes[self._kind].append(RasProcess(int(process[1]), process[2], numbers, nvml))
            return True
        for kind, pattern in (("INCOMPLETE", _MISSING_PROCESSES), ("DEAD", _DEAD)):
            found = pattern.match(detail)
            if found and self._kind == kind:
                self._counts[kind] = int(found[1])
                return True
        timeouts = _TIMEOUTS.match(detail)
        if timeouts:
            self.timeouts = int(timeouts[1])
            return True
        return bool(_NOT_FOUND.match(detail))

    def _about_communicator(self, detail: str) -> bool:
        assert self._block is not None
        reader = {"INCOMPLETE": self._incomplete, "ERROR": self._error, "MISMATCH": self._mismatch}
        return self._kind in reader and reader[self._kind](self._block, detail)

    def _incomplete(self, block: _Block, detail: str) -> bool:
        count = _MISSING_RANKS.match(detail)
        listed = _RANK_LIST.match(detail)
        rank = _RANK.match(detail)
        if count:
            block.missing = int(count[1])
        elif listed:
            block.missing_ranks.extend(RasRank(int(one)) for one in listed[1].split(","))
        elif rank:
            block.missing_ranks.append(_rank(rank))
        else:
            return bool(_NOT_FOUND.match(detail))
        return True

    def _error(self, block: _Block, detail: str) -> bool:
        head = _ERRORS_ON.match(detail)
        if head:
            self._part = _Part(head[1].lower(), int(head[2]))
            block.rank_errors.append(self._part)
            return True
        return self._share(detail, _REPORTED_MANY, _REPORTED_ONE)

    def _mismatch(self, block: _Block, detail: str) -> bool:
        launches = _LAUNCH_HEAD.match(detail)
        if launches:
            name = launches[1]
            self._part = _Part(UNCLASSIFIED if name == "collective" else name)
            block.launches.append(self._part)
        elif _STATUS_HEAD.match(detail):
            self._part = _Part("status")
            block.statuses.append(self._part)
        elif self._part is not None and self._part.name == "status":
            return self._share(detail, _STATUS_MANY, _STATUS_ONE)
        else:
            return self._share(detail, _LAUNCH_MANY, _LAUNCH_ONE)
        return True

    def _share(self, detail: str, many: re.Pattern[str], one: re.Pattern[str]) -> bool:
        """A line `N ranks …`, `Rank R …`, or a rank named under the line before it."""
        part = self._part
        if part is None:
            return False
        several, single = many.match(detail), one.match(detail)
        if several:
            part.shares.append(_Share(several[2] or "0", int(several[1])))
        elif single:
            value = single.groupdict().get("value") or "0"
            part.shares.append(_Share(value, 1, [_rank(single)]))
        elif not part.shares:
            return False
        else:
            rank, listed = _RANK.match(detail), _RANK_LIST.match(detail)
            if rank:
                part.shares[-1].ranks.append(_rank(rank))
            elif listed:
                ranks = [RasRank(int(number)) for number in listed[1].split(",")]
                known = next((share for share in part.shares if share.value == "UNKNOWN"), None)
                if known is None:
                    known = _Share("UNKNOWN", len(ranks))
                    part.shares.append(known)
                known.ranks.extend(ranks)
            else:
                return bool(_NOT_FOUND.match(detail))
        return True


def _rank(found: re.Match[str]) -> RasRank:
    fields = found.groupdict()
    numbers = {key: int(fields[key]) for key in ("gpu", "nvml", "pid") if fields[key] is not None}
    return RasRank(rank=int(fields["rank"]), node=fields["node"], **numbers)


def _communicator(block: _Block, size: int | None) -> Communicator:
    return Communicator(
        hash=block.hash,
        group=block.group,
        size=size,
        errors=tuple(block.errors),
        missing=max(block.missing, len(block.missing_ranks)),
        missing_ranks=tuple(block.missing_ranks),
        rank_errors=tuple(
            RankErrors(
                "initialization" if part.name == "initialization" else "asynchronous",
                part.count,
                tuple(Share(share.value, share.count, tuple(share.ranks)) for share in part.shares),
            )
            for part in block.rank_errors
        ),
        statuses=next(
            (
                StatusMismatch(
                    tuple(Share(share.value, share.count, tuple(share.ranks)) for share in part.shares)
                )
                for part in block.statuses
            ),
            None,
        ),
        launches=tuple(
            LaunchMismatch(
                part.name,
                tuple(
                    LaunchShare(int(share.value), share.count, tuple(share.ranks)) for share in part.shares
                ),
            )
            for part in block.launches
        ),
    )
