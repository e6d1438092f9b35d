"""What all connections of a server share: how many may wait, and how much they may hold meanwhile."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

MOST_WAITING = (
    400  # connections whose request is still to come; well below the usual limit of 1,024 descriptors
)
MOST_BYTES = 64 << 20  # of requests that have come in part


class Admission:
    """Counts for all threads of a server."""

    def __init__(
        self, threads: int, *, most_waiting: int = MOST_WAITING, most_bytes: int = MOST_BYTES
    ) -> None:
        self._most_waiting = most_waiting
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._waiting: dict[socket.socket, None] = {}  # the longest first
        self._bytes = 0
        # Bodies of unknown length are read by a thread as they come, and answers sent as they are read: never by
        # all threads.
        self.streams = threading.BoundedSemaphore(max(1, threads // 8))
        self._most_slow = max(1, threads // 2)
        self._slow: dict[socket.socket, Callable[[], float]] = {}

    def wait(self, sock: socket.socket) -> None:
        """This connection waits; where too many do, the one that has waited longest is ended."""
        with self._lock:
            self._waiting.setdefault(sock)
            oldest = next(iter(self._waiting)) if len(self._waiting) > self._most_waiting else None
            if oldest is not None:
                del self._waiting[oldest]
        if oldest is not None:
            _shut(oldest)

    def send_slowly(self, sock: socket.socket, rate: Callable[[], float]) -> None:
        """A thread waits for who reads here; where too many do, the slowest of the others is ended."""
        with self._lock:
            slowest = None
            if len(self._slow) >= self._most_slow:
                slowest = min(self._slow, key=lambda one: self._slow[one]())
                del self._slow[slowest]
            self._slow[sock] = rate
        if slowest is not None:
            _shut(slowest)

    def sent(self, sock: socket.socket) -> None:
        """No thread waits for it any more."""
        with self._lock:
            self._slow.pop(sock, None)

    def leave(self, sock: socket.socket) -> None:
        """It no longer waits."""
        with self._lock:
            self._waiting.pop(sock, None)

    def hold(self, size: int, *, always: bool) -> bool:
        """Keep so many bytes more, if there is room for them or they are to be kept `always`. Whether they are kept."""
        with self._lock:
            kept = always or self._bytes + size <= self._most_bytes
            if kept:
                self._bytes += size
            return kept

    def give_back(self, size: int) -> None:
        """So many of the bytes held are no longer kept."""
        with self._lock:
            self._bytes -= size


def _shut(sock: socket.socket) -> None:
    """End a connection, which its own thread of the moment then closes."""
    with contextlib.suppress(OSError):
        # Not SSLSocket's, which would also drop the TLS state.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
