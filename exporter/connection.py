"""Connections of the HTTP server. A thread is given a request only once the request is there.

cheroot 11 hands each new connection to a thread, which then waits for every byte of the request; ten clients that
send a byte at a time hold ten threads, and the handshake of TLS holds the loop that accepts. Here a thread takes
what has arrived, without waiting, and gives the connection back to the selector until the request is whole: head and
announced body, within one deadline. The handshake is done the same way. How long a thread waits for who reads the
answer is bounded too (`sending`).

cheroot 11 also reads through Python's model of its input and output (`_pyio`), and sends the head of an answer and
its body apart; for a small request that is a third of the whole work. Here the interpreter's own buffers are used.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import socket
import ssl
import time
from typing import Any

from cheroot.makefile import MakeFile
from cheroot.server import HTTPConnection

from exporter.sending import Sink, Writer

log = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0  # from the first byte of a request, or of a handshake, to the last
LARGEST_HEAD = 64 * 1024  # bytes
LARGEST_BODY = 8 << 20  # a longer one is refused by the application without being read
_BUFFER = 64 * 1024  # bytes

_BARE_NEWLINE = re.compile(rb"(?<!\r)\n")
_EXPECT = re.compile(rb"\r\nexpect:[ \t]*100-continue[ \t]*(?=\r\n)", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)


class _Source(socket.SocketIO):
    """A socket as the reader sees it: first what has arrived, then, until the deadline, what is still to come.

    What is written goes out before anything is waited for.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, "r")
        self.sock = sock
        self.pending = bytearray()
        self.writer: Writer | None = None
        self.waits = False
        self.deadline = 0.0  # of time.monotonic

    def readinto(self, buffer: Any) -> int | None:
        if self.pending:
            size = min(len(buffer), len(self.pending))
            buffer[:size] = self.pending[:size]
            del self.pending[:size]
            return size
        if not self.waits:
            return None
        if self.writer is not None:
            self.writer.flush()  # such as `100 Continue`, which the sender of a body waits for
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.sock.settimeout(left)
        return super().readinto(buffer)


class _Reader(io.BufferedReader):
    bytes_read = 0

    def __init__(self, source: _Source) -> None:
        super().__init__(source, _BUFFER)
        self.source = source
        self.incomplete = False

    def has_data(self) -> bool:
        """Whether a request, or the beginning of one, is here that nobody has looked at yet."""
        if self.incomplete:
            return False
        decrypted = isinstance(self.source.sock, ssl.SSLSocket) and self.source.sock.pending() > 0
        return bool(self.peek(1)) or decrypted

    def take_back(self) -> None:
        """Put what was read ahead before what has arrived since."""
        read = bytearray()
        while piece := self.peek(1):
            read += self.read(len(piece))
        self.source.pending = read


class _Refused(Exception):
    """The connection ends, with this status where there is one to say."""


class Connection(HTTPConnection):
    """One connection, over TLS or not. Its server has an `admission`."""

    def __init__(self, server: Any, sock: Any, makefile: Any = MakeFile) -> None:
        def file(sock: socket.socket, mode: str, _size: int) -> _Reader | Writer:
            if "r" in mode:
                return _Reader(_Source(sock))
            return Writer(Sink(sock, server.admission), _BUFFER)

        super().__init__(server, sock, file)
        self.rfile.source.writer = self.wfile
        self._shaken = not isinstance(sock, ssl.SSLSocket)
        self._deadline: float | None = None
        self._wanted: int | None = None  # bytes of the whole request, once its head is here
        self._streamed = False  # the body's length is not known beforehand
        self._streams = False  # it counts among those that are read as they come
        self._held = 0

    def communicate(self) -> bool:
        """Take what has arrived; answer the request if it is whole. Whether the connection stays open."""
        self.server.admission.leave(self.socket)
        try:
            if not self._arrived():
                self.rfile.incomplete = True
                self.server.admission.wait(self.socket)
                return True
        except _Refused as refused:
            self._give_back()  # before it is said: who hears it may ask again at once
            self._say(str(refused))
            return False
        except OSError as error:  # the other side has gone, or speaks no TLS
            log.debug("%s: %s", self.remote_addr, error)
            return False
        if self._streamed and not self.server.admission.streams.acquire(blocking=False):
            self._give_back()
            self._say("503 Service Unavailable")
            return False
        self._streams = self._streamed
        try:
            return self._answer()
        finally:
            self._give_back()
            self.rfile.source.waits = self._streamed = self.rfile.incomplete = False
            self._wanted = self._deadline = None

    def _answer(self) -> bool:
        source = self.rfile.source
        source.waits, source.deadline = True, time.monotonic() + REQUEST_SECONDS
        self.wfile.sink.begin()
        try:
            keep = bool(super().communicate())  # type: ignore[no-untyped-call]
            self._give_back()  # before the end of the answer is sent: who hears it may ask again at once
            self.wfile.flush()
        except OSError:  # the other side has gone, or is too slow
            return False
        finally:
            self.wfile.sink.end()
        return keep

    def close(self) -> None:
        self.server.admission.leave(self.socket)
        self._give_back()
        with contextlib.suppress(OSError):
            self.wfile.close()
        self.wfile.sink.end()
        with contextlib.suppress(OSError):  # raised here it would end the thread
            super().close()
        self.socket.close()

    def _arrived(self) -> bool:
        """Whether a whole request is here, after taking what can be had without waiting. Raises _Refused, OSError."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + REQUEST_SECONDS
        elif now > self._deadline:
            raise _Refused("408 Request Timeout" if self._shaken else "")
        self.socket.settimeout(0)
        if not self._shaken and not self._shake():
            return False
        if not self.rfile.incomplete:
            self.rfile.take_back()
        pending = self.rfile.source.pending
        while not self._whole(pending):
            try:
                data = self.socket.recv(_BUFFER)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            if not data:
                raise _Refused("")
            held = self._held + len(data)
            # Small requests always find room: only as many as may wait are there at a time.
            if not self.server.admission.hold(len(data), always=held <= LARGEST_HEAD):
                raise _Refused("503 Service Unavailable")
            pending += data
            self._held = held
        return True

    def _whole(self, pending: bytearray) -> bool:
        if self._wanted is None:
            begin = len(pending) - len(
                pending.lstrip(b"\r\n")
            )  # empty lines before a request count for nothing
            end = pending.find(b"\r\n\r\n", begin)
            if end < 0:
                # Neither can become a request: cheroot says what is wrong with it.
                return len(pending) > LARGEST_HEAD or _BARE_NEWLINE.search(pending, begin) is not None
            self._wanted = end + 4 + self._announced(pending, begin, end + 2)
        return len(pending) >= self._wanted

    def _announced(self, pending: bytearray, begin: int, end: int) -> int:
        """Bytes of body to wait for. Where the head is in error cheroot refuses it, so that nothing is waited for."""
        head = bytes(pending[begin:end])
        self._streamed = _CHUNKED.search(head) is not None
        lengths = _LENGTH.findall(head)
        if self._streamed or len(lengths) != 1 or not lengths[0].isdigit() or len(lengths[0]) > 12:
            return 0
        length = int(lengths[0])
        if length > LARGEST_BODY:
            return 0
        expects = _EXPECT.search(head)
        if expects is not None:  # said here, as nothing will be parsed before the body is whole
            del pending[begin + expects.start() : begin + expects.end()]
            self.socket.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            return length - (expects.end() - expects.start())
        return length

    def _shake(self) -> bool:
        """Go on with the handshake; whether it is done. Raises OSError."""
        try:
            self.socket.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except ssl.SSLError as error:
            if error.reason == "HTTP_REQUEST":
                self._say_plainly()
            raise
        self.ssl_env = self.server.ssl_adapter.get_environ(self.socket)
        self._shaken = True
        return True

    def _say(self, status: str) -> None:
        """Answer with a status alone, if the other side takes it at once."""
        if status:
            with contextlib.suppress(OSError):
                self.socket.settimeout(0)
                self.socket.send(_status_alone(status))

    def _say_plainly(self) -> None:
        """Tell who speaks HTTP to a port for HTTPS."""
        text = "This port speaks HTTPS: ask with https://\n"
        with contextlib.suppress(OSError), socket.socket(fileno=self.socket.detach()) as plain:
            plain.recv(_BUFFER)
            plain.send(_status_alone("400 Bad Request", text))

    def _give_back(self) -> None:
        """What the request took of what all share."""
        if self._streams:
            self.server.admission.streams.release()
            self._streams = False
        if self._held:
            self.server.admission.give_back(self._held)
            self._held = 0


def _status_alone(status: str, text: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    return (head + text).encode()
