"""Lines of trouble at the end of what the job itself writes: watchdogs, tracebacks, errors of CUDA and NCCL.

Read is what the standard output and error of launcher and ranks go to, where that is a file: a pipe belongs
to somebody else. It is opened through the process's own descriptor, which works into containers as well.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence

from exporter.procfs import ProcFS
from exporter.ranks import TrainingProcess
from snapshotter.capture.privacy import mask_word

_TROUBLE = re.compile(
    # PyTorch's watchdog and flight recorder (ProcessGroupNCCL, 1.13 to 2.13), gloo, torchrun
    r"[Ww]atchdog (?:caught|thread|got)|Timeout at NCCL work|Timed out waiting|timed out after|last enqueued"
    r"|last completed|ProcessGroup\w+\.cpp.*(?:[Tt]imeout|[Ee]rror|exception)|ChildFailedError"
    r"|WorkerGroup.*FAILED|exitcode\s*:\s*-?\d+|Sending process \d+ closing signal"
    # NCCL and CUDA
    r"|NCCL (?:WARN|[Ee]rror|ERROR)|nccl(?:Remote|System|Internal)Error|CUDA error|CUDA out of memory"
    # Python and the C library
    r"|Traceback \(most recent call last\)|^\S*\s*(?:[\w.]+\.)?\w*(?:Error|Exception)\b: |Fatal Python error"
    r"|Segmentation fault|Bus error|terminate called|core dumped|Killed\s*$"
    r"|DataLoader worker .*(?:killed|exited)",
)
_NAMES_RANK = re.compile(r"\[rank\d+\]|\bRank \d+\]|^\[\d+,\d+\]<std|^\s*\d+: |^\[default\d+\]")
_TAIL = 256 * 1024  # bytes
_LONGEST_LINE = 500  # characters
_MOST_LINES = 200
_ROLES = ("launcher", "trainer")


def troubles(procfs: ProcFS, processes: Sequence[TrainingProcess]) -> tuple[str, ...]:
    """The last lines of trouble of all files, secrets masked.

    A line that names no rank, in a file that a single rank writes, gets `[rankN]: ` in front. May wait for
    the file server that a file is on.
    """
    writers: dict[tuple[int, int], tuple[str, set[int | None]]] = {}
    for process in processes:
        if process.role not in _ROLES:
            continue
        for number in (1, 2):
            descriptor = f"{procfs.root}/{process.id.pid}/fd/{number}"
            place = _file(descriptor)
            if place is not None:
                writers.setdefault(place, (descriptor, set()))[1].add(process.rank)
    lines: list[str] = []
    for descriptor, ranks in writers.values():
        (only,) = ranks if len(ranks) == 1 else (None,)
        prefix = "" if only is None else f"[rank{only}]: "
        found = [line for line in _tail(descriptor) if _TROUBLE.search(line)][-_MOST_LINES:]
        lines += [line if _NAMES_RANK.search(line) else prefix + line for line in found]
    return tuple(mask_word(line[:_LONGEST_LINE]) for line in lines[-_MOST_LINES:])


def _file(descriptor: str) -> tuple[int, int] | None:
    """Device and inode of the regular file that a descriptor refers to; None for everything else."""
    try:
        info = os.stat(descriptor)  # a magic link, whose text need not name the file
    except OSError:
        return None
    return (info.st_dev, info.st_ino) if stat.S_ISREG(info.st_mode) else None


def _tail(descriptor: str) -> list[str]:
    try:
        file = os.open(descriptor, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return []
    try:
        start = max(0, os.fstat(file).st_size - _TAIL)
        data = os.pread(file, _TAIL, start)
    except OSError:
        return []
    finally:
        os.close(file)
    lines = re.split(r"[\r\n]+", data.decode("utf-8", "replace"))
    return lines[1:] if start else lines
