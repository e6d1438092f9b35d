"""Which captures are to go: by age, and by size once all bundles together pass the cap. Pinned ones stay."""

from __future__ import annotations

from collections.abc import Sequence

from snapshotter.bundle.index import CaptureRecord, Index
from snapshotter.bundle.store import BundleStore


def expired(
    records: Sequence[CaptureRecord], *, now: float, keep_seconds: float, max_bytes: int
) -> tuple[CaptureRecord, ...]:
    """The captures to delete, oldest first. `records` are all finished ones, oldest first.

    Pinned captures count for the size but never go: with too many of them the cap is passed.
    """
    total = sum(one.bytes for one in records)
    gone: list[CaptureRecord] = []
    for record in records:
        if record.pinned:
            continue
        ended = record.request.requested_at if record.finished_at is None else record.finished_at
        too_much = total > max_bytes and record.bytes > 0
        if now - ended > keep_seconds or too_much:
            gone.append(record)
            total -= record.bytes
    return tuple(gone)


def collect(
    index: Index, store: BundleStore, *, now: float, keep_seconds: float, max_bytes: int
) -> tuple[CaptureRecord, ...]:
    """Delete what has expired; returns what went. Raises OSError, CannotStore."""
    gone = expired(index.finished(), now=now, keep_seconds=keep_seconds, max_bytes=max_bytes)
    for record in gone:
        store.delete(record.capture_id)
        index.delete(record.capture_id)
    return gone
