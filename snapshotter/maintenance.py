"""What an operator runs by hand: `gc` deletes what has expired, `reindex` rebuilds the index from bundles.

Both may run beside the service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from snapshotter import app
from snapshotter.bundle.index import Index
from snapshotter.bundle.reader import open_bundle
from snapshotter.bundle.retention import collect
from snapshotter.bundle.schema import Manifest
from snapshotter.bundle.store import BundleStore
from snapshotter.config import Config
from snapshotter.errors import CannotStore, SnapshotterError
from snapshotter.incidents import Incident

_LEFT_BEHIND_AFTER = 3600.0


@dataclass(frozen=True, slots=True)
class Reindexed:
    """What a rebuild found."""

    entered: int
    forgotten: int  # entries whose bundle is gone
    damaged: tuple[str, ...]  # one line each: bundles that cannot be read, left as they are


def gc(config: Config, folder: Path, *, now: Callable[[], float], out: TextIO) -> int:
    """The `gc` command; `folder` is `--storage.path`. Raises CannotStore, OSError. Exit status 0."""
    index, store = _open(config, folder)
    try:
        limits = config.storage
        gone = collect(index, store, now=now(), keep_seconds=limits.keep, max_bytes=limits.max_size)
        store.sweep(_LEFT_BEHIND_AFTER)
        for record in gone:
            print(f"{record.capture_id} deleted, {record.bytes} bytes", file=out)
        print(f"{len(gone)} captures deleted, {index.total_bytes()} bytes remain", file=out)
    finally:
        index.close()
    return 0


def reindex(config: Config, folder: Path, *, out: TextIO) -> int:
    """The `reindex` command. Raises CannotStore, OSError. Exit status 1 where a bundle is damaged."""
    index, store = _open(config, folder)
    try:
        result = rebuild(index, store)
    finally:
        index.close()
    for line in result.damaged:
        print(f"left out: {line}", file=out)
    print(f"{result.entered} bundles entered, {result.forgotten} entries without a bundle removed", file=out)
    return 1 if result.damaged else 0


def _open(config: Config, folder: Path) -> tuple[Index, BundleStore]:
    """What the service has; a folder that is not there is another than the service's. Raises CannotStore."""
    needed = config.storage.index is None or config.storage.bundles is None
    if needed and not folder.is_dir():
        raise CannotStore(f"--storage.path {folder}: no such folder", "name the one that the service has")
    return app.open_index(config, folder), app.open_bundles(config, folder)


def rebuild(index: Index, store: BundleStore) -> Reindexed:
    """Enter every bundle of the store into the index and drop entries whose bundle is gone.

    Incidents that the index does not know come back closed, so that their cool-down still holds.
    """
    manifests: list[Manifest] = []
    damaged: list[str] = []
    for capture_id in sorted(store.list()):
        try:
            manifest = open_bundle(store, capture_id).manifest()
            if manifest.capture_id != capture_id:
                raise SnapshotterError(f"{capture_id}: its manifest is that of {manifest.capture_id[:80]!r}")
        except SnapshotterError as error:
            damaged.append(error.message)
            continue
        index.adopt(manifest, store.size(capture_id))
        manifests.append(manifest)
    known = {manifest.capture_id for manifest in manifests}
    lost = [
        one.capture_id
        for one in index.finished()
        if one.has_bundle and one.capture_id not in known and not store.exists(one.capture_id)
    ]
    for capture_id in lost:
        index.delete(capture_id)
    index.restore(_incidents(manifests))
    return Reindexed(entered=len(manifests), forgotten=len(lost), damaged=tuple(damaged))


def _incidents(manifests: Iterable[Manifest]) -> tuple[Incident, ...]:
    """The incidents behind captures, as far as manifests tell."""
    found: dict[str, list[Manifest]] = {}
    for manifest in manifests:
        if manifest.request.incident_id is not None:
            found.setdefault(manifest.request.incident_id, []).append(manifest)
    return tuple(
        Incident(
            id=incident_id,
            job_id=captures[0].request.job_id,
            opened_at=captures[0].request.requested_at,
            last_seen_at=captures[-1].request.requested_at,
            closed_at=captures[-1].finished_at,
            captures=max(one.request.number for one in captures),
            last_capture_at=captures[-1].request.requested_at,
        )
        for incident_id, captures in found.items()
    )
