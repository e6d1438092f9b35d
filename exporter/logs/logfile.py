"""Following one log file through rotation, truncation, deletion and symlink swaps: every byte once, in order.

A file is held open while it is followed, so that its inode cannot be used again under us. Nothing is watched by
inotify, which is blind to remote writers on NFS and Lustre: each poll asks for the size.
"""

from __future__ import annotations

import errno
import os
import stat as modes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PIECE = 1 << 20
_FINGERPRINT = 64  # bytes before the offset by which the content is known again
_LINGER = 60.0  # seconds for which a file that was rotated away is read on
_COMPRESSED = (".gz", ".xz", ".bz2", ".zst", ".lz4", ".Z")


class NotFollowable(Exception):
    """The path is none that can be followed; the text says why."""


class Files:
    """The file system, as much of it as following needs."""

    def open(self, path: str) -> int:
        # A FIFO that nobody writes to would block; the type is looked at before anything is read.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        return os.pread(descriptor, size, offset)

    def size(self, descriptor: int) -> os.stat_result:
        return os.fstat(descriptor)

    def at(self, path: str) -> os.stat_result:
        return os.stat(path)

    def beside(self, path: str) -> list[str]:
        folder, name = os.path.split(path)
        return [
            os.path.join(folder, one)
            for one in os.listdir(folder or ".")
            if one != name and one.startswith(name) and not one.endswith(_COMPRESSED)
        ]


@dataclass(slots=True)
class _Open:
    """A file that is held open."""

    descriptor: int
    identity: tuple[int, int]  # device and inode
    offset: int
    tail: bytes = b""  # the bytes right before the offset
    head: bytes = b""  # the first bytes, as they were
    replaced_at: float | None = None  # monotonic-like seconds of the caller's clock
    modified_at: float = 0.0  # Unix seconds


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that came, and whether they begin another file than those before."""

    data: bytes
    modified_at: float  # Unix seconds, the file's
    restarted: bool = False  # the first bytes of a file that took the place of the last one


class LogFile:
    """One path. `read` gives what was appended since; it raises NotFollowable and OSError."""

    def __init__(self, path: str | Path, *, files: Files | None = None) -> None:
        self.path = str(path)
        self._files = files or Files()
        self._current: _Open | None = None
        self._old: list[_Open] = []

    @property
    def offset(self) -> int:
        """Bytes of the current file that were read."""
        return self._current.offset if self._current else 0

    @property
    def identity(self) -> tuple[int, int] | None:
        """Device and inode of the current file."""
        return self._current.identity if self._current else None

    def open(self, *, back: int | None = None) -> os.stat_result:
        """Open the path; reading begins `back` bytes before its end, or at its beginning (None)."""
        one, status = self._open()
        if back is not None:
            one.offset = max(0, status.st_size - back)
        self._replace(one)
        return status

    def skip_back(self, back: int) -> bool:
        """Begin again `back` bytes before the end; False where that is no further back than the beginning."""
        if self._current is None:
            return False
        size = self._files.size(self._current.descriptor).st_size
        self._current.offset = max(0, size - back)
        self._current.tail = b""
        return self._current.offset > 0

    def read(self, now: float) -> Iterator[Piece]:
        """The bytes that came since, in pieces; files that were rotated away first."""
        for one in tuple(self._old):
            grew = False
            for piece in self._rest(one):
                grew = True
                yield piece
            if grew:
                one.replaced_at = now
            if one.replaced_at is not None and now - one.replaced_at > _LINGER:
                self._forget(one)
        if self._current is None:
            self.open()
            restarted = True
        else:
            yield from self._rest(self._current)
            restarted = self._follow_path(now)
        if restarted and self._current is not None:
            for piece in self._rest(self._current):
                yield Piece(piece.data, piece.modified_at, restarted)
                restarted = False

    def close(self) -> None:
        for one in (*self._old, *((self._current,) if self._current else ())):
            self._files.close(one.descriptor)
        self._old.clear()
        self._current = None

    def _open(self) -> tuple[_Open, os.stat_result]:
        descriptor = self._files.open(self.path)
        try:
            status = self._files.size(descriptor)
            if not modes.S_ISREG(status.st_mode):
                raise NotFollowable(f"{self.path} is {_kind(status.st_mode)}, no regular file")
        except BaseException:
            self._files.close(descriptor)
            raise
        return _Open(descriptor, (status.st_dev, status.st_ino), 0, modified_at=status.st_mtime), status

    def _replace(self, one: _Open) -> None:
        if self._current is not None:
            self._old.append(self._current)
        self._current = one

    def _forget(self, one: _Open) -> None:
        self._old.remove(one)
        self._files.close(one.descriptor)

    def _follow_path(self, now: float) -> bool:
        """Whether another file has taken the path; it is the current one then."""
        try:
            status = self._files.at(self.path)
        except FileNotFoundError:
            return False  # deleted or being rotated: the open one is read on
        if self._current is not None and (status.st_dev, status.st_ino) == self._current.identity:
            return False
        if not modes.S_ISREG(status.st_mode):
            raise NotFollowable(f"{self.path} is {_kind(status.st_mode)}, no regular file")
        try:
            one, _ = self._open()
        except FileNotFoundError:
            return False
        if self._current is not None:
            self._current.replaced_at = now
            # What was written between our read and the rename.
        self._replace(one)
        return True

    def _rest(self, one: _Open) -> Iterator[Piece]:
        """What is behind the offset of an open file."""
        try:
            status = self._files.size(one.descriptor)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            if not self._reopen(one):
                return
            status = self._files.size(one.descriptor)
        one.modified_at = status.st_mtime
        if status.st_size < one.offset or (
            one.offset and status.st_size > one.offset and not self._known(one)
        ):
            yield from self._lost_to_a_copy(one)
            one.offset, one.tail = 0, b""
        while True:
            try:
                data = self._files.read(one.descriptor, PIECE, one.offset)
            except OSError as error:
                if error.errno != errno.ESTALE or not self._reopen(one):
                    raise
                continue
            if not data:
                return
            one.offset += len(data)
            one.tail = (one.tail + data)[-_FINGERPRINT:]
            yield Piece(data, one.modified_at)

    def _known(self, one: _Open) -> bool:
        """Whether the bytes before the offset are still those that were read."""
        if not one.tail:
            return True
        return self._files.read(one.descriptor, len(one.tail), one.offset - len(one.tail)) == one.tail

    def _lost_to_a_copy(self, one: _Open) -> Iterator[Piece]:
        """What copytruncate has copied and we had not read yet."""
        if not one.tail:
            return
        try:
            candidates = self._files.beside(self.path)
        except OSError:
            return
        for path in candidates:
            try:
                descriptor = self._files.open(path)
            except OSError:
                continue
            try:
                status = self._files.size(descriptor)
                before = one.offset - len(one.tail)
                if not modes.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) == one.identity:
                    continue
                if self._files.read(descriptor, len(one.tail), before) != one.tail:
                    continue
                while data := self._files.read(descriptor, PIECE, one.offset):
                    one.offset += len(data)
                    yield Piece(data, status.st_mtime)
                return
            finally:
                self._files.close(descriptor)

    def _reopen(self, one: _Open) -> bool:
        """After ESTALE: the same path again, at the same place where the content is the same."""
        if one is not self._current:
            self._forget(one)
            return False
        try:
            fresh, status = self._open()
        except FileNotFoundError:
            return False
        self._files.close(one.descriptor)
        one.descriptor, one.identity = fresh.descriptor, fresh.identity
        if status.st_size < one.offset or not self._known(one):
            one.offset, one.tail = 0, b""
        return True


def _kind(mode: int) -> str:
    tests: tuple[tuple[Callable[[int], bool], str], ...] = (
        (modes.S_ISDIR, "a directory"),
        (modes.S_ISFIFO, "a FIFO"),
        (modes.S_ISSOCK, "a socket"),
        (modes.S_ISCHR, "a character device"),
        (modes.S_ISBLK, "a block device"),
    )
    return next((name for test, name in tests if test(mode)), "something else")
