"""The searches for logs, each in a thread of its own: one that hangs, as on a dead file system, stops no other."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from exporter.config import LogConfig
from exporter.logs.discovery import Discovery, Found, Search
from exporter.logs.lanes import Lane
from exporter.ranks import Scan

log = logging.getLogger(__name__)
T = TypeVar("T")


class _Errand(Generic[T]):
    """One search that is made again and again. What comes late is taken over late."""

    def __init__(self, name: str, result: T, patience: float) -> None:
        self.name = name
        self.result = result
        self.answered = False  # it has come back once
        self.slow = False  # it did not come back in time, and has not done better since
        self.failure: str | None = None  # why the newest one failed
        self._patience = patience
        self._lane = Lane("log search")
        self._came: tuple[T, float] | None = None  # with the seconds that it took

    def begin(self, work: Callable[[], T]) -> None:
        """Take over what came late, and search anew where the search before is over."""
        if not self.finish(0.0):
            return

        def search() -> None:
            started = time.monotonic()
            found = work()
            self._came = found, time.monotonic() - started

        try:
            self._lane.run(search, 0.0)
        except Exception as error:
            self._failed(error)

    def finish(self, seconds: float) -> bool:
        """Wait for the search under way; False where it is still under way. One that failed keeps the result before."""
        try:
            # One that was slow before is not waited for: the logs known so far are to be read meanwhile.
            if not self._lane.wait(0.0 if self.slow else seconds):
                return False
        except Exception as error:
            self._failed(error)
            return True
        if self._came is not None:
            (self.result, took), self._came, self.answered, self.failure = self._came, None, True, None
            if took > self._patience:
                self.late()
            elif self.slow:
                self.slow = False
                log.info("the search for %s answers again", self.name)
        return True

    def _failed(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"[:500]
        if text != self.failure:
            log.error("the search for %s failed; it is made again: %s", self.name, text, exc_info=error)
        self.failure = text

    def late(self) -> None:
        """It has not come back in time."""
        if not self.slow:
            self.slow = True
            log.warning(
                "the search for %s takes longer than %g s: its file system may be dead or the path may match too much; "
                "what it finds is followed once it comes back, all other logs are not held up",
                self.name,
                self._patience,
            )

    def close(self) -> None:
        self._lane.close()


class Searching:
    """All searches of one configuration: one for each entry of `logs`, and one of what the processes write to."""

    def __init__(
        self,
        discovery: Discovery,
        entries: tuple[LogConfig, ...],
        patience: float,
        before: Searching | None = None,
    ) -> None:
        """`before`: the searches of the configuration before, whose results hold until there are new ones."""
        self._discovery = discovery
        self._entries = entries
        self._patience = patience
        self._configured: list[_Errand[tuple[Found, ...]]] = []
        for entry in entries:
            errand = _Errand[tuple[Found, ...]](f"the configured path {entry.path}", (), patience)
            for known, old in zip(before._entries, before._configured, strict=True) if before else ():
                if known.path == entry.path:
                    errand.result = tuple(
                        replace(found, entry=entry, job_id=entry.job_id) for found in old.result
                    )
                    errand.answered = old.answered
            self._configured.append(errand)
        self._processes = _Errand("the output of processes", Search(), patience)
        if before is not None:
            self._processes.result = before._processes.result
            self._processes.answered = before._processes.answered
            for one in before._all():
                one.close()

    @property
    def hanging(self) -> tuple[str, ...]:
        """The searches that do not come back in time."""
        return tuple(one.name for one in self._all() if one.slow)

    @property
    def failing(self) -> tuple[str, ...]:
        """The searches that fail, with why."""
        return tuple(f"{one.name}: {one.failure}" for one in self._all() if one.failure is not None)

    def search(self, scan: Scan, now: float) -> tuple[Search, frozenset[LogConfig | None]]:
        """What is known by now, in about the patience at most.

        Also the entries, None for the processes, of which this is the first answer. A search that fails is said so in
        `failing`; what it found before holds.
        """
        unanswered = self._unanswered()
        for entry, errand in zip(self._entries, self._configured, strict=True):
            errand.begin(partial(self._discovery.configured, entry))
        until = time.monotonic() + self._patience
        for errand in self._configured:
            if not errand.finish(max(0.0, until - time.monotonic())):
                errand.late()
        configured = tuple(one for errand in self._configured for one in errand.result)
        self._processes.begin(lambda: self._discovery.search(configured, scan, now))
        done = self._processes.finish(self._patience)
        if not done:
            self._processes.late()
        if done and self._processes.failure is None:
            search = self._processes.result
        else:
            search = self._without_processes(configured, scan)
        return search, unanswered - self._unanswered()

    def _all(self) -> tuple[_Errand[Any], ...]:
        return (*self._configured, self._processes)

    def _unanswered(self) -> frozenset[LogConfig | None]:
        errands = zip((*self._entries, None), self._all(), strict=True)
        return frozenset(entry for entry, errand in errands if not errand.answered)

    def _without_processes(self, configured: tuple[Found, ...], scan: Scan) -> Search:
        """What was known of the processes before, with what the configured paths lead to now."""
        jobs = {process.job_id for process in scan.processes}
        current = {one.open_path: one for one in configured}
        logs: dict[str, Found] = {}
        for one in self._processes.result.logs:
            living = one.living and one.job_id in jobs
            entry = current[one.open_path].entry if one.open_path in current else None
            if living or entry is not None:
                logs[one.open_path] = replace(one, living=living, entry=entry)
        for path, one in current.items():
            logs.setdefault(path, replace(one, living=one.job_id in jobs))
        return Search(tuple(logs.values()), self._processes.result.unfollowed)
