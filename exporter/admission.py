"""What all connections of a server share: how many may wait for a request, and how much they may hold meanwhile."""

from __future__ import annotations

import contextlib
import socket
import threading

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
        # Bodies of unknown length are read by a thread as they come: never by all threads.
        self.streams = threading.BoundedSemaphore(max(1, threads // 2))

    def wait(self, sock: socket.socket) -> None:
        """This connection waits; where too many do, the one that has waited longest is ended."""
        with self._lock:
            self._waiting.setdefault(sock)
            oldest = next(iter(self._waiting)) if len(self._waiting) > self._most_waiting else None
            if oldest is not None:
                del self._waiting[oldest]
        if oldest is not None:
            with contextlib.suppress(OSError):
                # Its own thread of the moment closes it. Not SSLSocket's, which would also drop the TLS state.
                socket.socket.shutdown(oldest, socket.SHUT_RDWR)

    def leave(self, sock: socket.socket) -> None:
        """It no longer waits."""
        with self._lock:
            self._waiting.pop(sock, None)

    def hold(self, size: int) -> bool:
        """Whether so many bytes more may be kept; negative: given back."""
        with self._lock:
            self._bytes += size
            return self._bytes <= self._most_bytes
