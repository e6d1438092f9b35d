"""Lines of the kernel's log that explain a hang: hung tasks, GPU faults, dead file servers, memory, disks.

/dev/kmsg holds one record a read: `priority,sequence,microseconds since boot,flags;text` and indented
continuation lines (Documentation/ABI/testing/dev-kmsg). Reading needs root or CAP_SYSLOG where
kernel.dmesg_restrict is set.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

_TROUBLE = re.compile(
    # The scheduler
    r"blocked for more than \d+ seconds|hung_task:|(?:soft|hard) lockup|\brcu: .*stall|detected stall"
    # GPUs and what joins them
    r"|\bS?Xid\b|\bNVRM:.*(?:error|fail|fallen)|GPU has fallen off|\bamdgpu\b.*(?:reset|fault|timeout)"
    # File servers
    r"|\bnfs4?\b.*(?:not responding|timed out|error|OK\Z)|\bRPC:.*(?:timed out|error)|\bCIFS\b"
    r"|\bLustre(?:Error)?\b|\bLNet(?:Error)?\b|\b(?:lib)?ceph\b|\bmmfs|\bbeegfs\b|\bfuse\b.*(?:abort|timeout)"
    # Memory
    r"|Out of memory|oom-kill|oom_reaper|page allocation failure"
    # Disks
    r"|I/O error|blk_update_request|EXT4-fs (?:error|warning)|\bXFS\b.*(?:error|shutdown|corrupt)"
    r"|\bnvme.*(?:timeout|abort|reset)|\bmd/raid.*fail|\bata\d.*(?:exception|failed)"
    # Network
    r"|\bmlx[45]_?\w*\b.*(?:error|fail|health|timeout|down)|\bib_\w+.*(?:error|fail|timeout)|Link is Down"
    # The machine, and crashes of programs
    r"|Machine check|Hardware Error|\bAER:|\bEDAC\b|segfault at|general protection|thermal throttl",
    re.IGNORECASE,
)
_RECORD = re.compile(rb"\d+,(?P<sequence>\d+),(?P<time>\d+),[^;]*;(?P<text>[^\n]*)")
_MOST_LINES = 200
_LONGEST_LINE = 500  # characters
_MOST_RECORDS = 200_000


def troubles(
    since: float,
    until: float,
    *,
    device: Path = Path("/dev/kmsg"),
    now: Callable[[], float] = time.time,
    uptime: Callable[[], float] = time.monotonic,
) -> tuple[str, ...]:
    """The newest lines of trouble between two moments (Unix seconds), as `2026-01-31T12:00:00Z text`.

    That the log cannot be read is one such line, beginning with `hangscope:`. The kernel's clock may be off
    by seconds against the wall clock after long uptimes, so that a margin belongs into the window.
    """
    boot = now() - uptime()
    try:
        found = [
            f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ} {text[:_LONGEST_LINE]}"
            for at, text in _records(device, boot)
            if since <= at <= until and _TROUBLE.search(text)
        ]
    except OSError as error:
        return (f"hangscope: the kernel log {device} cannot be read: {error.strerror}",)
    return tuple(found[-_MOST_LINES:])


def _records(device: Path, boot: float) -> Iterator[tuple[float, str]]:
    """Unix time and text of every record that is there now."""
    descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        for _ in range(_MOST_RECORDS):
            try:
                data = os.read(descriptor, 16384)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EINVAL):  # overwritten while we read; too long
                    continue
                raise
            if not data:
                return
            match = _RECORD.match(data)
            if match is not None:
                yield boot + int(match["time"]) / 1e6, match["text"].decode("utf-8", "replace")
    finally:
        os.close(descriptor)
