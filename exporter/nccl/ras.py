"""Asking a RAS service: the wire client, for what every NCCL version from 2.24 on speaks.

One question a connection: handshake, format, status, and then everything until the server closes. Only
questions are sent, never CONTROL or DIAGNOSTICS. Every wait has a deadline, and the answer a size cap.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from exporter.nccl.model import RasReport
from exporter.nccl.parse import Unread, parse

DEFAULT_HOST = "localhost"
DEFAULT_PORT = 28028

Reason = Literal[
    "refused",  # nobody listens there: no NCCL, one before 2.24, no communicator yet, or all of them gone
    "unresolved",  # the host name has no address
    "silent",  # connections are accepted, nothing is answered: frozen processes
    "not_ras",  # something else answers on that port
    "other_job",  # processes of another job answered each time
    "timeout",  # the answer did not end in time
    "reset",  # the connection broke
    "too_large",  # more bytes than the cap
    "incomplete",  # closed before the end of the report
    "not_understood",  # ended well and holds no report
    "unread",  # the process that reads big answers failed or took too long
]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens. `host` is a numeric address."""

    host: str
    port: int

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, bytes and tries. NCCL collects for up to about 10 s, and JSON comes whole after that."""

    connect: float = 1.0
    handshake: float = 1.5
    first_byte: float = 15.0
    whole: float = 40.0  # all tries, waits and the answer together
    size: int = 256 * 1024 * 1024
    silent_tries: int = 8
    tries: int = 48  # connections in all: the kernel picks one of the processes that share a port at random


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Reply:
    """All bytes of an answer, handshake lines included, and how it went."""

    raw: bytes | bytearray
    address: Address | None
    seconds: float
    reason: Reason | None = None  # None: the server closed after its answer
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply and what was understood of it."""

    reply: Reply
    report: RasReport
    reason: Reason | None = None  # None: a whole report
    detail: str = ""

    @property
    def text(self) -> str:
        """The reply as text, invalid bytes replaced."""
        return self.reply.raw.decode("utf-8", "replace")


class _Failure(Exception):
    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason
        self.detail = detail


_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]]*)):(?P<port>\d{1,5})\Z")


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[::1]:port`; raises ValueError that says what was expected."""
    found = _ADDRESS.match(text.strip())
    if found is None or not 0 < int(found["port"]) < 65536:
        raise ValueError(f"{text!r} is no address: write HOST:PORT or [IPV6]:PORT")
    return found["v6"] or found["host"] or DEFAULT_HOST, int(found["port"])


def resolve(host: str, port: int, *, timeout: float = 5.0) -> tuple[Address, ...]:
    """Every address of a host, IPv4 and IPv6; `localhost` is both loopbacks whatever the resolver says.

    NCCL binds the first address that its own resolver gave, which need not be the first of ours. The
    resolver has no deadline of its own, so it runs in a thread that is left behind when it takes too long.
    Empty: no address.
    """
    if host == DEFAULT_HOST:
        return Address("127.0.0.1", port), Address("::1", port)
    found: list[Address] = []

    def look_up() -> None:
        try:
            for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                address = Address(str(entry[4][0]), port)
                if address not in found:
                    found.append(address)
        except (OSError, UnicodeError):
            pass  # no address

    thread = threading.Thread(target=look_up, name="ras-resolve", daemon=True)
    thread.start()
    thread.join(timeout)
    return tuple(found)


def ask(
    addresses: Sequence[Address],
    *,
    json: bool = True,
    limits: Limits = LIMITS,
    admit: Callable[[socket.socket], bool] = lambda connection: True,
    make_socket: Callable[[socket.AddressFamily], socket.socket] = lambda family: socket.socket(family),
    clock: Callable[[], float] = time.monotonic,
) -> Reply:
    """Put one question to the server at one of `addresses`, tried in turn. Never raises for what a server
    does.

    `json`: ask for JSON and fall back to verbose text where the server does not know it. `admit` sees a
    connection after its handshake and before the question; where it says no, another connection is tried.
    """
    started = clock()
    deadline = started + limits.whole
    failures: list[_Failure] = []
    for address in addresses:
        try:
            raw = _ask_one(address, json, limits, deadline, admit, make_socket, clock)
        except _Partial as partial:
            return Reply(partial.raw, address, clock() - started, partial.reason, partial.detail)
        except _Failure as failure:
            failures.append(failure)
        else:
            return Reply(raw, address, clock() - started)
    if not failures:
        return Reply(b"", None, clock() - started, "unresolved", "the host has no address")
    # The address where something went wrong says more than the one where nobody listens.
    worst = next((one for one in failures if one.reason != "refused"), failures[0])
    return Reply(b"", None, clock() - started, worst.reason, worst.detail)


def understand(reply: Reply, *, read: Callable[[bytes | bytearray], RasReport] = parse) -> Answer:
    """Read a reply; one that ended well but is no whole report gets the reason why."""
    try:
        report = read(reply.raw)
    except Unread as error:
        return Answer(reply, RasReport(format="json"), "unread", str(error))
    if reply.reason is not None:
        return Answer(reply, report, reply.reason, reply.detail)
    if report.complete:
        return Answer(reply, report)
    if report.nccl_version is not None:
        return Answer(reply, report, "incomplete", "the server closed before the end of its report")
    said = (*report.server_errors, *report.not_understood, "nothing")[0]
    return Answer(reply, report, "not_understood", f"no report in the answer; it begins: {said[:120]}")


class _Partial(_Failure):
    """A failure after the question was put: the bytes until then are kept, and it is not put again."""

    def __init__(self, reason: Reason, detail: str, raw: bytearray) -> None:
        super().__init__(reason, detail)
        self.raw = raw


def _ask_one(
    address: Address,
    json: bool,
    limits: Limits,
    deadline: float,
    admit: Callable[[socket.socket], bool],
    make_socket: Callable[[socket.AddressFamily], socket.socket],
    clock: Callable[[], float],
) -> bytearray:
    silent = 0
    last = _Failure("timeout", f"{address}: no answer within {limits.whole:g} s")
    for _ in range(limits.tries):
        if clock() >= deadline:
            break
        session = _Session(address, limits, deadline, clock)
        try:
            session.connect(make_socket)
            session.shake_hands()
            if not admit(session.socket):
                last = _Failure("other_job", f"{address}: processes of another job answer on this port")
                continue
            return session.question(json)
        except _Partial:
            raise
        except _Failure as failure:
            last = failure
            if failure.reason not in ("silent", "reset"):
                raise
            silent += 1
            if silent >= limits.silent_tries:
                break
        finally:
            session.close()
    raise last


class _Session:
    """One connection, from connect to close."""

    def __init__(self, address: Address, limits: Limits, deadline: float, clock: Callable[[], float]) -> None:
        self._address = address
        self._limits = limits
        self._deadline = deadline
        self._clock = clock
        self._raw = bytearray()
        self.socket: socket.socket

    def connect(self, make_socket: Callable[[socket.AddressFamily], socket.socket]) -> None:
        try:
            self.socket = make_socket(self._address.family)
        except OSError as error:
            raise _Failure("refused", f"{self._address}: no socket: {error}") from error
        self.socket.settimeout(self._wait(self._limits.connect))
        try:
            self.socket.connect((self._address.host, self._address.port))
        except TimeoutError as error:
            raise _Failure("silent", f"{self._address}: does not accept connections") from error
        except ConnectionResetError as error:
            raise _Failure("reset", f"{self._address}: {error.strerror or error}") from error
        except OSError as error:
            raise _Failure("refused", f"{self._address}: {error.strerror or error}") from error

    def close(self) -> None:
        if hasattr(self, "socket"):
            self.socket.close()

    def shake_hands(self) -> None:
        line = self._exchange("CLIENT PROTOCOL 2")
        if not line.startswith("SERVER PROTOCOL "):
            raise _Failure("not_ras", f"{self._address}: no RAS service: it says {line[:80]!r}")

    def question(self, json: bool) -> bytearray:
        """The whole answer, until the server closes. Raises _Partial from the question on."""
        known = json and self._exchange("SET FORMAT json") == "OK"
        command = "STATUS" if known else "VERBOSE STATUS"
        first_byte = self._clock() + self._limits.first_byte
        before = len(self._raw)
        try:
            self._send(command)
            while self._receive(first_byte if len(self._raw) == before else self._deadline):
                if len(self._raw) > self._limits.size:
                    limit = self._limits.size
                    raise _Failure("too_large", f"{self._address}: the answer exceeds {limit} bytes")
        except _Failure as failure:
            reason: Reason = "timeout" if failure.reason == "silent" else failure.reason
            raise _Partial(reason, failure.detail, self._raw) from failure
        return self._raw

    def _exchange(self, command: str) -> str:
        """Send one line and read one line."""
        start = len(self._raw)
        deadline = self._clock() + self._limits.handshake
        self._send(command)
        while b"\n" not in self._raw[start:]:
            if len(self._raw) - start > 4096:
                raise _Failure("not_ras", f"{self._address}: no RAS service: it sends no line end")
            if not self._receive(deadline):
                raise _Failure("reset", f"{self._address}: closed the connection before answering")
        return self._raw[start:].split(b"\n", 1)[0].decode("utf-8", "replace").rstrip("\r")

    def _send(self, command: str) -> None:
        self.socket.settimeout(self._wait(self._limits.handshake))
        try:
            self.socket.sendall(command.encode() + b"\n")
        except TimeoutError as error:
            raise _Failure("silent", f"{self._address}: takes no data") from error
        except OSError as error:
            raise _Failure("reset", f"{self._address}: {error.strerror or error}") from error

    def _receive(self, deadline: float) -> bool:
        """Take what has come; false: the server closed."""
        self.socket.settimeout(self._wait(deadline - self._clock()))
        try:
            data = self.socket.recv(256 * 1024)
        except TimeoutError as error:
            raise _Failure("silent", f"{self._address}: stopped answering") from error
        except OSError as error:
            raise _Failure("reset", f"{self._address}: {error.strerror or error}") from error
        self._raw += data
        return bool(data)

    def _wait(self, seconds: float) -> float:
        """Seconds to wait at most, within the deadline of the whole."""
        left = min(seconds, self._deadline - self._clock())
        if left <= 0:
            raise _Failure("silent", f"{self._address}: no answer in time")
        return left
