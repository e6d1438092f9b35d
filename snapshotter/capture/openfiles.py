"""Which files on network file systems a process holds open: what a blocked one may be waiting for.

Names come from the links in /proc/PID/fd, and file systems from /proc/PID/mountinfo, so that no file server
is asked. Formats: proc(5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from exporter.procfs import ProcFS, Unreadable

_NETWORK = re.compile(
    r"nfs4?|lustre|ceph|cifs|smb3|smbfs|9p|virtiofs|afs|gpfs|mmfs|beegfs|panfs|wekafs|ocfs2|gfs2|orangefs|pvfs2"
    r"|glusterfs|daos|curvefs|cpfs|fuse(?:\..+)?"
)
_LOCAL_FUSE = re.compile(r"fuse\.(?:lxcfs|gvfsd-fuse|portal|snapfuse|squashfuse|fuse-overlayfs)|fusectl")
_MOST_FILES = 50


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted file system as the process sees it."""

    point: str
    kind: str
    source: str

    @property
    def network(self) -> bool:
        return bool(_NETWORK.fullmatch(self.kind)) and not _LOCAL_FUSE.fullmatch(self.kind)


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """/proc/PID/mountinfo. Lines that are not what the kernel writes are left out."""
    mounts = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if dash and len(fields) >= 6 and len(rest) >= 2:
            mounts.append(Mount(_plain(fields[4]), rest[0], _plain(rest[1])))
    return tuple(mounts)


def mount_of(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """The mount that a path lies on; of several at one point the last is on top."""
    best: Mount | None = None
    for mount in mounts:
        inside = mount.point == "/" or path == mount.point or path.startswith(mount.point + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def on_network(procfs: ProcFS, pid: int) -> tuple[str, ...]:
    """Open files and working directory on network file systems: `/mnt/data/shard-3 (nfs4 server:/export)`."""
    try:
        text = (procfs.root / str(pid) / "mountinfo").read_text(errors="replace")
    except OSError:
        return ()
    mounts = parse_mounts(text)
    if not any(mount.network for mount in mounts):
        return ()
    descriptors = procfs.descriptors(pid)
    paths = [] if isinstance(descriptors, Unreadable) else list(descriptors.values())
    folder = procfs.cwd(pid)
    if isinstance(folder, str):
        paths.append(folder)
    found: dict[str, None] = {}
    for path in paths:
        mount = mount_of(path, mounts) if path.startswith("/") else None
        if mount is not None and mount.network:
            found[f"{path} ({mount.kind} {mount.source})"] = None
    return tuple(found)[:_MOST_FILES]


def _plain(text: str) -> str:
    """mountinfo writes blank, tab, newline and backslash in octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
