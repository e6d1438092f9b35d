"""What frames mean: from file and function to a kind of activity, and from that to the cause a report names.

The table itself is in `frametable`. A site's own entries go in front of it: see docs/verdict.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

from snapshotter.stacks.model import Frame
from snapshotter.stacks.verdict import Cause

Kind = Literal[
    # Waiting for other ranks.
    "collective",
    "point_to_point",
    "rendezvous",  # not yet, or no longer, connected to the others
    "device",  # for the accelerator, which may itself wait for others
    "backward",  # autograd's engine: it computes, and it waits for the collectives of wrapped modules
    # Own work whose cause is plain, wherever it is called from.
    "dataloader",  # the main process waits for its workers
    "data",
    "checkpoint",
    "compile",
    "debugger",
    "tracking",  # an experiment tracker
    "teardown",
    "garbage",
    # Own work of which an outer frame may tell the purpose.
    "storage",
    "compute",
    "lock",
    "sleep",
    "subprocess",
    "network",
    "user",  # code that the table does not know
    # Says nothing by itself.
    "idle",  # a worker waits for work
    "plumbing",
]

WAITS: frozenset[Kind] = frozenset({"collective", "point_to_point", "rendezvous", "device", "backward"})
DECISIVE: frozenset[Kind] = frozenset(
    {"dataloader", "data", "checkpoint", "compile", "debugger", "tracking", "teardown", "garbage", "idle"}
)

_CAUSES: dict[Kind, Cause] = {
    **dict.fromkeys(WAITS, "communication"),
    "dataloader": "data",
    "data": "data",
    "checkpoint": "checkpoint",
    "compile": "compile",
    "storage": "storage_io",
    "compute": "compute",
    "idle": "none",
    "plumbing": "unknown",
}  # every other kind is the application's own


def cause_of(kind: Kind) -> Cause:
    """The cause that a report names for this kind of activity."""
    return _CAUSES.get(kind, "application")


@dataclass(frozen=True, slots=True)
class Entry:
    """One piece of knowledge; the first that matches a frame counts.

    `path` is a regular expression searched in the file name, `function` one that the function's name, without
    its class, must match as a whole; "" matches everything. `fallback` is what plumbing means where no other
    frame tells more. `unspecific`: a wait that goes together with any collective of the others; of own work, a
    wait for a lock that another rank may hold.
    """

    kind: Kind
    path: str = ""
    function: str = ""
    fallback: Kind | None = None
    unspecific: bool = False


_USER = Entry("user")

_MOST_REMEMBERED = 1 << 16  # frames; a service sees new ones for as long as it lives


@dataclass(slots=True)
class Knowledge:
    """A table of entries with its look-ups remembered. Raises re.error for a bad pattern."""

    entries: tuple[Entry, ...]
    _compiled: list[tuple[Entry, re.Pattern[str] | None, re.Pattern[str] | None]] = field(
        default_factory=list
    )
    _known: dict[tuple[str, str], Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for entry in self.entries:
            path = re.compile(entry.path) if entry.path else None
            function = re.compile(entry.function) if entry.function else None
            self._compiled.append((entry, path, function))

    def look_up(self, frame: Frame) -> Entry:
        """The entry for this frame; one of kind `user` where nothing is known."""
        key = (frame.name, frame.filename)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            found = self._known[key] = self._search(*key)
        return found

    def _search(self, name: str, filename: str) -> Entry:
        function = name.rsplit(".", 1)[-1]
        for entry, path, wanted in self._compiled:
            if (path is None or path.search(filename)) and (wanted is None or wanted.fullmatch(function)):
                return entry
        return _USER


def with_entries(entries: Iterable[Entry]) -> Knowledge:
    """The table with a site's own entries in front. Raises ValueError naming the entry that is wrong."""
    from snapshotter.stacks.frametable import TABLE

    own = tuple(entries)
    for number, entry in enumerate(own):
        if entry.kind not in get_args(Kind):
            raise ValueError(
                f"entry {number}: {entry.kind!r} is no kind of activity: {', '.join(get_args(Kind))}"
            )
        for name, pattern in (("path", entry.path), ("function", entry.function)):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"entry {number}: {name} {pattern!r} is no regular expression: {error}"
                ) from error
        if not entry.path and not entry.function:
            raise ValueError(f"entry {number}: give path or function, else it matches every frame")
    return Knowledge(own + TABLE)
