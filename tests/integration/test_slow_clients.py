"""Clients that are slow on purpose hold up nobody else: real programs over TLS, and the server by itself."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from exporter import admission, connection, sending
from tests.running import Program, running, wait_for
from tests.serving import hello, serving

SLOW = 50  # of each kind
AT_MOST = 8.0  # seconds for an answer meanwhile, on a busy machine: who waits for the slow ones waits for 10
HEAD = (
    b"POST /api/v1/alerts HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n"
)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """A web configuration with a certificate, and who trusts it."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(folder / "server.key")
    issued.cert_chain_pems[0].write_to_path(folder / "server.crt")
    path = folder / "web.yml"
    path.write_text("tls_server_config: {cert_file: server.crt, key_file: server.key}\n")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return path, context


def port_of(program: Program) -> int:
    return int(program.url.rpartition(":")[2])


@contextmanager
def besieged(port: int, context: ssl.SSLContext) -> Iterator[None]:
    """Silent connections, handshakes that stop in the middle, and requests that come a byte at a time."""
    with ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))

        for _ in range(SLOW):
            connect()
        for _ in range(SLOW // 5):
            connect().sendall(b"\x16\x03\x01\x02\x00\x01")
        dripping = [
            stack.enter_context(context.wrap_socket(connect(), server_hostname="localhost"))
            for _ in range(SLOW)
        ]
        in_body = dripping[: SLOW // 2]
        for one in in_body:
            one.sendall(HEAD + b"\r\n{")
        over = threading.Event()

        def drip() -> None:
            place = 0
            while not over.wait(0.2):
                for one in dripping:
                    try:
                        one.sendall(b" " if one in in_body else HEAD[place : place + 1])
                    except OSError:  # it was shown the door
                        continue
                place += 1

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            time.sleep(0.5)  # all of them are in the middle of it
            yield
        finally:
            over.set()
            thread.join()


def timed(url: str, context: ssl.SSLContext, body: bytes | None = None, token: str = "") -> tuple[int, float]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:
        answer.read()
        return answer.status, time.monotonic() - began


def test_metrics_go_on(tls: tuple[Path, ssl.SSLContext], tmp_path: Path) -> None:
    path, context = tls
    with (
        running(tmp_path, "hangscope-exporter", f"--web.config.file={path}") as program,
        besieged(port_of(program), context),
    ):
        for _ in range(5):
            status, seconds = timed(f"https://localhost:{port_of(program)}/metrics", context)
            assert status == 200 and seconds < AT_MOST


def test_notifications_go_on(tls: tuple[Path, ssl.SSLContext], tmp_path: Path) -> None:
    path, context = tls
    token = tmp_path / "token"
    token.write_text("secret-token\n")
    token.chmod(0o600)
    arguments = (
        "serve",
        f"--web.config.file={path}",
        f"--web.token-file={token}",
        f"--storage.path={tmp_path / 'data'}",
    )
    alert = {"labels": {"alertname": "Other"}, "status": "firing", "startsAt": "2026-01-01T00:00:00Z"}
    body = {"version": "4", "status": "firing", "groupKey": "{}", "receiver": "r", "alerts": [alert]}
    data = json.dumps(body | {"groupLabels": {}, "commonLabels": {}, "commonAnnotations": {}}).encode()
    with (
        running(tmp_path, "hangscope-snapshotter", *arguments) as program,
        besieged(port_of(program), context),
    ):
        base = f"https://localhost:{port_of(program)}"
        for _ in range(5):
            status, seconds = timed(f"{base}/api/v1/alerts", context, data, "secret-token")
            assert status in (200, 202) and seconds < AT_MOST
            status, seconds = timed(f"{base}/metrics", context)
            assert status == 200 and seconds < AT_MOST


# The server by itself

PIECE, PIECES = b"x" * (1 << 20), 64


def endless(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """`/` is small, everything else goes on for longer than any buffer."""
    if environ["PATH_INFO"] == "/":
        return hello(environ, start_response)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return (PIECE for _ in range(PIECES))


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def ask(port: int) -> bytes:
    with connected(port) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return client.makefile("rb").read()


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n"])
def test_a_request_has_one_deadline(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 1.0)
    with serving() as port, connected(port) as client:
        began = time.monotonic()
        client.sendall(sent)
        answer = b""
        client.settimeout(0.1)
        while time.monotonic() - began < 30 and not answer:
            with suppress(ConnectionError):  # it may have ended meanwhile: what it said is still there
                client.sendall(b"x")
            with suppress(TimeoutError):
                answer = client.recv(1000)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - began > 0.9


def test_a_body_of_unknown_length_never_takes_all_threads() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    with serving() as port, connected(port) as first, connected(port) as other:
        first.sendall(head + b"Expect: 100-continue\r\n\r\n")
        assert first.recv(1000).startswith(b"HTTP/1.1 100 ")  # it holds the one place there is
        other.sendall(head + b"\r\n")
        assert other.recv(1000).startswith(b"HTTP/1.1 503 ")
        assert ask(port).endswith(b"hello")
        first.sendall(b"5\r\nhello\r\n0\r\n\r\n")
        assert first.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_where_too_many_wait_the_longest_goes() -> None:
    shared = admission.Admission(2, most_waiting=3)
    with serving(shared=shared) as port, ExitStack() as stack:
        waiting: list[socket.socket] = []
        for number in range(1, 5):
            waiting.append(stack.enter_context(connected(port)))
            waiting[-1].sendall(b"GET")
            # What it sent has been looked at (before, it may wait without), so that its place is taken for good. Asked
            # for something else meanwhile, the server would have that wait for a moment, too.
            if number < 4:
                wait_for(lambda number=number: shared._bytes == 3 * number and len(shared._waiting) == number)
        assert waiting[0].recv(1) == b""
        waiting[-1].sendall(b" / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert waiting[-1].recv(15) == b"HTTP/1.1 200 OK"


def test_parts_of_requests_take_bounded_memory() -> None:
    shared = admission.Admission(2, most_bytes=150_000)
    head, body = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", bytes(100_000)
    with serving(shared=shared) as port:

        def status() -> bytes:
            with connected(port) as client:
                try:
                    client.sendall(head + body)
                    return client.recv(12)
                except ConnectionError:  # closed before all of it was read
                    return b"HTTP/1.1 503"

        with connected(port) as first:
            first.sendall(head + body[1:])
            wait_for(lambda: shared._bytes == len(head + body) - 1)  # all of it has been taken
            assert status() == b"HTTP/1.1 503"
            first.sendall(body[:1])
            assert first.recv(12) == b"HTTP/1.1 200"
        assert status() == b"HTTP/1.1 200"  # what was given back may be used again


def begin(stack: ExitStack, port: int, context: ssl.SSLContext | None) -> socket.socket:
    """A client that has asked for what is large and has read how it begins."""
    client = stack.enter_context(connected(port))
    if context is not None:
        client = stack.enter_context(context.wrap_socket(client, server_hostname="localhost"))
    client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert client.recv(15) == b"HTTP/1.1 200 OK"
    return client


def ended(client: socket.socket) -> bool:
    """Whether the answer breaks off, read as fast as can be."""
    size = 0
    while True:
        try:
            data = client.recv(1 << 20)
        except (ConnectionError, ssl.SSLError):
            return True
        size += len(data)
        if not data:
            return size < PIECES * len(PIECE)


@pytest.mark.parametrize("encrypted", [False, True])
def test_who_reads_slowly_leaves_threads_to_others(
    tls: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    path, context = tls if encrypted else (None, None)
    monkeypatch.setattr(sending, "STALLED", 60.0)
    monkeypatch.setattr(sending, "HEAD_START", 60.0)
    with serving(path, app=endless) as port, ExitStack() as stack:
        slow = [begin(stack, port, context) for _ in range(6)]  # of two threads, one may wait for one of them
        small = stack.enter_context(connected(port))
        if context is not None:
            small = stack.enter_context(context.wrap_socket(small, server_hostname="localhost"))
        small.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert small.recv(15) == b"HTTP/1.1 200 OK"
        assert sum(ended(one) for one in slow) == 5


def test_who_reads_slower_than_the_slowest_rate_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "HEAD_START", 1.0)
    monkeypatch.setattr(sending, "SLOWEST", 1 << 30)
    with serving(app=endless) as port, ExitStack() as stack:
        client = begin(stack, port, None)
        received = 0
        with suppress(ConnectionError):
            while data := client.recv(100_000):
                received += len(data)
                time.sleep(0.01)
        assert received < PIECES * len(PIECE)


def test_who_reads_at_his_leisure_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PATIENCE", 0.0)  # whoever it is
    with serving(app=endless) as port, ExitStack() as stack:
        client = begin(stack, port, None)
        received = 15
        while data := client.recv(1 << 20):
            received += len(data)
        assert received > PIECES * len(PIECE)
        assert ask(port).endswith(b"hello")


def test_plain_http_to_a_tls_port_is_told(tls: tuple[Path, ssl.SSLContext]) -> None:
    path, context = tls
    with serving(path) as port:
        for _ in range(4):  # more than there are threads
            answer = ask(port)
            assert answer.startswith(b"HTTP/1.1 400 ") and b"HTTPS" in answer
        with connected(port) as client:
            client.sendall(b"\0" * 100)
            client.makefile("rb").read()  # an alert of TLS or nothing; then it is over
        assert timed(f"https://localhost:{port}/", context)[0] == 200
