"""Connections of the HTTP server, read and written through the interpreter's own buffers.

cheroot 11 reads through Python's model of its input and output (`_pyio`), and sends the head of an answer and
its body apart; for a small request that is a third of the whole work.
"""

from __future__ import annotations

import contextlib
import io
import socket
from typing import Any

from cheroot.makefile import MakeFile
from cheroot.server import HTTPConnection

_BUFFER = 64 * 1024  # bytes


class _Writer(io.BufferedWriter):
    bytes_written = 0  # cheroot's statistics, which are off


class _Source(socket.SocketIO):
    """A socket as the reader sees it: what is written goes out before anything is waited for."""

    writer: _Writer | None = None
    waits = True

    def readinto(self, buffer: Any) -> int | None:
        if not self.waits:
            return None
        if self.writer is not None:
            self.writer.flush()  # such as `100 Continue`, which the sender of a body waits for
        return super().readinto(buffer)


class _Reader(io.BufferedReader):
    bytes_read = 0

    def __init__(self, source: _Source) -> None:
        super().__init__(source, _BUFFER)
        self.source = source

    def has_data(self) -> bool:
        """Whether the beginning of the next request came with the last one."""
        self.source.waits = False
        try:
            return bool(self.peek(1))
        finally:
            self.source.waits = True


def _file(sock: socket.socket, mode: str, _size: int) -> _Reader | _Writer:
    if "r" in mode:
        return _Reader(_Source(sock, "r"))
    return _Writer(socket.SocketIO(sock, "w"), _BUFFER)


class Connection(HTTPConnection):
    """One connection. Those over TLS keep the files of their adapter."""

    def __init__(self, server: Any, sock: Any, makefile: Any = MakeFile) -> None:
        super().__init__(server, sock, _file if makefile is MakeFile else makefile)
        if isinstance(self.rfile, _Reader):
            self.rfile.source.writer = self.wfile

    def communicate(self) -> bool:
        """Answer one request; whether the connection stays open."""
        keep = bool(super().communicate())  # type: ignore[no-untyped-call]
        try:
            self.wfile.flush()
        except OSError:  # the other side has gone
            return False
        return keep

    def close(self) -> None:
        if isinstance(self.wfile, _Writer):
            with contextlib.suppress(OSError):
                self.wfile.close()
        super().close()
