"""The text form of a RAS answer, of every version from 2.24 on, and the lines of a session around it.

Pure: takes the answer, gives a RasReport. Nothing is guessed: a line that fits no known form is handed back
in `not_understood`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from exporter.nccl.model import (
    UNCLASSIFIED,
    Communicator,
    Event,
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
from exporter.nccl.sanity import without_nonsense

_SESSION = re.compile(r"SERVER PROTOCOL \d+$|OK$")
_SERVER_ERROR = re.compile(r"(?:ERROR|BUSY): ")
_EVENT = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] (\w+): ?(.*)")
_DIAGNOSTIC = re.compile(r"\S+:\d+ NCCL DIAG ")
_VERSION = re.compile(r"(?:N|R)CCL version (\S.*?) compiled with (?:\w+ )?(\S+)$")
_RUNTIME = re.compile(r"\w+ runtime version (-?\d+), driver version (-?\d+)$")
# Numbers may be negative where NCCL prints memory that is none of its figures (see sanity.py).
_COMMUNICATORS = re.compile(r"Communicators\.\.\.(.*)$")
_SECONDS = re.compile(r" ?\((\d+(?:\.\d+)?)s\)$")
_ROW = re.compile(
    r"\s*(\d+)\s+(\d+)\s+(-?\d+)\s+(-?\d+)(?:-(-?\d+))?\s+(-?\d+)\s+(-?\d+)"
    r"\s+([A-Z]+)\s+([A-Z]+(?:,[A-Z]+)*)\s*$"
)
_BLOCK = re.compile(r"#(\d+)-(\d+) \(([0-9a-fA-F]+)\) ([A-Z]+)$")
_SUMMARY_WORDS = frozenset({"Nodes", "Processes", "GPUs", "(total)", "per", "node", "process"})
_TABLE_WORDS = frozenset(
    {"Group", "Comms", "Nodes", "Ranks", "Status", "Errors", "#", "in", "group", "per", "comm", "node"}
)
_OUTLIERS = re.compile(r"The outlier nodes?:$|  Node \S+ running process(?:es)? [\d,]+$")

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
    r"(\d+) ranks? (?:have|has) (?:launched up to operation (\d+)|not launched any operations)$"
)
_LAUNCH_ONE = re.compile(
    r"Rank (?P<rank>-?\d+) has (?:launched up to operation (?P<value>\d+)|not launched any operations)"
    + _TAIL
)


def parse_text(text: str) -> RasReport:
    """Understand a text answer. Never raises on any input."""
    reader = _Reader()
    lines = text.split("\n")
    unfinished = lines.pop()  # empty where the answer ends with a newline
    for line in lines:
        reader.read(line.removesuffix("\r"))
    if unfinished:
        reader.read_cut(unfinished)
    return without_nonsense(reader.report(cut=bool(unfinished)))


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


class _Reader:
    """Reads line by line; each method of a section says whether it took the line."""

    def __init__(self) -> None:
        self._section: Callable[[str], bool] = self._nothing
        self._events: list[Event] = []
        self._diagnostics: list[str] = []
        self._server_errors: list[str] = []
        self._not_understood: list[str] = []
        self._understood = 0
        self._start()

    def _start(self) -> None:
        """Forget a report that was begun: a second question's answer can be spliced into the first."""
        self._version: str | None = None
        self._cuda: str | None = None
        self._runtime: int | None = None
        self._driver: int | None = None
        self._heading: list[str] = []
        self._totals: tuple[int, int, int] | None = None
        self._per_node: list[int] = []
        self._per_process: list[int] = []
        self._seconds: float | None = None
        self._groups: list[Group] = []
        self._blocks: dict[str, _Block] = {}
        self._block: _Block | None = None
        self._kind = ""
        self._part: _Part | None = None
        self._processes: dict[str, list[RasProcess]] = {"DEAD": [], "INCOMPLETE": []}
        self._counts = {"DEAD": 0, "INCOMPLETE": 0}
        self._timeouts = 0
        self._warnings_seen = False

    def read(self, line: str) -> None:
        if self._take(line):
            self._understood += bool(line.strip())
        else:
            self._not_understood.append(line)

    def read_cut(self, line: str) -> None:
        """The last line of an answer that does not end with a newline: half a line is no riddle."""
        if self._take(line):
            self._understood += bool(line.strip())
        elif self._version is None:
            self._not_understood.append(line)

    def _take(self, line: str) -> bool:
        if not line.strip() or set(line) == {"="}:
            return True
        return self._session(line) or self._headings(line) or self._section(line)

    def _nothing(self, line: str) -> bool:
        """Outside of any section: parts of an answer that were copied without their headings."""
        words = line.split()
        if "Nodes" in words and set(words) <= _SUMMARY_WORDS:
            self._section = self._summary
            return self._summary(line)
        return self._table_heading(words) or self._block_heading(line)

    def _session(self, line: str) -> bool:
        event = _EVENT.match(line)
        if event:
            self._events.append(Event(event[1], event[2], event[3].strip()))
        elif _SERVER_ERROR.match(line):
            self._server_errors.append(line)
        elif _DIAGNOSTIC.match(line):
            self._diagnostics.append(line)
        else:
            return bool(_SESSION.match(line))
        return True

    def _headings(self, line: str) -> bool:
        communicators = _COMMUNICATORS.match(line)
        if communicators:
            self._section = self._table
            return self._after_communicators(communicators[1])
        version = _VERSION.match(line)
        runtime = _RUNTIME.match(line)
        if version:
            self._start()
            self._version, self._cuda = version[1], version[2]
            self._section = self._nothing
        elif runtime:
            self._runtime, self._driver = int(runtime[1]), int(runtime[2])
        elif line == "Job summary":
            self._section = self._summary
        elif line in ("Errors", "Warnings"):
            self._section = self._details
            self._block = None
            self._part = None
            self._kind = ""
            self._warnings_seen = line == "Warnings"
        else:
            return False
        return True

    def _after_communicators(self, rest: str) -> bool:
        """What follows the dots: the seconds, nothing in a cut answer, or the next answer spliced in."""
        if not rest:
            return True
        seconds = _SECONDS.match(rest)
        if seconds:
            self._seconds = float(seconds[1])
            return True
        return self._session(rest) or self._headings(rest)

    def _summary(self, line: str) -> bool:
        if _OUTLIERS.match(line):
            return True  # the pids in it are wrong where several kinds of nodes differ: not used
        words = line.split()
        if not all(word.isdecimal() for word in words):
            self._heading.extend(words)
            return self._table_heading(words) or set(words) <= _SUMMARY_WORDS
        numbers = [int(word) for word in words]
        total, node, process = (word in self._heading for word in ("(total)", "node", "process"))
        if len(numbers) == 5:
            self._totals = (numbers[0], numbers[3], numbers[4])
            self._per_node.append(numbers[1])
            self._per_process.append(numbers[2])
        elif len(numbers) == 3 and total:
            self._totals = (numbers[0], numbers[1], numbers[2])
        elif len(numbers) == 3 and node:
            self._per_node.append(numbers[1])
            self._per_process.append(numbers[2])
        elif len(numbers) == 2 and process:
            self._per_process.append(numbers[1])
        elif len(numbers) == 2 and node:
            self._per_node.append(numbers[1])
        else:
            return False
        return True

    def _table_heading(self, words: list[str]) -> bool:
        if words and words[0] == "Group" and set(words) <= _TABLE_WORDS:
            self._section = self._table
            return True
        return False

    def _table(self, line: str) -> bool:
        row = _ROW.match(line)
        if row:
            low = int(row[4])
            errors = () if row[9] == "OK" else tuple(row[9].split(","))
            self._groups.append(
                Group(
                    number=int(row[1]),
                    communicators=int(row[2]),
                    nodes=int(row[3]),
                    ranks_per_node=Span(low, int(row[5] or low)),
                    size=int(row[6]),
                    ranks=int(row[7]),
                    status=row[8],
                    errors=errors,
                )
            )
            return True
        if _SECONDS.match(line):  # pushed onto a line of its own by what was spliced in before it
            return self._after_communicators(line)
        return (
            line == "No communicator data collected!"
            or set(line.split()) <= _TABLE_WORDS
            or self._details(line)
        )

    def _details(self, line: str) -> bool:
        if not line.startswith(" "):
            return self._block_heading(line)
        detail = line.strip()
        if self._block is not None:
            return self._about_communicator(detail)
        return self._about_processes(detail)

    def _block_heading(self, line: str) -> bool:
        self._part = None
        block = _BLOCK.match(line)
        if block:
            name = f"{int(block[3], 16):016x}"
            self._block = self._blocks.setdefault(name, _Block(name, int(block[1])))
            self._block.errors.append(block[4])
            self._kind = block[4]
        elif line in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            self._block = None
            self._kind = line
        else:
            return False
        self._section = self._details
        return True

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
            self._timeouts = int(timeouts[1])
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

    def report(self, cut: bool) -> RasReport:
        summary = None
        if self._totals is not None:
            summary = Summary(*self._totals, span(self._per_node), span(self._per_process))
        sizes = {group.number: group.size for group in self._groups}
        communicators = tuple(
            replace(_communicator(block), size=sizes.get(block.group)) for block in self._blocks.values()
        )
        dead, missing = self._processes["DEAD"], self._processes["INCOMPLETE"]
        report = RasReport(
            format="text",
            nccl_version=self._version,
            cuda_version=self._cuda,
            cuda_runtime=self._runtime,
            cuda_driver=self._driver,
            summary=summary,
            groups=tuple(self._groups),
            communicators=communicators,
            processes=tuple(dict.fromkeys([*dead, *missing, *_named(communicators)])),
            dead_count=max(self._counts["DEAD"], len(dead)),
            dead=tuple(dead),
            missing_count=max(self._counts["INCOMPLETE"], len(missing)),
            missing=tuple(missing),
            timeouts=self._timeouts,
            collection_seconds=self._seconds,
            events=tuple(self._events),
            diagnostics=tuple(self._diagnostics),
            server_errors=tuple(self._server_errors),
            understood=self._understood,
            not_understood=tuple(self._not_understood),
        )
        return replace(report, complete=self._warnings_seen and not cut and _all_blocks_there(report))


def _rank(found: re.Match[str]) -> RasRank:
    fields = found.groupdict()
    numbers = {key: int(fields[key]) for key in ("gpu", "nvml", "pid") if fields[key] is not None}
    return RasRank(rank=int(fields["rank"]), node=fields["node"], **numbers)


def _communicator(block: _Block) -> Communicator:
    return Communicator(
        hash=block.hash,
        group=block.group,
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


def _named(communicators: tuple[Communicator, ...]) -> list[RasProcess]:
    """The processes that rank lines named."""
    found: dict[tuple[int, str], set[int]] = {}
    for communicator in communicators:
        for rank in communicator.named:
            if rank.pid is not None and rank.node is not None:
                gpus = found.setdefault((rank.pid, rank.node), set())
                if rank.gpu is not None:
                    gpus.add(rank.gpu)
    return [RasProcess(pid, node, tuple(sorted(gpus))) for (pid, node), gpus in found.items()]


def _all_blocks_there(report: RasReport) -> bool:
    """Whether each communicator that the table calls bad is explained: not so in an answer cut late."""
    for kind in ("INCOMPLETE", "ERROR", "MISMATCH"):
        announced = sum(group.communicators for group in report.groups if kind in group.errors)
        explained = sum(kind in communicator.errors for communicator in report.communicators)
        if explained < announced:
            return False
    return True
