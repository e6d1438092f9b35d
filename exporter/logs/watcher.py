"""All logs of the node: found, followed and published."""

from __future__ import annotations

import fnmatch
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from exporter.config import Config, JobConfig, LogConfig
from exporter.logs import frameworks
from exporter.logs.discovery import Discovery, Found, Search
from exporter.logs.files import Files
from exporter.logs.interpreter import Interpreter
from exporter.logs.lanes import Lane
from exporter.logs.model import LogReport, LogState
from exporter.logs.naming import labels
from exporter.logs.progress import Rules
from exporter.logs.searching import Searching
from exporter.logs.tracker import Tracker
from exporter.logs.userpattern import UserPattern
from exporter.procfs import ProcFS
from exporter.ranks import Scan

log = logging.getLogger(__name__)

_SEARCH_SECONDS = 2.0
_PATIENCE = 2.0  # seconds after which a read or a search counts as hanging
_LONGEST_POLL = 10.0  # seconds for which a log that has more to read is read on
_REMEMBERED = 1000
_AT_ONCE = 4 << 20  # bytes of one log before the others have their turn


@dataclass(slots=True)
class _Followed:
    """A log that is followed."""

    found: Found
    job_id: str
    label: str
    tracker: Tracker
    living: bool  # processes of its job are here
    shown: bool
    pinned: tuple[str | None, str | None] = (None, None)  # how its records are read, as configured
    pattern: UserPattern | None = None
    hidden_at: float = 0.0  # Unix seconds: since when its series are not shown
    lane: Lane | None = None  # the thread that hangs in reading it


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
        discovery: Discovery | None = None,
        patience: float = _PATIENCE,
    ) -> None:
        self._config = config
        self._scan = scan
        self._now = now
        self._files = files or Files()
        self._discovery = discovery or Discovery(procfs)
        self._patience = patience
        self._followed: dict[str, _Followed] = {}  # by the path that is opened
        self._patterns: dict[str, UserPattern] = {}
        self._search = Search()
        self._searched_at: float | None = None
        self._searching = Searching(self._discovery, config.logs, patience)
        self._reading = Lane("log reading")
        self._at_hand: _Followed | None = None  # the log that is being read
        self._left: dict[tuple[int, int], int] = {}  # how far logs were read that are not followed any more
        self._turn = 0  # grows with each log that is read
        self._failure: str | None = None  # why looking around failed the last time
        self.latest = LogReport()

    def configure(self, config: Config) -> None:
        """Take over another configuration: logs are searched anew.

        Those followed keep what is known of them, but where their records are to be read in another way.
        """
        self._config = config
        self._searching = Searching(self._discovery, config.logs, self._patience, self._searching)
        self._searched_at = None
        for followed in list(self._followed.values()):  # another thread may add to it
            followed.tracker.rules = self._rules(followed.job_id, followed.found.entry)

    def poll(self) -> None:
        """Search where it is time to, read what came, publish; again at once where a log has more to read."""
        until = time.monotonic() + _LONGEST_POLL
        more = True
        while more:
            now = self._now()
            try:
                self._look_around(now)
                self._failure = None
            except Exception as error:  # the logs that are known are read on
                text = f"logs: {type(error).__name__}: {error}"[:500]
                if text != self._failure:
                    log.error("the search for %s", text, exc_info=error)
                self._failure = text
            for one in self._followed.values():
                if one.lane is not None and not one.lane.busy:
                    one.lane = None
            logs = [one for one in self._followed.values() if one.lane is None]
            logs.sort(
                key=lambda one: one.pattern is not None
            )  # a slow pattern is waited for after all others
            more = self._read_all(logs, now)
            self._publish(now)
            more = more and time.monotonic() < until

    def _look_around(self, now: float) -> None:
        if self._searched_at is not None and 0 <= now - self._searched_at < _SEARCH_SECONDS:
            return
        self._searched_at = now
        searching = self._searching
        search, new = searching.search(self._scan(), now)
        if searching is self._searching:  # not those of a configuration that was replaced meanwhile
            self._search = search
            self._take_over(search, now, new)

    def _take_over(self, search: Search, now: float, new_entries: frozenset[LogConfig | None]) -> None:
        found = {one.open_path: one for one in search.logs}
        by_identity = {one.tracker.identity: path for path, one in self._followed.items()}
        for path, one in list(found.items()):
            known = by_identity.get(one.identity)
            if path not in self._followed and known is not None and one.identity is not None:
                found[known] = found.pop(path)  # the same file by another path, as after a rename
        for path, followed in list(self._followed.items()):
            self._update(path, followed, found.get(path), now)
        anew = self._drop_read_otherwise()
        new = {path: one for path, one in found.items() if path not in self._followed}
        for job_id in {self._job_of(one) for one in new.values()}:
            taken = {one.label for one in self._followed.values() if one.job_id == job_id}
            paths = {one.path: path for path, one in new.items() if self._job_of(one) == job_id}
            for shown, label in labels(paths, taken).items():
                one = new[paths[shown]]
                self._add(
                    one, paths[shown], label, now, first=one.entry in new_entries or paths[shown] in anew
                )
        self._drop_unused_patterns()

    def _drop_read_otherwise(self) -> set[str]:
        """The logs whose records are to be read in another way than they were; they are followed from anew."""
        dropped = set()
        for path, one in list(self._followed.items()):
            if one.pinned != self._pinned(one.job_id, one.found.entry):
                if one.lane is None:
                    one.tracker.close()
                del self._followed[path]
                dropped.add(path)
        return dropped

    def _drop_unused_patterns(self) -> None:
        used = [one.pattern for one in self._followed.values()]
        for text, pattern in list(self._patterns.items()):
            if pattern not in used:
                pattern.close()
                del self._patterns[text]

    @staticmethod
    def _job_of(one: Found) -> str:
        if one.job_id is not None:
            return one.job_id
        return one.path.rsplit("/", 1)[-1].split(".")[0] or one.path

    def _update(self, path: str, followed: _Followed, found: Found | None, now: float) -> None:
        living = found is not None and found.living
        if found is not None:
            job_id = self._job_of(found)
            if living and (not followed.living or job_id != followed.job_id):
                last = followed.tracker.last_progress_at
                if last is None or last < (found.started_at or now):
                    followed.tracker.restart(now)
                followed.shown = True
            if job_id != followed.job_id:
                followed.job_id = job_id
                followed.tracker.rules = self._rules(job_id, found.entry)
            followed.found = found
        if followed.living and not living:
            followed.hidden_at, followed.shown = now, False
        followed.living = living
        if not living and (found is None or found.entry is None) and not followed.shown:
            if followed.lane is None:
                identity = followed.tracker.identity
                if identity is not None:
                    self._left[identity] = followed.tracker.offset
                    if len(self._left) > _REMEMBERED:
                        del self._left[next(iter(self._left))]  # the one that was left first
                followed.tracker.close()
            del self._followed[path]

    def _add(self, one: Found, path: str, label: str, now: float, *, first: bool) -> None:
        job_id = self._job_of(one)
        pinned = self._pinned(job_id, one.entry)
        framework, pattern = pinned
        user = self._pattern(pattern) if pattern is not None else None
        tracker = Tracker(
            path,
            rules=self._rules(job_id, one.entry),
            now=now,
            files=self._files,
            interpreter=self._interpreter(framework, user),
            framework=framework,
            remark=lambda: user.problem if user is not None else None,
        )
        followed = _Followed(
            one,
            job_id,
            label,
            tracker,
            one.living,
            shown=one.living,
            pinned=pinned,
            pattern=user,
            hidden_at=now,
        )
        self._followed[path] = followed

        offset = self._left.pop(one.identity, 0) if one.identity else 0

        def start() -> None:
            try:
                tracker.start(now, from_end=first, started_at=one.started_at, offset=offset)
            except Exception as error:
                tracker.failed(error)

        if not self._reading.run(start, self._patience):
            self._left_behind(followed)
            return
        limit = tracker.state(job_id, label, one.path).limit.seconds
        if tracker.grew_at is not None and now - tracker.grew_at <= limit:
            followed.shown = True

    def _read_all(self, logs: list[_Followed], now: float) -> bool:
        """Read every log; whether one had more than its share."""
        lane, more = self._reading, False

        def read() -> None:
            nonlocal more
            for one in logs:
                if lane is not self._reading:
                    return
                self._at_hand, self._turn = one, self._turn + 1
                try:
                    more |= one.tracker.poll(now, _AT_ONCE)
                except Exception as error:
                    one.tracker.failed(error)

        done = not logs or lane.run(read, self._patience)
        while not done:
            turn = self._turn
            done = lane.wait(self._patience)
            if not done and turn == self._turn and self._at_hand is not None:
                self._left_behind(self._at_hand)
                return True  # those behind it have their turn with the new thread
        return more

    def _left_behind(self, one: _Followed) -> None:
        """A read that hangs keeps its thread; the others get a new one."""
        one.lane, self._reading = self._reading, Lane("log reading")
        one.lane.close()
        if one.pattern is not None and one.pattern.asking:
            one.tracker.problem = f"{one.found.path}: {one.pattern.slowness}"
        else:
            one.tracker.problem = (
                f"{one.found.path}: reading it hangs, as on a file system that does not answer"
            )
        log.warning("log cannot be followed: %s", one.tracker.problem)

    def _publish(self, now: float) -> None:
        states = []
        for one in self._followed.values():
            if self._counts(one, one.tracker.state(one.job_id, one.label, one.found.path), now):
                states.append(one.tracker.state(one.job_id, one.label, one.found.path))
        failing = (*self._searching.failing, *((self._failure,) if self._failure else ()))
        self.latest = LogReport(tuple(states), self._search.unfollowed, self._searching.hanging, failing)

    @staticmethod
    def _counts(one: _Followed, state: LogState, now: float) -> bool:
        """Whether a log's series are shown: while its job lives, or while a log without processes grows."""
        if one.living or (state.problem is not None and not state.opened):
            return True
        grew = one.tracker.grew_at
        if grew is None:
            return False
        if one.shown and now - grew > 2 * state.limit.seconds:
            one.shown, one.hidden_at = False, now
        elif not one.shown and grew > one.hidden_at:
            # It was silent for long and grows again: another run, whose start has its own grace.
            one.shown = True
            last = one.tracker.last_progress_at
            if last is None or last <= one.hidden_at:
                one.tracker.restart(now)
        return one.shown

    def _job_config(self, job_id: str) -> JobConfig | None:
        return next((one for one in self._config.jobs if fnmatch.fnmatchcase(job_id, one.job_id)), None)

    def _pinned(self, job_id: str, entry: LogConfig | None) -> tuple[str | None, str | None]:
        """The framework and the pattern that are set for a log: its own entry's before its job's."""
        for one in (entry, self._job_config(job_id)):
            if one is not None and (one.framework is not None or one.pattern is not None):
                return one.framework, one.pattern
        return None, None

    def _pattern(self, pattern: str) -> UserPattern:
        if pattern not in self._patterns:
            self._patterns[pattern] = UserPattern(pattern)
        return self._patterns[pattern]

    @staticmethod
    def _interpreter(framework: str | None, user: UserPattern | None) -> Callable[[], Interpreter]:
        if user is not None:
            return lambda: Interpreter(user.read)
        if framework is not None:
            read = frameworks.reader(framework)
            return lambda: Interpreter(read)
        return Interpreter

    def _rules(self, job_id: str, entry: LogConfig | None) -> Rules:
        limits = self._config.limits
        job = self._job_config(job_id)
        configured, where = limits.hang_limit, "all logs"
        if job is not None and job.hang_limit is not None:
            configured, where = job.hang_limit, f"job {job_id}"
        if entry is not None and entry.hang_limit is not None:
            configured, where = entry.hang_limit, f"the logs {entry.path}"
        return Rules(
            configured,
            where,
            limits.factor,
            limits.floor,
            limits.ceiling,
            limits.minimum_intervals,
            limits.startup_grace,
            limits.pause_grace,
        )
