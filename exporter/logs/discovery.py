"""Which files are the logs of this node's training jobs: configured, or found from what the processes write to."""

from __future__ import annotations

import os
import re
import stat as modes
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path

from exporter.config import LogConfig
from exporter.logs.files import COMPRESSED
from exporter.logs.model import Unfollowed
from exporter.procfs import ProcFS, Unreadable
from exporter.ranks import ProcessId, Scan, TrainingProcess

_ROLES = ("trainer", "launcher")
_POD_UID = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
_LOG_DIR = re.compile(r"--log[-_]dir(?:=(?P<folder>.+))?\Z")
_REMEDIES = {
    "pipe": "Let the job write to a file too (`| tee train.log`, `srun --output`, `torchrun --log-dir DIR --tee 3`), "
    "or name the file under `logs` in the configuration.",
    "terminal": "Start the job with its output in a file (`> train.log 2>&1`), and name nothing else.",
    "socket": "Let the job write to a file too, or name the file under `logs` in the configuration.",
    "null": "The output is thrown away: let the job write to a file, or name its own log under `logs`.",
}
_CACHED_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Found:
    """A file that is a log. `path` is what people know it by, `open_path` what can be opened from here."""

    path: str
    open_path: str
    identity: tuple[int, int] | None  # device and inode; None: it could not be looked at
    job_id: str | None = None  # of the processes that write to it, or of the configuration
    entry: LogConfig | None = None
    living: bool = False  # a process of its job lives here
    started_at: float | None = None  # Unix seconds: the oldest of those processes


@dataclass(frozen=True, slots=True)
class Search:
    """What one search found."""

    logs: tuple[Found, ...] = ()
    unfollowed: tuple[Unfollowed, ...] = ()


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a file descriptor leads."""

    path: str
    open_path: str
    mode: int
    identity: tuple[int, int]


class Discovery:
    """Searches again and again; what changes seldom is remembered for some seconds."""

    def __init__(self, procfs: ProcFS, *, pod_logs: Path = Path("/var/log/pods")) -> None:
        self._procfs = procfs
        self._pod_logs = pod_logs
        self._opened: dict[ProcessId, tuple[float, frozenset[tuple[int, int]]]] = {}
        self._readers: tuple[float, dict[str, list[int]]] | None = None

    def configured(self, entry: LogConfig) -> tuple[Found, ...]:
        """The files that an entry of the configuration names and that there are. May block on a dead file system."""
        return tuple(_configured(entry))

    def search(self, configured: Iterable[Found], scan: Scan, now: float) -> Search:
        """The configured logs, and those of the processes. May block on a dead file system."""
        started = self._started(scan)
        found: dict[tuple[int, int] | str, Found] = {}
        unfollowed: list[Unfollowed] = []
        for one in configured:
            found.setdefault(one.identity or one.path, one)
        readers = None
        for process in scan.processes:
            if process.role not in _ROLES:
                continue
            targets = self._targets(process.id.pid, (1, 2))
            logs = [target for target in targets if modes.S_ISREG(target.mode)]
            if not logs and targets:
                if readers is None:
                    readers = self._pipe_readers(now)
                logs = list(self._elsewhere(process, targets, readers))
            elif not targets:
                logs = list(self._of_launcher(process))
            for target in logs:
                known = found.get(target.identity)
                found[target.identity] = Found(
                    known.path if known else target.path,
                    known.open_path if known else target.open_path,
                    target.identity,
                    known.job_id if known and known.job_id else process.job_id,
                    known.entry if known else None,
                    True,
                    started.get(process.job_id),
                )
            if not logs and targets and process.role == "trainer" and process.rank is not None:
                kind = _kind(targets[0])
                unfollowed.append(Unfollowed(process.job_id, process.rank, kind, _REMEDIES[kind]))
        jobs = {process.job_id for process in scan.processes}
        logs_found = tuple(
            one if one.living else self._owned(one, scan, jobs, started, now) for one in found.values()
        )
        followed = {one.job_id for one in logs_found if one.living}
        # Where one rank or the launcher writes a file, the others' pipes lead to it more often than not.
        return Search(
            logs_found,
            tuple(
                one for one in unfollowed if one.kind not in ("pipe", "socket") or one.job_id not in followed
            ),
        )

    def _started(self, scan: Scan) -> dict[str, float]:
        """When the oldest live process of each job was started, in Unix seconds."""
        boot = self._procfs.boot_time()
        started: dict[str, float] = {}
        for process in scan.processes if boot is not None else ():
            at = (boot or 0.0) + process.id.start_ticks / self._procfs.ticks
            started[process.job_id] = min(at, started.get(process.job_id, at))
        return started

    def _owned(self, one: Found, scan: Scan, jobs: set[str], started: dict[str, float], now: float) -> Found:
        """A configured log: the job that is named for it, or whose processes have it open."""
        job_id = one.job_id if one.job_id in jobs else None
        if job_id is None and one.identity is not None:
            for process in scan.processes:
                if one.identity in self._files_of(process, now):
                    job_id = process.job_id
                    break
        if job_id is None:
            return one
        return Found(
            one.path,
            one.open_path,
            one.identity,
            one.job_id or job_id,
            one.entry,
            True,
            started.get(job_id),
        )

    def _files_of(self, process: TrainingProcess, now: float) -> frozenset[tuple[int, int]]:
        """The regular files that a process has open."""
        known = self._opened.get(process.id)
        if known is not None and 0 <= now - known[0] < _CACHED_SECONDS:
            return known[1]
        links = self._procfs.descriptors(process.id.pid)
        numbers = () if isinstance(links, Unreadable) else [n for n, link in links.items() if link[:1] == "/"]
        files = frozenset(
            target.identity for target in self._targets(process.id.pid, numbers) if modes.S_ISREG(target.mode)
        )
        if len(self._opened) > 4096:
            self._opened.clear()
        self._opened[process.id] = (now, files)
        return files

    def _targets(self, pid: int, numbers: Iterable[int]) -> list[_Target]:
        """Where file descriptors of a process lead."""
        found: dict[tuple[int, int], _Target] = {}
        for number in numbers:
            link = f"{self._procfs.root}/{pid}/fd/{number}"
            try:
                path, status = os.readlink(link), os.stat(link)
            except OSError:
                continue
            identity = (status.st_dev, status.st_ino)
            shown = path.removesuffix(" (deleted)")
            found.setdefault(
                identity,
                _Target(shown, self._openable(pid, shown, identity, link), status.st_mode, identity),
            )
        return list(found.values())

    def _openable(self, pid: int, path: str, identity: tuple[int, int], link: str) -> str:
        """The path by which a process's file can be opened here: containers have file systems of their own."""
        for candidate in (path, f"{self._procfs.root}/{pid}/root{path}"):
            if _identity(candidate) == identity:
                return candidate
        return link

    def _elsewhere(
        self, process: TrainingProcess, targets: list[_Target], readers: dict[str, list[int]]
    ) -> Iterator[_Target]:
        """Files that a process's output gets to through a pipe: tee, the container runtime, Slurm, torchrun."""
        for target in targets:
            for pid in readers.get(target.path, ()):
                if pid != process.id.pid:
                    # A reader like tee has what it writes to open beside its own standard streams.
                    yield from (
                        one for one in self._targets(pid, (1, *range(3, 16))) if modes.S_ISREG(one.mode)
                    )
        yield from self._of_launcher(process)
        cgroups = self._procfs.cgroup(process.id.pid)
        if not isinstance(cgroups, Unreadable):
            uids = {match[1].replace("_", "-") for one in cgroups if (match := _POD_UID.search(one.path))}
            for uid in uids:
                yield from _as_targets(glob(f"{self._pod_logs}/*_{uid}/*/*.log"))
        environ = self._procfs.environ(process.id.pid)
        if not isinstance(environ, Unreadable) and environ.get("SLURM_JOB_ID", "").isdecimal():
            folder = environ.get("SLURM_SUBMIT_DIR", "")
            if folder:
                yield from _as_targets([f"{folder}/slurm-{environ['SLURM_JOB_ID']}.out"])

    def _of_launcher(self, process: TrainingProcess) -> Iterator[_Target]:
        """torchrun's `--log-dir DIR`: DIR/RUN/attempt_N/LOCAL_RANK/stdout.log (torch 2.x, elastic/multiprocessing)."""
        words = process.command_line
        for word, following in zip(words, (*words[1:], ""), strict=True):
            match = _LOG_DIR.match(word)
            if match is None:
                continue
            folder = match["folder"] or following
            if not folder.startswith("/"):
                cwd = self._procfs.cwd(process.id.pid)
                if isinstance(cwd, Unreadable):
                    continue
                folder = f"{cwd}/{folder}"
            attempts = sorted(glob(f"{folder}/*/attempt_*"), key=_modified)
            if attempts:
                yield from _as_targets(glob(f"{attempts[-1]}/*/std*.log"))

    def _pipe_readers(self, now: float) -> dict[str, list[int]]:
        """Which processes read each pipe on their stdin."""
        if self._readers is not None and 0 <= now - self._readers[0] < _CACHED_SECONDS:
            return self._readers[1]
        readers: dict[str, list[int]] = {}
        for pid in self._procfs.pids():
            try:
                link = os.readlink(f"{self._procfs.root}/{pid}/fd/0")
            except OSError:
                continue
            if link.startswith("pipe:"):
                readers.setdefault(link, []).append(pid)
        self._readers = (now, readers)
        return readers


def _configured(entry: LogConfig) -> Iterator[Found]:
    plain = not has_magic(entry.path)
    for path in [entry.path] if plain else sorted(glob(entry.path, recursive=True)):
        path = os.path.abspath(path)
        if not plain and (path.endswith(COMPRESSED) or os.path.isdir(path)):
            continue
        if not plain or os.path.exists(path):
            yield Found(path, path, _identity(path), entry.job_id, entry)


def _as_targets(paths: Iterable[str]) -> Iterator[_Target]:
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        if modes.S_ISREG(status.st_mode) and not path.endswith(COMPRESSED):
            yield _Target(path, path, status.st_mode, (status.st_dev, status.st_ino))


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _modified(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _kind(target: _Target) -> str:
    if modes.S_ISFIFO(target.mode):
        return "pipe"
    if modes.S_ISSOCK(target.mode):
        return "socket"
    return "null" if target.path == "/dev/null" else "terminal"
