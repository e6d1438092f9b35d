"""What the server's connections promise: pipelined requests, bodies that are announced, large answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from cheroot.connections import ConnectionManager

from exporter import webconfig
from exporter.admission import Admission
from exporter.connection import Connection
from tests.serving import serving

_LARGE = b"x" * 3_000_000


def echo(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """The path and the body; `/large` is large and comes in pieces."""
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    if environ["PATH_INFO"] == "/large":
        start_response("200 OK", [("Content-Length", str(len(_LARGE)))])
        return iter([_LARGE[:1000], _LARGE[1000:2_000_000], _LARGE[2_000_000:]])
    answer = environ["PATH_INFO"].encode() + b" " + body
    start_response("200 OK", [("Content-Length", str(len(answer)))])
    return [answer]


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    config = webconfig.WebConfig()
    server = webconfig.server(webconfig.Gate(echo, config), "127.0.0.1:0", config, None, threads=2)
    webconfig.bind(server)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        with socket.create_connection(server.bind_addr, timeout=60) as client:
            yield client
    finally:
        server.stop()
        thread.join()


def answer(reader: Any) -> tuple[bytes, bytes]:
    """Status line and body of the next answer."""
    status, length = reader.readline().strip(), 0
    while line := reader.readline().strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return status, reader.read(length)


def test_requests_sent_at_once_are_all_answered(connection: socket.socket) -> None:
    connection.sendall(
        b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n"
        b"POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"
        b"GET /3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    reader = connection.makefile("rb")
    assert [answer(reader)[1] for _ in range(3)] == [b"/1 ", b"/2 body", b"/3 "]
    assert reader.read() == b""


def test_a_kept_connection_is_answered_again_and_again(connection: socket.socket) -> None:
    reader = connection.makefile("rb")
    for number in range(20):
        connection.sendall(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number)
        assert answer(reader) == (b"HTTP/1.1 200 OK", b"/%d " % number)


def test_a_body_that_waits_for_leave_gets_it(connection: socket.socket) -> None:
    connection.sendall(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
    reader = connection.makefile("rb")
    assert reader.readline() == b"HTTP/1.1 100 Continue\r\n"
    assert reader.readline() == b"\r\n"
    connection.sendall(b"body")
    assert answer(reader) == (b"HTTP/1.1 200 OK", b"/a body")


def test_a_request_in_small_pieces_is_put_together(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody":
        connection.sendall(bytes([byte]))
    assert answer(connection.makefile("rb")) == (b"HTTP/1.1 200 OK", b"/a body")


def test_a_large_answer_arrives_whole(connection: socket.socket) -> None:
    connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer(connection.makefile("rb")) == (b"HTTP/1.1 200 OK", _LARGE)


def test_who_goes_away_in_the_middle_disturbs_nobody(connection: socket.socket) -> None:
    address = connection.getpeername()
    for request in (
        b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /a HTTP/1.1\r\nContent-Length: 9\r\n\r\nb",
    ):
        for _ in range(4):  # more than there are threads
            with socket.create_connection(address, timeout=60) as other:
                other.sendall(request)
    connection.sendall(b"GET /still HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer(connection.makefile("rb")) == (b"HTTP/1.1 200 OK", b"/still ")


@pytest.mark.parametrize(
    "request_text",
    [
        b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000),
        b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["large body", "body of unknown length"],
)
def test_who_has_heard_an_answer_may_ask_again_at_once(
    monkeypatch: pytest.MonkeyPatch, request_text: bytes
) -> None:
    """The thread that answered comes to nothing more before the second answer is heard."""
    heard = threading.Event()
    answered = Connection._answer

    def answer_and_stand_still(self: Connection) -> bool:
        keep = answered(self)
        assert heard.wait(60)
        return keep

    monkeypatch.setattr(Connection, "_answer", answer_and_stand_still)
    with serving(shared=Admission(2, most_bytes=150_000)) as port:
        statuses = []
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
                client.sendall(request_text)
                statuses.append(answer(client.makefile("rb"))[0])
        heard.set()
    assert statuses == [b"HTTP/1.1 200 OK"] * 2


def test_a_connection_that_is_kept_while_the_server_stops_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()
    put, close = ConnectionManager.put, ConnectionManager.close

    def put_late(self: Any, conn: Any) -> None:
        assert stopped.wait(60)
        put(self, conn)

    def close_first(self: Any) -> None:
        close(self)
        stopped.set()

    monkeypatch.setattr(ConnectionManager, "put", put_late)
    monkeypatch.setattr(ConnectionManager, "close", close_first)
    with serving() as port:
        client = socket.create_connection(("127.0.0.1", port), timeout=60)
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer(client.makefile("rb")) == (b"HTTP/1.1 200 OK", b"hello")
    with client:
        assert client.recv(1) == b""


def test_nonsense_is_answered_400(connection: socket.socket) -> None:
    connection.sendall(b"nonsense\r\n\r\n")
    assert answer(connection.makefile("rb"))[0] == b"HTTP/1.1 400 Bad Request"
