"""Following one log file through rotation, truncation, deletion and symlink swaps: every byte once, in order.

A file is held open while it is followed, so that its inode cannot be used again under us. Nothing is watched by
inotify, which is blind to remote writers on NFS and Lustre: each poll asks for the size.
"""

from __future__ import annotations

import errno
import os
import stat as modes
from collections.abc import Iterator
from dataclasses import dataclass

from exporter.logs.files import Files, refuse

PIECE = 1 << 20
_FINGERPRINT = 64  # bytes before the offset by which the content is known again
_LINGER = 60.0  # seconds for which a file that was rotated away is read on


@dataclass(slots=True)
class _Open:
    """A file that is held open."""

    descriptor: int
    identity: tuple[int, int]  # device and inode
    generation: int
    offset: int = 0
    tail: bytes = b""  # the bytes right before the offset
    modified: int = 0  # nanoseconds: the file's time at the last look
    replaced_at: float | None = None  # Unix seconds: another has the path since


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that were appended."""

    data: bytes
    generation: int  # one more for each file that took the path
    modified_at: float  # Unix seconds, the file's


class LogFile:
    """One path. `read` gives what was appended since; it raises NotFollowable and OSError."""

    def __init__(self, path: str, *, files: Files | None = None) -> None:
        self.path = path
        self._files = files or Files()
        self._current: _Open | None = None
        self._old: list[_Open] = []
        self._generation = 0

    @property
    def identity(self) -> tuple[int, int] | None:
        """Device and inode of the current file."""
        return self._current.identity if self._current else None

    def open(self, *, back: int | None = None, offset: int = 0) -> os.stat_result:
        """Open the path; reading begins `back` bytes before its end, or at the offset where that is within it."""
        one, status = self._open()
        if back is not None:
            one.offset = max(0, status.st_size - back)
        elif offset <= status.st_size:
            one.offset = offset
        self._replace(one)
        return status

    def head(self, size: int) -> bytes:
        """The first bytes of the current file. Raises OSError."""
        return self._files.read(self._current.descriptor, size, 0) if self._current else b""

    @property
    def offset(self) -> int:
        """Bytes of the current file that are behind us."""
        return self._current.offset if self._current else 0

    def read(self, now: float, limit: int = 1 << 62) -> Iterator[Piece]:
        """What was appended since, `limit` bytes or a piece more; from files that were rotated away first."""
        left = limit
        for one in tuple(self._old):
            for piece in self._rest(one):
                one.replaced_at = now
                left -= len(piece.data)
                yield piece
                if left <= 0:
                    return
            if one.replaced_at is not None and now - one.replaced_at > _LINGER and one in self._old:
                self._forget(one)
        if self._current is None:
            self.open()
        while self._current is not None:
            for piece in self._rest(self._current):
                left -= len(piece.data)
                yield piece
                if left <= 0:
                    return
            if not self._switch(now):
                return

    def close(self) -> None:
        for one in (*self._old, *((self._current,) if self._current else ())):
            self._files.close(one.descriptor)
        self._old.clear()
        self._current = None

    def _open(self) -> tuple[_Open, os.stat_result]:
        try:
            descriptor = self._files.open(self.path)
        except FileNotFoundError:
            raise
        except OSError:
            refuse(self.path, self._files.at(self.path).st_mode)
            raise
        try:
            status = self._files.status(descriptor)
            refuse(self.path, status.st_mode)
        except BaseException:
            self._files.close(descriptor)
            raise
        self._generation += 1
        return _Open(descriptor, (status.st_dev, status.st_ino), self._generation), status

    def _replace(self, one: _Open) -> None:
        if self._current is not None:
            self._old.append(self._current)
        self._current = one

    def _forget(self, one: _Open) -> None:
        self._old.remove(one)
        self._files.close(one.descriptor)

    def _switch(self, now: float) -> bool:
        """Go over to another file that has taken the path, where one has."""
        current = self._current
        try:
            status = self._files.at(self.path)
            if current is not None and (status.st_dev, status.st_ino) == current.identity:
                return False
            refuse(self.path, status.st_mode)
            one, _ = self._open()
        except FileNotFoundError:
            return False  # deleted, or between rename and create: the open one is read on
        if current is not None:
            if one.identity == current.identity:
                self._files.close(one.descriptor)
                return False
            current.replaced_at = now
        self._replace(one)
        return True

    def _rest(self, one: _Open) -> Iterator[Piece]:
        """What is behind the offset of an open file."""
        try:
            status = self._files.status(one.descriptor)
        except OSError as error:
            if error.errno != errno.ESTALE or not self._reopen(one):
                raise
            status = self._files.status(one.descriptor)
        changed, one.modified = status.st_mtime_ns != one.modified, status.st_mtime_ns
        # Truncated and grown again beyond where we were, it has other bytes there.
        if status.st_size < one.offset or (changed and not self._is_known(one)):
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
            one.tail = (one.tail + data[-_FINGERPRINT:])[-_FINGERPRINT:]
            yield Piece(data, one.generation, status.st_mtime)

    def _is_known(self, one: _Open) -> bool:
        """Whether the bytes before the offset are still those that were read."""
        if not one.tail:
            return True
        return self._files.read(one.descriptor, len(one.tail), one.offset - len(one.tail)) == one.tail

    def _lost_to_a_copy(self, one: _Open) -> Iterator[Piece]:
        """What copytruncate has copied away before it was read."""
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
                status = self._files.status(descriptor)
                if not modes.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) == one.identity:
                    continue
                if self._files.read(descriptor, len(one.tail), one.offset - len(one.tail)) != one.tail:
                    continue
                while data := self._files.read(descriptor, PIECE, one.offset):
                    one.offset += len(data)
                    yield Piece(data, one.generation, status.st_mtime)
                return
            finally:
                self._files.close(descriptor)

    def _reopen(self, one: _Open) -> bool:
        """After ESTALE: the same path again, at the same place where the content is the same."""
        if one is not self._current:
            return False
        try:
            fresh, status = self._open()
        except FileNotFoundError:
            return False
        self._files.close(one.descriptor)
        one.descriptor, one.identity = fresh.descriptor, fresh.identity
        if status.st_size < one.offset or not self._is_known(one):
            one.offset, one.tail = 0, b""
        return True
