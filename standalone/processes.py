"""Children of this program: started in groups of their own, ended with all their descendants."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> None:
    """Make this process the parent of every descendant that loses its own, so that none outlives us."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def start(
    arguments: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program with its output appended to `log`. Raises OSError where it cannot be started."""
    with log.open("ab") as output:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment) if environment is not None else None,
            cwd=folder,
            start_new_session=True,
        )


def end(children: Sequence[subprocess.Popen[bytes]], *, patience: float = 10.0) -> None:
    """End the programs and everything below them: politely, then by SIGKILL after `patience` seconds.

    A stopped process takes no SIGTERM, and torchrun's workers live in sessions of their own: so whatever is
    left below this process is killed by pid.
    """
    for child in reversed(children):
        if child.poll() is None:
            _signal((child.pid,), signal.SIGTERM)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and any(child.poll() is None for child in children):
        time.sleep(0.05)
    below = descendants(os.getpid())
    _signal(below, signal.SIGKILL)
    for child in children:
        child.wait()
    for pid in below:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def descendants(root: int) -> tuple[int, ...]:
    """Pids of all live processes below `root`, by /proc/PID/stat's parent field."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found: list[int] = []
    layer = {root}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer}
        found += sorted(layer)
    return tuple(found)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
