"""The room that is left on a file system."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Room:
    """A file system, by statvfs: its bytes, and those that may still be written without privilege."""

    free_bytes: int
    size_bytes: int


def room(folder: Path) -> Room:
    """The room where a folder is. Raises OSError; blocks while the file system does not answer."""
    usage = shutil.disk_usage(folder)
    return Room(usage.free, usage.total)
