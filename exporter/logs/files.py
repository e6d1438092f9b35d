"""The file system, as much of it as following logs needs; a test hands in one that fails."""

from __future__ import annotations

import os
import stat as modes
from collections.abc import Callable

COMPRESSED = (".gz", ".xz", ".bz2", ".zst", ".lz4", ".Z", ".zip")
"""Endings of rotated logs that were compressed: never read."""


class NotFollowable(Exception):
    """The path is none that can be followed; the text says why."""


class Files:
    """The real file system."""

    def open(self, path: str) -> int:
        # Opening a FIFO or a device may block or do something; O_NONBLOCK and O_NOCTTY keep it from that.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        return os.pread(descriptor, size, offset)

    def status(self, descriptor: int) -> os.stat_result:
        return os.fstat(descriptor)

    def at(self, path: str) -> os.stat_result:
        return os.stat(path)

    def beside(self, path: str) -> list[str]:
        """Files whose names begin with this one's, as rotation makes them."""
        folder, name = os.path.split(path)
        return [
            os.path.join(folder, one)
            for one in sorted(os.listdir(folder or "."))
            if one != name and one.startswith(name) and not one.endswith(COMPRESSED)
        ]


def refuse(path: str, mode: int) -> None:
    """Raise NotFollowable unless the mode is a regular file's."""
    if modes.S_ISREG(mode):
        return
    tests: tuple[tuple[Callable[[int], bool], str], ...] = (
        (modes.S_ISDIR, "a directory"),
        (modes.S_ISFIFO, "a FIFO"),
        (modes.S_ISSOCK, "a socket"),
        (modes.S_ISCHR, "a character device"),
        (modes.S_ISBLK, "a block device"),
    )
    kind = next((name for test, name in tests if test(mode)), "something else")
    raise NotFollowable(f"{path} is {kind}: only a regular file can be followed")
