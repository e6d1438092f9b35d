"""The text form of a RAS answer, of every version from 2.24 on, and the lines of a session around it.

Pure: takes the answer, gives a RasReport. Nothing is guessed: a line that fits no known form is handed back
in `not_understood`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from exporter.nccl.model import (
    MISMATCH,
    Communicator,
    Event,
    Group,
    RasProcess,
    RasReport,
    Span,
    Summary,
    span,
)
from exporter.nccl.ras_blocks import Blocks
from exporter.nccl.sanity import without_nonsense

_SESSION = re.compile(r"SERVER PROTOCOL \d+$|OK$")
_SERVER_ERROR = re.compile(r"(?:ERROR|BUSY): ")
_EVENT = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] (\w+): ?(.*)")
_DIAGNOSTIC = re.compile(r"\S+:\d+ NCCL DIAG ")
_VERSION = re.compile(r"(?:N|R)CCL version (\S.*?) compiled with (?:\w+ )?\S+$")
_RUNTIME = re.compile(r"\w+ runtime version (-?\d+), driver version (-?\d+)$")
# Numbers may be negative where NCCL prints memory that is none of its figures (see sanity.py).
_COMMUNICATORS = re.compile(r"Communicators\.\.\.(.*)$")
_SECONDS = re.compile(r" ?\((\d{1,9}(?:\.\d+)?)s\)$")
_ROW = re.compile(
    r"\s*(\d+)\s+(\d+)\s+(-?\d+)\s+(-?\d+)(?:-(-?\d+))?\s+(-?\d+)\s+(-?\d+)"
    r"\s+([A-Z]+)\s+([A-Z]+(?:,[A-Z]+)*)\s*$"
)
_SUMMARY_WORDS = frozenset({"Nodes", "Processes", "GPUs", "(total)", "per", "node", "process"})
_TABLE_WORDS = frozenset(
    {"Group", "Comms", "Nodes", "Ranks", "Status", "Errors", "#", "in", "group", "per", "comm", "node"}
)
_OUTLIERS = re.compile(r"The outlier nodes?:$|  Node \S+ running process(?:es)? [\d,]+$")


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


class _Reader:
    """Reads line by line; each method of a section says whether it took the line."""

    def __init__(self) -> None:
        self._section: Callable[[str], bool] = self._nothing
        self._events: list[Event] = []
        self._server_errors: list[str] = []
        self._not_understood: list[str] = []
        self._understood = 0
        self._start()

    def _start(self) -> None:
        """Forget a report that was begun: a second question's answer can be spliced into the first."""
        self._version: str | None = None
        self._runtime: int | None = None
        self._driver: int | None = None
        self._heading: list[str] = []
        self._totals: tuple[int, int, int] | None = None
        self._per_node: list[int] = []
        self._per_process: list[int] = []
        self._seconds: float | None = None
        self._groups: list[Group] = []
        self._blocks = Blocks()
        self._warnings_seen = False
        self._unclosed = False

    def read(self, line: str) -> None:
        if self._take(line):
            self._understood += bool(line.strip())
            self._unclosed = bool(line.strip()) and self._blocks.unclosed
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
        try:
            return self._session(line) or self._headings(line) or self._section(line)
        except ValueError:  # a number of more digits than Python reads is none of NCCL's
            return False

    def _nothing(self, line: str) -> bool:
        """Outside of any section: parts of an answer that were copied without their headings."""
        words = line.split()
        if "Nodes" in words and set(words) <= _SUMMARY_WORDS:
            self._section = self._summary
            return self._summary(line)
        return self._table_heading(words) or self._begin_block(line)

    def _session(self, line: str) -> bool:
        event = _EVENT.match(line)
        if event:
            self._events.append(Event(event[1], event[2], event[3].strip()))
        elif _SERVER_ERROR.match(line):
            self._server_errors.append(line)
        else:
            return bool(_SESSION.match(line) or _DIAGNOSTIC.match(line))
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
            self._version = version[1]
            self._section = self._nothing
        elif runtime:
            self._runtime, self._driver = int(runtime[1]), int(runtime[2])
        elif line == "Job summary":
            self._section = self._summary
        elif line in ("Errors", "Warnings"):
            self._section = self._blocks.take
            self._blocks.new_section()
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
            or self._begin_block(line)
        )

    def _begin_block(self, line: str) -> bool:
        """A block without the heading of its section."""
        if not self._blocks.take(line):
            return False
        self._section = self._blocks.take
        return True

    def report(self, cut: bool) -> RasReport:
        summary = None
        if self._totals is not None:
            summary = Summary(*self._totals, span(self._per_node), span(self._per_process))
        communicators = self._blocks.communicators({group.number: group.size for group in self._groups})
        dead, dead_count = self._blocks.processes("DEAD")
        missing, missing_count = self._blocks.processes("INCOMPLETE")
        report = RasReport(
            format="text",
            nccl_version=self._version,
            cuda_runtime=self._runtime,
            cuda_driver=self._driver,
            summary=summary,
            groups=tuple(self._groups),
            communicators=communicators,
            processes=tuple(dict.fromkeys([*dead, *missing, *_named(communicators)])),
            dead_count=dead_count,
            dead=dead,
            missing_count=missing_count,
            missing=missing,
            timeouts=self._blocks.timeouts,
            collection_seconds=self._seconds,
            events=tuple(self._events),
            server_errors=tuple(self._server_errors),
            understood=self._understood,
            not_understood=tuple(self._not_understood),
        )
        ended = self._warnings_seen and not cut and not self._unclosed
        return replace(report, complete=ended and _all_blocks_there(report))


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
    return all(map(_whole, report.communicators))


def _whole(communicator: Communicator) -> bool:
    """Whether a mismatch is told to its end: of all ranks, and of those of a share all or none by name."""
    if MISMATCH not in communicator.errors or not communicator.size:  # of size 0: no communicator (sanity.py)
        return True
    statuses = () if communicator.statuses is None else communicator.statuses.shares
    parts = [part for part in (communicator.statuses, *communicator.launches) if part is not None]
    if not parts or not all(part.shares for part in parts):
        return False
    if any(0 < len(share.ranks) < share.count for part in parts for share in part.shares):
        return False
    told = [sum(share.count for share in part.shares) for part in parts]
    absent = sum(part.count for part in statuses if part.value in ("NOCOMM", "UNKNOWN"))
    expected = communicator.size - communicator.missing - absent
    return all(count >= expected for count in told)
