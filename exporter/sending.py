"""Sending an answer. Few threads at a time wait for slow readers, and none for who reads too slowly."""

from __future__ import annotations

import errno
import io
import socket
import time
from typing import Any

from exporter.admission import Admission

PATIENCE = 0.25  # seconds that a thread waits for a reader before he counts as slow
STALLED = 10.0  # seconds within which a reader must take something
HEAD_START = 10.0  # seconds that he may be behind the slowest rate
SLOWEST = 16 << 10  # bytes a second


class Sink(socket.SocketIO):
    """A socket as the writer sees it. Its time starts with `begin`, and counts only what is waited for the reader.

    Writing raises BrokenPipeError once the reader is too slow, as if he had gone.
    """

    def __init__(self, sock: socket.socket, admission: Admission) -> None:
        super().__init__(sock, "w")
        self.sock = sock
        self._admission = admission
        self._waited = 0.0
        self._sent = 0
        self._slow_since: tuple[float, int] | None = None  # when, and what was sent by then
        self._over = False

    def begin(self) -> None:
        """An answer begins."""
        self._waited, self._sent = 0.0, 0

    def end(self) -> None:
        """It has ended."""
        if self._slow_since is not None:
            self._slow_since = None
            self._admission.sent(self.sock)

    def rate(self) -> float:
        """Bytes a second that a slow reader takes."""
        at, sent = self._slow_since or (0.0, 0)
        return (self._sent - sent) / max(time.monotonic() - at, 0.001)

    def write(self, data: Any) -> int | None:
        if self._over:
            raise BrokenPipeError(errno.EPIPE, "nothing more is sent")
        while True:
            began = time.monotonic()
            try:
                self.sock.settimeout(self._left())
                size = super().write(data)
            except TimeoutError as error:
                if self._slow_since is None:
                    self._slow_since = (time.monotonic(), self._sent)
                    self._admission.send_slowly(self.sock, self.rate)
                    continue
                self._over = True
                raise BrokenPipeError(errno.EPIPE, "the reader is too slow") from error
            except OSError:
                self._over = True
                raise
            finally:
                self._waited += time.monotonic() - began
            self._sent += size or 0
            return size

    def _left(self) -> float:
        """Seconds to wait for the reader. Raises TimeoutError where there are none."""
        if self._slow_since is None:
            left = PATIENCE - self._waited
        else:
            left = min(STALLED, HEAD_START + self._sent / SLOWEST - self._waited)
        if left <= 0:
            raise TimeoutError("timed out")
        return left


class Writer(io.BufferedWriter):
    """The interpreter's, with the count that cheroot's statistics would use if they were on."""

    bytes_written = 0

    def __init__(self, sink: Sink, size: int) -> None:
        super().__init__(sink, size)
        self.sink = sink
