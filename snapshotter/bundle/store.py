"""Where bundles lie: a folder of this machine, or any object store that fsspec knows.

A bundle is there once its manifest is: a folder is written aside and renamed, objects are written with the
manifest last. Names are checked here, so that nothing from outside becomes a path.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import fsspec

from snapshotter.bundle import schema
from snapshotter.bundle.room import Room, room
from snapshotter.errors import BundleError, NotFound, SnapshotterError

_PARTIAL = ".partial"
# Stores without folders; making one there would make the bucket, which is rather misspelt than missing.
_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss"})


class BundleStore(Protocol):
    """All bundles, by capture id. Every method raises OSError where the store fails."""

    def put(self, capture_id: str, files: dict[str, bytes]) -> bool:
        """Store a bundle whole. One that is there already stays as it is; False then."""

    def replace(self, capture_id: str, name: str, data: bytes) -> None:
        """Exchange one file of a bundle whole."""

    def get(self, capture_id: str, name: str) -> bytes:
        """One file of a bundle. Raises NotFound."""

    def names(self, capture_id: str) -> tuple[str, ...]:
        """The files of a bundle, the manifest first. Raises NotFound."""

    def exists(self, capture_id: str) -> bool:
        """Whether the bundle is there and whole."""

    def size(self, capture_id: str) -> int:
        """Bytes of a bundle."""

    def list(self) -> Iterator[str]:
        """The ids of all whole bundles, in no order."""

    def delete(self, capture_id: str) -> None:
        """Remove a bundle; one that is not there is fine."""

    def sweep(self, min_age: float) -> None:
        """Remove what writers left behind that died, if it is older than so many seconds."""

    def room(self) -> Room | None:
        """The room of the file system below, None where there is no such limit."""


class FolderStore:
    """Bundles as folders of a local file system."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, capture_id: str, files: dict[str, bytes]) -> bool:
        return write_aside(self._root / _check_id(capture_id), files, aside=self._aside())

    def replace(self, capture_id: str, name: str, data: bytes) -> None:
        path = self._path(capture_id, name)
        aside = path.with_name(f".{path.name}.new")
        try:
            _write_synced(aside, data)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        _sync_folder(path.parent)

    def get(self, capture_id: str, name: str) -> bytes:
        try:
            return self._path(capture_id, name).read_bytes()
        except FileNotFoundError:
            raise NotFound(f"the bundle {capture_id} has no {name}") from None

    def names(self, capture_id: str) -> tuple[str, ...]:
        folder = self._root / _check_id(capture_id)
        found = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        return _in_order(capture_id, found)

    def exists(self, capture_id: str) -> bool:
        return self._path(capture_id, schema.MANIFEST).is_file()

    def size(self, capture_id: str) -> int:
        folder = self._root / _check_id(capture_id)
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    def list(self) -> Iterator[str]:
        if not self._root.is_dir():
            return
        for entry in os.scandir(self._root):
            if schema.is_capture_id(entry.name) and self.exists(entry.name):
                yield entry.name

    def delete(self, capture_id: str) -> None:
        folder = self._root / _check_id(capture_id)
        doomed = Path(tempfile.mkdtemp(prefix=f"deleted-{capture_id}-", dir=self._aside()))
        try:
            folder.rename(doomed)  # gone for readers at once, whatever happens to the removal
        except FileNotFoundError:
            pass
        finally:
            shutil.rmtree(doomed, ignore_errors=True)

    def sweep(self, min_age: float) -> None:
        aside = self._root / _PARTIAL
        try:
            left = [entry for entry in os.scandir(aside) if time.time() - entry.stat().st_mtime >= min_age]
        except FileNotFoundError:
            return
        for entry in left:
            shutil.rmtree(entry.path, ignore_errors=True)

    def room(self) -> Room | None:
        self._root.mkdir(parents=True, exist_ok=True)
        return room(self._root)

    def _aside(self) -> Path:
        aside = self._root / _PARTIAL
        aside.mkdir(parents=True, exist_ok=True)
        return aside

    def _path(self, capture_id: str, name: str) -> Path:
        return self._root / _check_id(capture_id) / _check_file(name)


class ObjectStore:
    """Bundles as objects below one prefix of an fsspec file system: `s3://bucket/prefix`, `memory://x`, …"""

    def __init__(self, url: str) -> None:
        """Raises ValueError for an unknown protocol and ImportError where its driver is not installed."""
        # What was listed a moment ago may be different by now: another snapshotter shares the store.
        self._fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        self._has_folders = url.partition("://")[0] not in _BUCKETS
        self._root: str = root.rstrip("/")

    def put(self, capture_id: str, files: dict[str, bytes]) -> bool:
        if self.exists(capture_id):
            return False
        for name, data in sorted(files.items(), key=lambda file: file[0] == schema.MANIFEST):
            self._write(self._key(capture_id, name), data)
        return True

    def replace(self, capture_id: str, name: str, data: bytes) -> None:
        self._write(self._key(capture_id, name), data)

    def get(self, capture_id: str, name: str) -> bytes:
        try:
            with _store_errors():
                data: bytes = self._fs.cat_file(self._key(capture_id, name))
        except FileNotFoundError:
            raise NotFound(f"the bundle {capture_id} has no {name}") from None
        return data

    def names(self, capture_id: str) -> tuple[str, ...]:
        prefix = f"{self._root}/{_check_id(capture_id)}/"
        found = [path.removeprefix(prefix) for path in self._find(capture_id)]
        return _in_order(capture_id, found)

    def exists(self, capture_id: str) -> bool:
        with _store_errors():
            return bool(self._fs.exists(self._key(capture_id, schema.MANIFEST)))

    def size(self, capture_id: str) -> int:
        return sum(entry["size"] for entry in self._find(capture_id).values())

    def list(self) -> Iterator[str]:
        try:
            with _store_errors():
                entries = self._fs.ls(self._root, detail=False, refresh=True)
        except FileNotFoundError:
            return
        for path in entries:
            name = path.rstrip("/").rpartition("/")[2]
            if schema.is_capture_id(name) and self.exists(name):
                yield name

    def delete(self, capture_id: str) -> None:
        self._remove(self._key(capture_id, schema.MANIFEST))  # first: from then on there is no bundle
        for path in self._find(capture_id):
            self._remove(path)

    def sweep(self, min_age: float) -> None:
        """Objects without a manifest stay: they may belong to a capture that is being stored."""

    def room(self) -> Room | None:
        return None

    def _write(self, key: str, data: bytes) -> None:
        with _store_errors():
            if self._has_folders:
                self._fs.makedirs(key.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(key, data)

    def _remove(self, key: str) -> None:
        try:
            with _store_errors():
                self._fs.rm_file(key)
        except FileNotFoundError:
            pass

    def _find(self, capture_id: str) -> dict[str, dict[str, int]]:
        folder = f"{self._root}/{_check_id(capture_id)}"
        with _store_errors():
            found: dict[str, dict[str, int]] = self._fs.find(folder, detail=True)
        return found

    def _key(self, capture_id: str, name: str) -> str:
        return f"{self._root}/{_check_id(capture_id)}/{_check_file(name)}"


def open_store(where: str) -> BundleStore:
    """The store at a path or an fsspec URL. Raises ValueError, ImportError."""
    protocol, separator, rest = where.partition("://")
    if not separator:
        return FolderStore(Path(where))
    return FolderStore(Path(rest)) if protocol == "file" else ObjectStore(where)


@contextlib.contextmanager
def _store_errors() -> Iterator[None]:
    """Turns the errors of a store's driver, which have types of their own, into OSError."""
    try:
        yield
    except (OSError, SnapshotterError):
        raise
    except Exception as error:
        raise OSError(f"the store of bundles fails: {error}") from error


def _check_id(capture_id: str) -> str:
    if not schema.is_capture_id(capture_id):
        raise NotFound(f"{capture_id[:80]!r} is no capture id")
    return capture_id


def _check_file(name: str) -> str:
    if not schema.is_bundle_file(name):
        raise BundleError(f"{name[:80]!r} is no file of a bundle")
    return name


def _in_order(capture_id: str, found: list[str]) -> tuple[str, ...]:
    names = sorted(name for name in found if schema.is_bundle_file(name))
    if schema.MANIFEST not in names:
        raise NotFound(f"there is no bundle {capture_id}")
    return (schema.MANIFEST, *(name for name in names if name != schema.MANIFEST))


def write_aside(target: Path, files: dict[str, bytes], *, aside: Path) -> bool:
    """Write a bundle's folder in `aside`, on the same file system, and rename it; False if `target` is there.

    An empty folder counts as not there. Raises OSError.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        return False
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=aside))
    try:
        for file, data in files.items():
            path = folder / _check_file(file)
            path.parent.mkdir(exist_ok=True)
            _write_synced(path, data)
        for inside in {folder, *(path.parent for path in folder.rglob("*"))}:
            _sync_folder(inside)
        folder.chmod(0o750)
        try:
            folder.rename(target)
        except OSError:
            if target.is_dir() and any(target.iterdir()):
                return False  # another writer was first
            raise
        _sync_folder(target.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return True


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
