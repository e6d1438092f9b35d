"""Work that may never come back, as reads of a dead file system do, without those who wait hanging with it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Lane:
    """One thread for one piece of work at a time. A lane that is busy for ever is left behind for a new one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._wanted = threading.Event()
        self._done = threading.Event()
        self._done.set()
        self._work: Callable[[], None] | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        return not self._done.is_set()

    def run(self, work: Callable[[], None], seconds: float) -> bool:
        """Do the work in the lane's thread; False where it has not come back in time. Raises what it raised."""
        self._work, self._error = work, None
        self._done.clear()
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
            self._thread.start()
        self._wanted.set()
        return self.wait(seconds)

    def wait(self, seconds: float) -> bool:
        """Wait on for the work under way; False where it has not come back in time. Raises what it raised."""
        if not self._done.wait(seconds):
            return False
        error, self._error = self._error, None
        if error is not None:
            raise error
        return True

    def close(self) -> None:
        """Let the thread end once it is free."""
        self._closed = True
        self._wanted.set()

    def _loop(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            work = self._work
            if work is not None:
                self._work = None
                try:
                    work()
                except Exception as error:
                    self._error = error
                self._done.set()
            if self._closed:
                return
