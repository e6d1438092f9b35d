"""What NCCL's RAS service says about a job, as frozen data: the same for the text and the JSON form.

Words are RAS's own: a *process* is a RAS peer, a *node* the address of a bootstrap interface, a
*communicator* is known by its 16-digit hash, a *group* is a row of the text table (communicators that look
alike). Field facts are from the NCCL source, 2.24.3 to 2.30.7, and answers of 2.24.3 to 2.32.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Format = Literal["text", "json"]

INCOMPLETE = "INCOMPLETE"
ERROR = "ERROR"
MISMATCH = "MISMATCH"

UNCLASSIFIED = "collective"
"""Operation name of 2.24 and 2.25, which count all collectives of a rank in one number."""


class Version(NamedTuple):
    """An NCCL version that compares as numbers do; a suffix such as `+cuda12.9` is not part of it."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def parse_version(text: str | None) -> Version | None:
    """`2.27.3`, `2.29.2rc1`, `2.30.7+cuda12.9`; None where there is no such number."""
    found = re.match(r"\s*v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?(?!\d)", text or "")
    return Version(int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


@dataclass(frozen=True, slots=True)
class Span:
    """A figure that may differ between nodes or processes: lowest and highest."""

    low: int
    high: int

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


def span(numbers: Iterable[int]) -> Span | None:
    """The span of some numbers; None where there are none."""
    some = list(numbers)
    return Span(min(some), max(some)) if some else None


class RasProcess(NamedTuple):
    """A RAS peer. `gpus` are CUDA device numbers, `nvml` their physical numbers where the two differ."""

    pid: int
    node: str
    gpus: tuple[int, ...] = ()
    nvml: tuple[int, ...] = ()


class RasRank(NamedTuple):
    """A rank of one communicator (not a world rank) and the process that owns it, as far as it was named."""

    rank: int
    gpu: int | None = None
    nvml: int | None = None  # None: the same as `gpu`, or unknown
    pid: int | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """The job as RAS counts it: every peer ever seen, dead ones included.

    From JSON it is derived, and processes that hold no communicator are not in it.
    """

    nodes: int
    processes: int
    gpus: int
    processes_per_node: Span | None = None
    gpus_per_process: Span | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A row of the table: communicators of equal size, nodes, status and errors. `number` is no identity."""

    number: int
    communicators: int
    nodes: int
    ranks_per_node: Span
    size: int
    ranks: int  # distinct GPUs of the group that answered
    status: str
    errors: tuple[str, ...]  # empty: OK


@dataclass(frozen=True, slots=True)
class Share:
    """Ranks of a communicator that are alike in something. `ranks` may be fewer than `count`, or none."""

    value: str
    count: int
    ranks: tuple[RasRank, ...] = ()


@dataclass(frozen=True, slots=True)
class StatusMismatch:
    """Ranks of one communicator in different states; `shares` by state."""

    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class LaunchShare:
    """Ranks of a communicator that launched the same number of collectives of one kind."""

    launched: int
    count: int
    ranks: tuple[RasRank, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchMismatch:
    """Ranks of one communicator that launched different numbers of `op` (`AllReduce`, … or `collective`)."""

    op: str
    shares: tuple[LaunchShare, ...]

    @property
    def lag(self) -> int:
        """Highest minus lowest launch count."""
        counts = [share.launched for share in self.shares]
        return max(counts) - min(counts) if counts else 0

    @property
    def behind(self) -> tuple[RasRank, ...]:
        """The named ranks that launched fewer than the rank furthest ahead."""
        highest = max((share.launched for share in self.shares), default=0)
        return tuple(rank for share in self.shares if share.launched < highest for rank in share.ranks)


@dataclass(frozen=True, slots=True)
class RankErrors:
    """Errors that ranks of a communicator reported; `shares` by the error's name. `count` of the heading."""

    kind: Literal["initialization", "asynchronous"]
    count: int
    shares: tuple[Share, ...] = ()


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator with something wrong; sound ones are only counted, in their group."""

    hash: str  # 16 hex digits
    group: int
    size: int | None = None
    errors: tuple[str, ...] = ()
    missing: int = 0  # ranks whose process gave no data
    missing_ranks: tuple[RasRank, ...] = ()  # those of them that were named
    rank_errors: tuple[RankErrors, ...] = ()
    statuses: StatusMismatch | None = None
    launches: tuple[LaunchMismatch, ...] = ()
    launched: int | None = None  # sum of all counters over all ranks that answered; JSON only

    @property
    def named(self) -> tuple[RasRank, ...]:
        """All its ranks that the answer names, some perhaps twice."""
        shares = [share.ranks for part in self.rank_errors for share in part.shares]
        if self.statuses is not None:
            shares += [share.ranks for share in self.statuses.shares]
        shares += [share.ranks for part in self.launches for share in part.shares]
        return (*self.missing_ranks, *(rank for ranks in shares for rank in ranks))

    @property
    def mismatched(self) -> bool:
        return self.statuses is not None or bool(self.launches)


@dataclass(frozen=True, slots=True)
class Event:
    """A line of monitor mode (2.29 and later)."""

    time: str
    name: str
    subject: str


@dataclass(frozen=True, slots=True)
class RasReport:
    """One answer, understood.

    `complete`: the end was seen. `corrupt`: figures in it are provably wrong (known faults of NCCL), then the
    table they came from is left out, or the impossible entries alone: `dropped` counts those.
    """

    format: Format
    nccl_version: str | None = None
    cuda_runtime: int | None = None  # 1000 major + 10 minor
    cuda_driver: int | None = None
    complete: bool = False
    summary: Summary | None = None
    groups: tuple[Group, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    processes: tuple[RasProcess, ...] = ()  # all of them with JSON; with text those that were named
    dead_count: int = 0
    dead: tuple[RasProcess, ...] = ()
    missing_count: int = 0
    missing: tuple[RasProcess, ...] = ()  # gave no data, not yet considered dead
    timeouts: int = 0
    collection_seconds: float | None = None
    largest: tuple[RasRank, ...] = ()  # JSON: all ranks of the largest communicator, as a rule the world
    rank_entries: int = 0  # JSON: what one question costs the trainer in leaked entries
    corrupt: bool = False
    dropped: int = 0
    events: tuple[Event, ...] = ()
    server_errors: tuple[str, ...] = ()
    understood: int = 0  # lines or objects that were
    not_understood: tuple[str, ...] = ()

    @property
    def tables_trusted(self) -> bool:
        """Whether the communicator table may be acted on.

        The text table of 2.26 to 2.29.1 is walked wrongly where several communicators coincide with a missing
        process (NVIDIA/nccl#1762), even where nothing in it looks odd.
        """
        if self.corrupt:
            return False
        version = parse_version(self.nccl_version)
        if self.format == "json" or version is None or not (2, 26, 0) <= version < (2, 29, 2):
            return True
        troubled = bool(self.dead_count or self.missing_count) or any(
            INCOMPLETE in group.errors for group in self.groups
        )
        return not troubled or sum(group.communicators for group in self.groups) <= 1
