"""The list of captures: finding those that match the reader's filter, page by page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from snapshotter.bundle.index import CaptureRecord

PAGE = 50
_BATCH = 200
_MOST_LOOKED_AT = 4_000


@dataclass(frozen=True, slots=True)
class Filter:
    """What the reader wants to see; empty and None mean all. Days are whole days of UTC, both included."""

    job: str = ""
    cause: str = ""
    since: date | None = None
    until: date | None = None
    before: str = ""  # id of the last capture of the page before

    @property
    def is_empty(self) -> bool:
        return not (self.job or self.cause or self.since or self.until)


@dataclass(frozen=True, slots=True)
class Listed:
    """One page; `older` is the id to go on from, "" at the end."""

    records: tuple[CaptureRecord, ...]
    older: str


# (job id or None, before this id or None, how many) -> captures, newest first
Lookup = Callable[[str | None, str | None, int], tuple[CaptureRecord, ...]]


def find(lookup: Lookup, wanted: Filter, *, known_jobs: frozenset[str]) -> Listed:
    """The page of captures that match. A job is matched whole if it is known, else by a part of its name."""
    job = wanted.job if wanted.job in known_jobs else None
    part = "" if job else wanted.job.lower()
    cursor: str | None = wanted.before or None
    if cursor is None and wanted.until is not None and wanted.until < date.max:
        after = wanted.until + timedelta(days=1)
        cursor = after.isoformat().replace("-", "") + "T000000Z"  # ids sort by time
    since = None if wanted.since is None else datetime(*wanted.since.timetuple()[:3], tzinfo=UTC).timestamp()
    kept: list[CaptureRecord] = []
    looked_at = 0
    while looked_at < _MOST_LOOKED_AT:
        batch = lookup(job, cursor, _BATCH)
        for record in batch:
            cursor = record.capture_id
            if since is not None and record.request.requested_at < since:
                return Listed(tuple(kept), "")
            if _matches(record, part, wanted.cause):
                kept.append(record)
                if len(kept) == PAGE:
                    return Listed(tuple(kept), cursor if lookup(job, cursor, 1) else "")
        looked_at += len(batch)
        if len(batch) < _BATCH:
            return Listed(tuple(kept), "")
    return Listed(tuple(kept), cursor or "")


def _matches(record: CaptureRecord, part: str, cause: str) -> bool:
    if part and part not in record.job_id.lower():
        return False
    return not cause or (record.verdict is not None and record.verdict.cause == cause)


def day(text: str) -> date | None:
    """A date as browsers send it. Raises ValueError."""
    return date.fromisoformat(text) if text else None
