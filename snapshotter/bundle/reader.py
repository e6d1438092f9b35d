"""Reading bundles of every version: from a store, or a folder that somebody handed over."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from snapshotter.bundle import schema
from snapshotter.bundle.schema import Manifest, NodeEntry
from snapshotter.bundle.store import BundleStore
from snapshotter.errors import BundleError, NotFound
from snapshotter.stacks.model import JobCapture, NodeAnswer
from snapshotter.stacks.rankset import MAX_RANK

T = TypeVar("T")

# A node's answer is some 100 kB a process at most; this is a bound against a file made to fill the memory.
_MAX_ANSWER_BYTES = 1 << 30


class Bundle:
    """One stored capture; parts are read when they are asked for. All methods raise BundleError, NotFound."""

    def __init__(self, read: Callable[[str], bytes], where: str) -> None:
        self._read = read
        self._where = where

    def manifest(self) -> Manifest:
        manifest = _decode(self._read(schema.MANIFEST), Manifest, f"{self._where}/{schema.MANIFEST}")
        if manifest.schema_version > schema.SCHEMA_VERSION:
            raise BundleError(
                f"{self._where} is of schema version {manifest.schema_version},"
                f" this program reads up to {schema.SCHEMA_VERSION}",
                "read it with a newer hangscope",
            )
        return manifest

    def answers(self) -> Iterator[NodeAnswer]:
        """What every node answered, in the order of the manifest."""
        for entry in self.manifest().nodes:
            yield self.answer(entry)

    def answer(self, entry: NodeEntry) -> NodeAnswer:
        """What a node answered; ranks that only the centre missed there are missed in it, too."""
        answer = _decode(self.answer_bytes(entry), NodeAnswer, f"{self._where}/{entry.file}")
        for process in answer.processes:
            if process.rank is not None and not 0 <= process.rank <= MAX_RANK:
                raise BundleError(f"{self._where}/{entry.file}: it has a process of rank {process.rank}")
        return replace(answer, expected_ranks=entry.expected_ranks or answer.expected_ranks)

    def answer_bytes(self, entry: NodeEntry) -> bytes:
        """The JSON of what a node answered."""
        if not schema.is_bundle_file(entry.file):
            raise BundleError(
                f"{self._where}/{schema.MANIFEST} names {entry.file[:80]!r}, no file of a bundle"
            )
        return _unzip(self._read(entry.file), f"{self._where}/{entry.file}")

    def capture(self) -> JobCapture:
        """What the analysis takes."""
        return JobCapture(job_id=self.manifest().job_id, nodes=tuple(self.answers()))

    def report(self) -> dict[str, Any]:
        """report.json. Raises NotFound where the analysis failed."""
        return _decode(self._read(schema.REPORT), dict[str, Any], f"{self._where}/{schema.REPORT}")

    def report_bytes(self) -> bytes:
        return self._read(schema.REPORT)


def open_bundle(store: BundleStore, capture_id: str) -> Bundle:
    """A bundle of a store; whether it is there shows when it is read."""
    return Bundle(lambda name: store.get(capture_id, name), capture_id)


def open_folder(folder: Path) -> Bundle:
    """A bundle as a folder of any name."""

    def read(name: str) -> bytes:
        place = folder / name
        if place.exists() and not place.is_file():  # a pipe or a device may be read without end
            raise BundleError(f"{place}: cannot be read: not a file")
        try:
            return place.read_bytes()
        except FileNotFoundError:
            raise NotFound(f"{folder} has no {name}") from None
        except OSError as error:
            raise BundleError(f"{place}: cannot be read: {error.strerror}") from error

    return Bundle(read, str(folder))


def is_bundle(folder: Path) -> bool:
    return (folder / schema.MANIFEST).is_file()


def _decode(data: bytes, wanted: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(data, type=wanted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"{where}: not what a bundle holds: {error}") from error


def _unzip(data: bytes, where: str) -> bytes:
    reader = zlib.decompressobj(wbits=31)  # much quicker on small files than gzip.open
    try:
        plain = reader.decompress(data, _MAX_ANSWER_BYTES)
    except zlib.error as error:
        raise BundleError(f"{where}: not a gzip file: {error}") from error
    if not reader.eof:
        raise BundleError(f"{where}: cut short, or larger than {_MAX_ANSWER_BYTES} bytes unpacked")
    return plain
