"""Threads that read slow things, so that no scrape ever waits for a file system, a driver or a socket.

A reader is any object with `poll()`; it publishes what it read in a frozen attribute of its own. Each reader
has a thread, so that one that hangs on a dead file system stops alone; how long ago it last came through is
known here and exported.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Health:
    """How a background reader fares."""

    name: str
    last_success: float | None  # Unix seconds when a poll last came through
    failures: int
    duration_seconds: float  # of the last poll that came through


class Background:
    """Calls `poll` every `interval` seconds in a daemon thread; a poll that raises is logged and counted."""

    def __init__(
        self, name: str, poll: Callable[[], None], interval: float, *, now: Callable[[], float] = time.time
    ) -> None:
        self.name = name
        self._poll = poll
        self._interval = interval
        self._now = now
        self._stop = threading.Event()
        self._last_success: float | None = None
        self._failures = 0
        self._duration = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; a poll under way is not waited for (it may hang for ever)."""
        self._stop.set()

    def poll_once(self) -> None:
        """One poll, its time taken and its failure counted."""
        started = time.monotonic()
        try:
            self._poll()
        except Exception:
            self._failures += 1
            log.exception("reader %s failed; it tries again in %g s", self.name, self._interval)
            return
        self._duration = time.monotonic() - started
        self._last_success = self._now()

    @property
    def health(self) -> Health:
        return Health(self.name, self._last_success, self._failures, self._duration)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.poll_once()
            self._stop.wait(self._interval)
