"""The wire client against a stand-in server: recorded answers replayed, and every fault there is."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.nccl import check
from exporter.nccl.ras import Address, Answer, Limits, ask, resolve, split_address, understand
from tests.running import wait_for

FOLDER = Path(__file__).parent.parent / "fixtures" / "nccl" / "transcripts"
# Enough for a server that answers, on a busy machine too.
QUICK = Limits(connect=10.0, handshake=10.0, first_byte=10.0, whole=30.0, size=1 << 20, silent_tries=4)
# For one that does not.
IMPATIENT = replace(QUICK, handshake=0.3, first_byte=0.5)

Serve = Callable[["Peer"], None]


class Peer:
    """One connection of a client, from the server's side."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.socket = connection
        self.number = number  # counts connections from 0
        self._lines = connection.makefile("rb")

    def line(self) -> str:
        """The next line of the client; empty once it has closed."""
        return self._lines.readline().decode().rstrip("\r\n")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def reset(self) -> None:
        """Close so that the client sees a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._lines.close()
        self.socket.close()


class Server:
    """Serves each connection in a thread; `asked` are all lines that clients sent."""

    def __init__(self, serve: Serve, family: socket.AddressFamily = socket.AF_INET) -> None:
        host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
        self._listener = socket.create_server((host, 0), family=family)
        self._serve = serve
        self.address = Address(host, self._listener.getsockname()[1])
        self.connections = 0
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            peer = Peer(connection, self.connections)
            self.connections += 1
            thread = threading.Thread(target=self._run, args=(peer,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, peer: Peer) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._serve(peer)
        with contextlib.suppress(OSError):
            peer._lines.close()
            peer.socket.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for connection in self._open:
            connection.close()


@pytest.fixture
def server() -> Iterator[Callable[..., Server]]:
    """Starts servers; they end with the test."""
    started: list[Server] = []

    def start(serve: Serve, family: socket.AddressFamily = socket.AF_INET) -> Server:
        started.append(Server(serve, family))
        return started[-1]

    yield start
    for one in started:
        one.close()


def replay(
    name: str, *, size: int | None = None, json_known: bool = True, asked: list[str] | None = None
) -> Serve:
    """Behave as the recorded server did; `size`: send the report in pieces of so many bytes."""
    raw = (FOLDER / f"{name}.reply").read_bytes()
    report = raw
    for line in (b"SERVER PROTOCOL 2\n", b"OK\n"):
        report = report.removeprefix(line)

    def serve(peer: Peer) -> None:
        while command := peer.line():
            if asked is not None:
                asked.append(command)
            if command.startswith("CLIENT PROTOCOL"):
                peer.send(b"SERVER PROTOCOL 2\n")
            elif command.startswith("SET FORMAT"):
                peer.send(b"OK\n" if json_known else f"ERROR: Unknown command {command}\n".encode())
            elif command in ("STATUS", "VERBOSE STATUS"):
                for start in range(0, len(report), size or len(report)):
                    peer.send(report[start : start + (size or len(report))])
                return
            else:
                peer.send(f"ERROR: Unknown command {command}\n".encode())

    return serve


def answer(*addresses: Address, limits: Limits = QUICK, json: bool = True) -> Answer:
    return understand(ask(addresses, limits=limits, json=json))


@pytest.mark.parametrize("size", [None, 1, 7, 310, 1021])
@pytest.mark.parametrize("name", ["killed-t75-2.30.7", "lag-two-ops-2.30.7", "healthy-json-2.30.7"])
def test_pieces_of_any_size(server: Callable[..., Server], name: str, size: int | None) -> None:
    found = answer(server(replay(name, size=size)).address)
    assert found.reason is None
    assert found.report.complete
    assert found.report.nccl_version == "2.30.7"
    raw = (FOLDER / f"{name}.reply").read_text()
    assert found.text.endswith(raw.removeprefix("SERVER PROTOCOL 2\n").removeprefix("OK\n"))


def test_json_where_it_is_known_and_text_where_it_is_not(server: Callable[..., Server]) -> None:
    asked: list[str] = []
    found = answer(server(replay("healthy-json-2.30.7", asked=asked)).address)
    assert (found.report.format, asked) == ("json", ["CLIENT PROTOCOL 2", "SET FORMAT json", "STATUS"])
    asked.clear()
    found = answer(server(replay("killed-t75-2.26.2", json_known=False, asked=asked)).address)
    assert found.report.format == "text"
    assert asked == ["CLIENT PROTOCOL 2", "SET FORMAT json", "VERBOSE STATUS"]
    assert found.report.server_errors == ("ERROR: Unknown command SET FORMAT json",)
    assert found.reason is None
    asked.clear()
    answer(server(replay("healthy-2.30.7", asked=asked)).address, json=False)
    assert asked == ["CLIENT PROTOCOL 2", "VERBOSE STATUS"]


def test_ipv6_and_every_address_in_turn(server: Callable[..., Server]) -> None:
    six = server(replay("healthy-json-2.30.7"), socket.AF_INET6)
    nobody = Address("127.0.0.1", six.address.port)
    assert answer(nobody, six.address).reason is None
    assert str(six.address) == f"[::1]:{six.address.port}"


def test_localhost_is_both_families() -> None:
    assert {address.host for address in resolve("localhost", 28028)} == {"127.0.0.1", "::1"}


def test_a_frozen_process_swallows_its_share(server: Callable[..., Server]) -> None:
    good = replay("healthy-json-2.30.7")
    silent = threading.Event()

    def serve(peer: Peer) -> None:
        if peer.number < 2:
            peer.line()
            silent.wait(10)
        else:
            good(peer)

    one = server(serve)
    found = answer(one.address, limits=replace(QUICK, handshake=1.0))
    silent.set()
    assert found.reason is None
    assert one.connections == 3


def test_nothing_but_silence(server: Callable[..., Server]) -> None:
    done = threading.Event()
    one = server(lambda peer: done.wait(60) and None)
    started = time.monotonic()
    found = answer(one.address, limits=IMPATIENT)
    done.set()
    assert found.reason == "silent"
    wait_for(lambda: one.connections == IMPATIENT.silent_tries)  # a connection is made before it is accepted
    assert time.monotonic() - started < IMPATIENT.whole


def shaking_hands(then: Serve) -> Serve:
    def serve(peer: Peer) -> None:
        peer.line()
        peer.send(b"SERVER PROTOCOL 2\n")
        peer.line()
        peer.send(b"OK\n")
        peer.line()
        then(peer)

    return serve


def test_silence_after_the_question_is_not_asked_again(server: Callable[..., Server]) -> None:
    done = threading.Event()
    one = server(shaking_hands(lambda peer: done.wait(60) and None))
    found = answer(one.address, limits=replace(QUICK, first_byte=0.5))
    done.set()
    assert (found.reason, one.connections) == ("timeout", 1)


def test_a_dribbling_server_ends_at_the_deadline(server: Callable[..., Server]) -> None:
    def dribble(peer: Peer) -> None:
        for _ in range(1000):
            peer.send(b"{")
            time.sleep(0.05)

    started = time.monotonic()
    found = answer(server(shaking_hands(dribble)).address, limits=replace(QUICK, whole=2.0))
    assert found.reason == "timeout"
    assert time.monotonic() - started < 30  # it would go on for 50


def test_a_server_that_dribbles_its_handshake(server: Callable[..., Server]) -> None:
    def dribble(peer: Peer) -> None:
        for byte in b"SERVER PROTOCOL 2" * 50:
            peer.send(bytes([byte]))
            time.sleep(0.05)

    found = answer(server(dribble).address, limits=replace(QUICK, handshake=0.2, silent_tries=2))
    assert found.reason == "silent"


def test_a_reset_in_the_middle(server: Callable[..., Server]) -> None:
    def cut(peer: Peer) -> None:
        peer.send((FOLDER / "killed-t75-2.30.7.reply").read_bytes()[18:600])
        time.sleep(0.1)
        peer.reset()

    found = answer(server(shaking_hands(cut)).address)
    assert found.reason == "reset"
    assert not found.report.complete


def test_a_close_in_the_middle_is_incomplete(server: Callable[..., Server]) -> None:
    for name in ("killed-t75-2.30.7", "killed-t75-json-2.30.7"):
        raw = (FOLDER / f"{name}.reply").read_bytes()
        body = raw[raw.index(b"NCCL version") if b"NCCL version" in raw else raw.index(b"{") :]
        one = server(shaking_hands(lambda peer, body=body: peer.send(body[: len(body) // 2])))
        found = answer(one.address)
        assert found.reason == "incomplete"
        assert found.report.nccl_version == "2.30.7"


def test_a_close_without_an_answer(server: Callable[..., Server]) -> None:
    found = answer(server(shaking_hands(lambda peer: None)).address)
    assert found.reason == "not_understood"


def test_garbage_for_an_answer(server: Callable[..., Server]) -> None:
    found = answer(server(shaking_hands(lambda peer: peer.send(b"\x00\xff garbage\n" * 10))).address)
    assert found.reason == "not_understood"
    assert "garbage" in found.detail


def test_something_else_listens_there(server: Callable[..., Server]) -> None:
    def web(peer: Peer) -> None:
        peer.line()
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    found = answer(server(web).address)
    assert found.reason == "not_ras"
    assert "400" in found.detail
    endless = server(lambda peer: peer.send(b"x" * 100_000))
    assert answer(endless.address).reason == "not_ras"


def test_an_answer_without_end_is_cut_at_the_cap(server: Callable[..., Server]) -> None:
    def flood(peer: Peer) -> None:
        while True:
            peer.send(b" " * 65536)

    found = answer(server(shaking_hands(flood)).address)
    assert found.reason == "too_large"
    assert len(found.reply.raw) < QUICK.size + 512 * 1024


def test_a_server_that_closes_at_once_is_tried_again(server: Callable[..., Server]) -> None:
    good = replay("healthy-json-2.30.7")
    found = answer(server(lambda peer: peer.reset() if peer.number < 2 else good(peer)).address)
    assert found.reason is None


def test_nobody_listens() -> None:
    with socket.socket() as held:  # so that nobody else listens there
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        found = answer(Address("127.0.0.1", port))
    assert (found.reason, str(port) in found.detail) == ("refused", True)
    assert answer().reason == "unresolved"


def test_connections_that_are_not_admitted_are_asked_nothing(server: Callable[..., Server]) -> None:
    asked: list[str] = []
    one = server(replay("healthy-json-2.30.7", asked=asked))
    admitted = iter([False, False, True])
    reply = ask([one.address], limits=QUICK, admit=lambda connection: next(admitted))
    assert reply.reason is None
    assert asked.count("STATUS") == 1
    reply = ask([one.address], limits=QUICK, admit=lambda connection: False)
    assert reply.reason == "other_job"
    assert asked.count("STATUS") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:28028", ("localhost", 28028)),
        ("[::1]:1", ("::1", 1)),
        (":28028", ("localhost", 28028)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text) == expected


@pytest.mark.parametrize("text", ["localhost", "::1:28028", "host:0", "host:99999", "host:ras", "", "[::1]"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        split_address(text)


def check_nccl(target: str) -> tuple[int, dict[str, object] | None, str]:
    out, err = io.StringIO(), io.StringIO()
    status = check.run(target, out=out, err=err, limits=QUICK)
    return status, json.loads(out.getvalue()) if out.getvalue() else None, err.getvalue()


def test_check_of_a_file_and_of_a_server(server: Callable[..., Server]) -> None:
    path = FOLDER / "killed-t75-json-2.30.7.reply"
    status, from_file, err = check_nccl(str(path))
    assert (status, err) == (0, "")
    one = server(replay(path.stem))
    status, from_server, err = check_nccl(str(one.address))
    assert (status, err) == (0, "")
    assert from_server == from_file


def test_check_where_nothing_is_understood(tmp_path: Path, server: Callable[..., Server]) -> None:
    nonsense = tmp_path / "notes.txt"
    nonsense.write_text("bread\nmilk\n")
    status, printed, err = check_nccl(str(nonsense))
    assert status == 2
    assert printed is not None
    assert printed["not_understood"] == ["bread", "milk"]
    assert str(nonsense) in err
    (tmp_path / "empty").write_bytes(b"")
    assert check_nccl(str(tmp_path / "empty"))[0] == 2
    status, printed, err = check_nccl(str(tmp_path / "missing"))
    assert (status, printed) == (2, None)
    assert "no such file" in err
    status, _, err = check_nccl(str(tmp_path))
    assert status == 2
    web = server(lambda peer: peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    status, _, err = check_nccl(str(web.address))
    assert status == 2
    assert "no RAS service" in err
