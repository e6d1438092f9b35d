"""Which files are the logs of this node's training jobs."""

from __future__ import annotations

import os
import stat as modes
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from exporter.config import LogConfig
from exporter.logs.model import Unfollowed
from exporter.ranks import TrainingProcess

_COMPRESSED = (".gz", ".xz", ".bz2", ".zst", ".lz4", ".Z")


@dataclass(frozen=True, slots=True)
class Found:
    """A file that is a log."""

    path: str
    job_id: str | None  # None: not known from a process
    entry: LogConfig | None = None


def configured(entries: tuple[LogConfig, ...]) -> list[Found]:
    """The files that the configuration's globs match now."""
    found = []
    for entry in entries:
        for path in sorted(glob(entry.path, recursive=True)):
            if not path.endswith(_COMPRESSED):
                found.append(Found(os.path.abspath(path), entry.job_id, entry))
    return found


def outputs(proc: Path, process: TrainingProcess) -> tuple[list[Found], Unfollowed | None]:
    """The regular files behind a process's stdout and stderr, or what they are instead."""
    found, kinds = [], []
    for number in (1, 2):
        link = f"{proc}/{process.id.pid}/fd/{number}"
        try:
            target = os.readlink(link)
            mode = os.stat(link).st_mode
        except OSError:
            continue
        if modes.S_ISREG(mode):
            found.append(Found(target, process.job_id))
        else:
            kinds.append(_kind(target, mode))
    if found or not kinds or process.rank is None:
        return found, None
    return found, Unfollowed(process.job_id, process.rank, kinds[0], "write the output to a file")


def _kind(target: str, mode: int) -> str:
    if modes.S_ISFIFO(mode):
        return "pipe"
    if modes.S_ISSOCK(mode):
        return "socket"
    return "null" if target == "/dev/null" else "terminal"
