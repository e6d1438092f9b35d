"""All logs of the node: found, followed and published."""

from __future__ import annotations

import fnmatch
import logging
import time
from collections.abc import Callable
from pathlib import Path

from exporter.config import Config, LogConfig
from exporter.logs import discovery
from exporter.logs.discovery import Found
from exporter.logs.logfile import Files
from exporter.logs.model import LogReport, Unfollowed
from exporter.logs.progress import Rules
from exporter.logs.tracker import Tracker, name_of
from exporter.procfs import ProcFS
from exporter.ranks import Scan

log = logging.getLogger(__name__)

_SEARCH_SECONDS = 2.0


class LogWatcher:
    """A background reader: `poll` reads what the logs have got since, `latest` is what is known."""

    def __init__(
        self,
        config: Config,
        procfs: ProcFS,
        scan: Callable[[], Scan],
        *,
        now: Callable[[], float] = time.time,
        files: Files | None = None,
    ) -> None:
        self._config = config
        self._procfs = procfs
        self._scan = scan
        self._now = now
        self._files = files or Files()
        self._trackers: dict[str, Tracker] = {}
        self._entries: dict[str, LogConfig | None] = {}
        self._of_processes: set[str] = set()
        self._unfollowed: tuple[Unfollowed, ...] = ()
        self._searched_at: float | None = None
        self.latest = LogReport()

    def poll(self) -> None:
        now = self._now()
        if self._searched_at is None or not 0 <= now - self._searched_at < _SEARCH_SECONDS:
            self._search(now, first=self._searched_at is None)
            self._searched_at = now
        for tracker in self._trackers.values():
            tracker.poll(now)
        self.latest = LogReport(
            tuple(one.state() for path, one in self._trackers.items() if self._counts(path, one, now)),
            self._unfollowed,
        )

    def _search(self, now: float, *, first: bool) -> None:
        scan = self._scan()
        jobs = {process.job_id for process in scan.processes}
        found: dict[str, Found] = {}
        unfollowed: list[Unfollowed] = []
        for one in discovery.configured(self._config.logs):
            found.setdefault(one.path, one)
        self._of_processes = {path for path, one in found.items() if one.job_id in jobs}
        for process in scan.processes:
            if process.role not in ("trainer", "launcher"):
                continue
            outputs, missing = discovery.outputs(Path(self._procfs.root), process)
            for one in outputs:
                entry = found[one.path].entry if one.path in found else None
                found[one.path] = Found(one.path, one.job_id, entry)
                self._of_processes.add(one.path)
            if missing is not None and process.role == "trainer":
                unfollowed.append(missing)
        self._unfollowed = tuple(unfollowed)
        for path in [path for path in self._trackers if path not in found]:
            if self._entries[path] is None:
                self._trackers.pop(path).close()
                del self._entries[path]
        for path, one in found.items():
            if path not in self._trackers:
                self._add(one, now, first=first)

    def _add(self, one: Found, now: float, *, first: bool) -> None:
        job_id = one.job_id or Path(one.path).stem
        label = name_of(one.path, {tracker.label for tracker in self._trackers.values()})
        tracker = Tracker(
            one.path,
            job_id=job_id,
            label=label,
            rules=self._rules(job_id, one.entry),
            now=now,
            files=self._files,
        )
        tracker.start(now, from_end=first)
        self._trackers[one.path] = tracker
        self._entries[one.path] = one.entry

    def _rules(self, job_id: str, entry: LogConfig | None) -> Rules:
        limits = self._config.limits
        configured, where = limits.hang_limit, "all logs"
        for job in self._config.jobs:
            if job.hang_limit is not None and fnmatch.fnmatchcase(job_id, job.job_id):
                configured, where = job.hang_limit, f"job {job_id}"
                break
        if entry is not None and entry.hang_limit is not None:
            configured, where = entry.hang_limit, "this log"
        return Rules(
            configured,
            where,
            limits.factor,
            limits.floor,
            limits.ceiling,
            limits.minimum_intervals,
            limits.startup_grace,
        )

    def _counts(self, path: str, tracker: Tracker, now: float) -> bool:
        """Whether the log's series are shown: while its job lives, or while a log without processes grows."""
        if path in self._of_processes:
            return True
        limit = tracker.state().limit.seconds
        return tracker.grew_at is not None and now - tracker.grew_at <= 2 * limit
