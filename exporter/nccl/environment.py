"""NCCL's settings of a process: its environment, and the files that NCCL adds to it when it starts.

NCCL reads $NCCL_CONF_FILE (2.23 and later), or .nccl.conf in the user's home, then /etc/nccl.conf: lines
NAME=VALUE, of which each sets what is not set yet (src/misc/param.cc of NCCL 2.30). The home is that of the user
database, in the newest versions $HOME.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from exporter.procfs import ProcFS, Unreadable, open_regular

_LARGEST = 64 * 1024  # bytes read of a file
_LONGEST = 1023  # of a name or a value, as in NCCL


def settings(procfs: ProcFS, pid: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process with what NCCL's files add to it. Those are read in its own file tree."""
    found = dict(environ)
    for path in _paths(procfs, pid, environ):
        for name, value in parse_conf(_text(f"{procfs.root}/{pid}/root/{path.lstrip('/')}")):
            found.setdefault(name, value)
    return found


def parse_conf(text: str) -> Iterator[tuple[str, str]]:
    """Names and values of a configuration file. Neither is trimmed; lines without `=` and comments are nothing."""
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals and not name.startswith("#"):
            yield name[:_LONGEST], value[:_LONGEST].removesuffix("\r")


def _paths(procfs: ProcFS, pid: int, environ: Mapping[str, str]) -> Iterator[str]:
    named = environ.get("NCCL_CONF_FILE")
    if named:
        folder = "" if named.startswith("/") else procfs.cwd(pid)
        if isinstance(folder, str):
            yield f"{folder}/{named}"
    else:
        homes = (_home(procfs, pid), environ.get("HOME"))
        yield from dict.fromkeys(f"{home}/.nccl.conf" for home in homes if home)
    yield "/etc/nccl.conf"


def _home(procfs: ProcFS, pid: int) -> str | None:
    """The home of the process's user by the user database of its own file tree."""
    status = procfs.status(pid)
    if isinstance(status, Unreadable):
        return None
    for line in _text(f"{procfs.root}/{pid}/root/etc/passwd").splitlines():
        fields = line.split(":")
        if len(fields) >= 7 and fields[2] == str(status.uid):
            return fields[5]
    return None


def _text(path: str) -> str:
    """The beginning of a regular file; empty where there is none."""
    try:
        with open_regular(path) as file:
            return file.read(_LARGEST).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
