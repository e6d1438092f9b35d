"""Agents on loopback addresses: good, slow, lying, broken, gone; and the real one under a real server."""

from __future__ import annotations

import gzip
import hmac
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
import urllib3
from cheroot.wsgi import Server
from flask import Flask

from exporter.ranks import ProcessId, Scan, TrainingProcess
from snapshotter.capture import agent as agent_module
from snapshotter.capture import fanout
from snapshotter.capture.agent import Memory, Watch, create_app
from snapshotter.capture.fanout import AgentClient, AgentFailure, Tls, capture_job
from snapshotter.capture.inventory import Agent
from snapshotter.capture.node import Progress
from snapshotter.capture.wire import AnswerReader, Order
from snapshotter.encoding import encode
from snapshotter.gathered import Gathered
from snapshotter.stacks.model import NodeAnswer, Process, Sample
from tests.running import wait_for

TOKEN = "t0ken"


def answer(node: str, rank: int = 0, **changes: object) -> NodeAnswer:
    process = Process(100, node, "trainer", rank, "ok", samples=(Sample(1.0, "ok"),))
    whole = NodeAnswer(node, "ok", 1.0, 2.0, job_id="job", processes=(process,))
    return replace(whole, **changes)  # type: ignore[arg-type]


class RawServer:
    """Accepts connections on a loopback address and lets `talk` do with each what it likes.

    Before `listen` it refuses them, and nobody else has its port.
    """

    def __init__(self, talk: Callable[[socket.socket], None], host: str) -> None:
        self._talk = talk
        self._socket = socket.socket()
        self._socket.bind((host, 0))
        self.host, self.port = self._socket.getsockname()

    def listen(self) -> None:
        self._socket.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with closing(connection), connection.makefile("rb") as reader:
            connection.settimeout(60)
            try:
                length = 0
                while line := reader.readline().strip():
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                reader.read(length)  # what is closed with something unread is reset
                self._talk(connection)
            except OSError:
                pass  # the client has hung up

    def close(self) -> None:
        with suppress(OSError):  # it did not listen
            # close() alone would leave the thread in accept()
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def says(body: bytes, status: str = "200 OK", headers: str = "") -> Callable[[socket.socket], None]:
    if "Content-Length" not in headers:
        headers += f"Content-Length: {len(body)}\r\n"
    head = f"HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n"
    return lambda connection: connection.sendall(head.encode() + body)


def silent(connection: socket.socket) -> None:
    connection.recv(1)


def dripping(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    for _ in range(2000):
        connection.sendall(b" ")
        time.sleep(0.05)


def resetting(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


Talk = Callable[[socket.socket], None]


@pytest.fixture
def raw() -> Iterator[Callable[[Talk], RawServer]]:
    """Makes servers that do not listen yet, each on an address of its own."""
    servers: list[RawServer] = []

    def make(talk: Talk) -> RawServer:
        servers.append(RawServer(talk, f"127.0.0.{len(servers) + 2}"))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def serve(raw: Callable[[Talk], RawServer]) -> Callable[..., Agent]:
    def serve(talk: Talk, node: str | None = None) -> Agent:
        server = raw(talk)
        server.listen()
        return Agent(server.host, server.port, node, (7, 8))

    return serve


@pytest.fixture
def refusing(raw: Callable[[Talk], RawServer]) -> Callable[[str], Agent]:
    def refusing(node: str) -> Agent:
        server = raw(silent)
        return Agent(server.host, server.port, node, (9,))

    return refusing


def ask_with(client: AgentClient) -> Callable[[Agent, float], Gathered]:
    reader = AnswerReader()
    return lambda agent, deadline: client.ask(agent, Order(job_id="job"), reader, deadline=deadline)


def test_what_arrives_in_time_is_the_capture_and_the_rest_is_named(
    serve: Callable[..., Agent], refusing: Callable[[str], Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo

    def without_name_server(host: str, *more: Any, **options: Any) -> Any:
        """Where no name server can be reached a real one is asked for longer than an agent is."""
        if host.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", without_name_server)
    agents = [
        serve(says(encode(answer("good"))), "good"),
        refusing("unreachable"),
        serve(silent, "silent"),
        serve(dripping, "dripping"),
        serve(says(encode(answer("another"))), "lying"),
        serve(says(encode(answer("wrong-job", job_id="other"))), "wrong-job"),
        serve(says(b"<html>hello</html>"), "web"),
        serve(says(b'{"error": "busy"}', "503 Busy"), "busy"),
        serve(says(b"", "401 Unauthorized"), "locked"),
        serve(says(b"no gzip", headers="Content-Encoding: gzip\r\n"), "garbled"),
        serve(
            lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nx"), "cut"
        ),
        serve(lambda connection: connection.sendall(b"\x00\x01\x02\r\n\r\n"), "not-http"),
        Agent("no-such-host.invalid", 1, "nowhere"),
    ]
    steps: list[Progress] = []
    client = ask_with(AgentClient())

    def ask(agent: Agent, deadline: float) -> Gathered:
        """The two that would not end by themselves get little time, the others enough."""
        return client(agent, deadline / 60 if agent.node in ("silent", "dripping") else deadline)

    gathered = capture_job(
        agents, ask, job_id="job", node_deadline=60.0, total_deadline=120.0, progress=steps.append
    )

    found = {one.answer.node: one.answer for one in gathered}
    assert {node: one.outcome for node, one in found.items()} == {
        "good": "ok",
        "unreachable": "unreachable",
        "silent": "timeout",
        "dripping": "timeout",
        "lying": "error",
        "wrong-job": "error",
        "web": "error",
        "busy": "error",
        "locked": "denied",
        "garbled": "unreachable",
        "cut": "unreachable",
        "not-http": "unreachable",
        "nowhere": "unreachable",
    }
    assert [process.rank for one in gathered for process in one.processes] == [0]
    assert found["good"].expected_ranks == (7, 8)  # Prometheus knew them there, and they have no process
    for node, one in found.items():
        if node != "good":
            assert one.error
    assert found["unreachable"].expected_ranks == (9,)
    assert "busy" in (found["busy"].error or "")
    assert "calls itself 'another'" in (found["lying"].error or "")
    assert steps[-1].total == len(agents)


def test_an_agent_that_is_being_restarted_is_waited_for(
    raw: Callable[[Talk], RawServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "_ASK_AGAIN", 0.01)
    server = raw(says(encode(answer("restarting"))))
    client = ask_with(AgentClient())
    asked: list[Agent] = []

    def ask(agent: Agent, deadline: float) -> Gathered:
        try:
            return client(agent, deadline)
        finally:
            asked.append(agent)
            if len(asked) == 3:
                server.listen()

    agent = Agent(server.host, server.port, "restarting")
    (found,) = capture_job([agent], ask, job_id="job", node_deadline=60.0, patience=60.0)
    assert found.answer.outcome == "ok"
    assert len(asked) == 4


@pytest.mark.parametrize(("patience", "times"), [(0.0, 1), (0.9, 1), (1.5, 2), (3.0, 4)])
def test_an_agent_is_waited_for_as_long_as_there_is_patience(
    refusing: Callable[[str], Agent], monkeypatch: pytest.MonkeyPatch, patience: float, times: int
) -> None:
    clock, asked = [0.0], []

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(fanout, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    client = ask_with(AgentClient())

    def ask(agent: Agent, deadline: float) -> Gathered:
        asked.append(clock[0])
        return client(agent, deadline)

    (found,) = capture_job(
        [refusing("gone")], ask, job_id="job", node_deadline=60.0, patience=patience, now=lambda: 1.0
    )
    assert found.answer.outcome == "unreachable"
    assert asked == [float(second) for second in range(times)]


def test_two_addresses_of_one_node_are_counted_once(serve: Callable[..., Agent]) -> None:
    agents = [serve(says(encode(answer("same")))), serve(says(encode(answer("same"))))]
    first, second = capture_job(
        agents, ask_with(AgentClient()), job_id="job", node_deadline=60, total_deadline=120
    )
    assert (first.answer.node, first.answer.outcome) == ("same", "ok")
    assert (second.answer.node, second.answer.outcome) == (agents[1].address, "error")
    assert second.processes == []


def test_a_bomb_is_not_unpacked(serve: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapshotter.capture.wire.LARGEST_ANSWER", 5_000_000)
    bomb = gzip.compress(b" " * 50_000_000)
    agent = serve(says(bomb, headers="Content-Encoding: gzip\r\n"), "bomb")
    with pytest.raises(AgentFailure, match="exceeds"):
        ask_with(AgentClient())(agent, 60.0)


class RealAgent:
    """The agent's application under the server that it runs under."""

    def __init__(self, capture: Callable[[Order], NodeAnswer], **server: object) -> None:
        trainer = TrainingProcess(
            ProcessId(5, 1), 1, "job", "trainer", 0, 0, 1, "python", ("python", "--token", "hush"), "torchrun"
        )
        self.app: Flask = create_app(
            node="node-a",
            find=lambda: Scan(3.0, "node-a", (trainer,)),
            capture=capture,
            matches=lambda given: hmac.compare_digest(given.encode(), TOKEN.encode()),
        )
        self.server = Server(("127.0.0.1", 0), self.app)
        for name, value in server.items():
            setattr(self.server, name, value)
        self.server.prepare()
        self.agent = Agent("127.0.0.1", self.server.bind_addr[1], "node-a")
        threading.Thread(target=self.server.serve, daemon=True).start()


@pytest.fixture
def run() -> Iterator[Callable[..., RealAgent]]:
    agents: list[RealAgent] = []

    def run(capture: Callable[[Order], NodeAnswer], **server: object) -> RealAgent:
        agents.append(RealAgent(capture, **server))
        return agents[-1]

    yield run
    for one in agents:
        one.server.stop()


def test_the_agent_obeys_an_order_with_the_token(
    run: Callable[..., RealAgent], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "snapshotter.audit")
    orders: list[Order] = []

    def capture(order: Order) -> NodeAnswer:
        orders.append(order)
        return answer("node-a", kernel_log=("x" * 10_000,))

    agent = run(capture).agent
    order = Order(job_id="job", capture_id="c1", reason="it\nhangs", requested_by="alertmanager")
    got = AgentClient(token=TOKEN).ask(agent, order, AnswerReader(), deadline=60)

    assert orders == [order]
    assert got.whole() == answer("node-a", kernel_log=("x" * 10_000,))
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[0] for line in lines] == ["capture_started", "capture_taken"]
    for line in lines:
        assert 'requested_by="alertmanager"' in line
        assert r'reason="it\nhangs"' in line
        assert 'job_id="job"' in line
        assert "\n" not in line


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x"])
def test_without_the_token_nothing_is_told_or_done(
    run: Callable[..., RealAgent], caplog: pytest.LogCaptureFixture, token: str | None
) -> None:
    caplog.set_level(logging.INFO, "snapshotter.audit")
    agent = run(lambda order: pytest.fail("it captured")).agent
    with pytest.raises(AgentFailure) as failure:
        AgentClient(token=token).ask(agent, Order(), AnswerReader(), deadline=60)
    assert failure.value.outcome == "denied"
    assert [record.getMessage().split()[0] for record in caplog.records] == ["refused"]
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    for path in ("/api/v1/ranks", "/", "/metrics", "/api/v1/captures"):
        reply = urllib3.request("GET", f"http://{agent.address}{path}", headers=headers)
        assert (reply.status, b"hush" in reply.data) == (401, False)


def test_the_agent_answers_two_addresses_and_nothing_else(run: Callable[..., RealAgent]) -> None:
    agent = run(lambda order: answer("node-a")).agent

    def ask(method: str, path: str, body: bytes = b"") -> tuple[int, dict[str, object]]:
        reply = urllib3.request(
            method,
            f"http://{agent.address}{path}",
            body=body,
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
        return reply.status, json.loads(reply.data)

    status, ranks = ask("GET", "/api/v1/ranks")
    assert (status, ranks["node"]) == (200, "node-a")
    assert ranks["processes"][0]["command_line"] == "python --token ***"  # type: ignore[index]
    assert ask("POST", "/api/v1/capture", b'{"job_id": "job"}')[0] == 200
    assert ask("GET", "/api/v1/capture")[0] == 405
    assert ask("GET", "/")[0] == 404
    assert ask("GET", "/metrics")[0] == 404
    assert ask("POST", "/api/v1/capture", b"nonsense")[0] == 400
    assert "interval" in str(ask("POST", "/api/v1/capture", b'{"interval": 1e9}')[1]["error"])
    assert ask("POST", "/api/v1/capture", b" " * 100_000)[0] == 413


def test_orders_for_one_job_share_a_capture_and_too_many_jobs_are_refused(
    run: Callable[..., RealAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, second_waits = threading.Event(), threading.Event()
    taken: list[str] = []

    class Noting(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            second_waits.set()
            return super().wait(timeout)

    class Shared(agent_module._Shared):
        def __init__(self, capture: Callable[[Order], NodeAnswer]) -> None:
            super().__init__(capture)
            self._lock = Noting()

    def capture(order: Order) -> NodeAnswer:
        taken.append(order.job_id)
        assert go_on.wait(120)
        return answer("node-a", job_id=order.job_id)

    monkeypatch.setattr(agent_module, "_Shared", Shared)
    agent = run(capture).agent
    client = AgentClient(token=TOKEN)
    results: list[NodeAnswer] = []

    def ask(job_id: str) -> None:
        order = Order(job_id=job_id, deadline=120)
        results.append(client.ask(agent, order, AnswerReader(), deadline=120).answer)

    threads = [threading.Thread(target=ask, args=(job,)) for job in ("a", "a", "b", "c", "d")]
    for thread in threads:
        thread.start()
    wait_for(lambda: set(taken) == set("abcd") and second_waits.is_set())
    with pytest.raises(AgentFailure, match="503"):
        ask("e")
    go_on.set()
    for thread in threads:
        thread.join(120)
    assert sorted(taken) == ["a", "b", "c", "d"]
    assert sorted(one.job_id for one in results) == ["a", "a", "b", "c", "d"]


def test_agents_may_want_a_client_certificate(run: Callable[..., RealAgent], tmp_path: Path) -> None:
    authority = trustme.CA()
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("snapshotter.local")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name, certificate in (("server", server), ("client", client)):
        certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / f"{name}.pem")
    from cheroot.ssl.builtin import BuiltinSSLAdapter

    adapter = BuiltinSSLAdapter(tmp_path / "server.pem", tmp_path / "server.pem")
    adapter.context.verify_mode = 2  # ssl.CERT_REQUIRED
    authority.configure_trust(adapter.context)
    agent = run(lambda order: answer("node-a"), ssl_adapter=adapter).agent
    files = {"ca_file": str(tmp_path / "ca.pem")}
    with_own = Tls(**files, cert_file=str(tmp_path / "client.pem"))

    got = AgentClient(token=TOKEN, tls=with_own).ask(agent, Order(), AnswerReader(), deadline=60)
    assert got.answer.node == "node-a"
    for tls in (Tls(**files), Tls()):
        with pytest.raises(AgentFailure) as failure:
            AgentClient(token=TOKEN, tls=tls).ask(agent, Order(), AnswerReader(), deadline=60)
        assert failure.value.outcome == "unreachable"


def test_ranks_that_were_seen_are_remembered_for_a_while() -> None:
    clock = [1000.0]
    memory = Memory(keep=60, now=lambda: clock[0])
    trainer = TrainingProcess(
        ProcessId(5, 1), 1, "job", "trainer", 3, 0, 8, "python", ("python",), "torchrun"
    )
    launcher = replace(trainer, rank=None, role="launcher")
    scans = [
        Scan(1000.0, "n", (trainer, launcher)),
        Scan(1001.0, "n", (replace(trainer, rank=4), replace(trainer, job_id="other"))),
    ]
    looked = threading.Event()

    def find() -> Scan:
        if len(scans) == 1:
            looked.set()
        return scans.pop(0) if len(scans) > 1 else scans[0]

    watch = Watch(find, memory, interval=0.001)
    watch.start()
    assert looked.wait(60)
    watch.stop()
    wait_for(lambda: memory.ranks("job") == (3, 4))
    assert (memory.ranks("job"), memory.ranks("other"), memory.ranks("none")) == ((3, 4), (3,), ())
    clock[0] = 1060.5
    assert memory.ranks("job") == (4,)
    clock[0] = 1062.0
    assert memory.ranks("job") == ()


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", "the connection was closed without an answer"),
        (b"SSH-2.0-OpenSSH_9\r\n", "what answers there does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n", "the headers of the answer are too many"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{", "the answer broke off"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip!",
            "cannot be unpacked",
        ),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "answered 302; is this the address"),
    ],
)
def test_what_is_no_agent_is_told_in_words(serve: Callable[..., Agent], sent: bytes, words: str) -> None:
    agent = serve(lambda connection: connection.sendall(sent))
    with pytest.raises(AgentFailure, match=words) as failure:
        AgentClient().ask(agent, Order(job_id="job"), AnswerReader(), deadline=60)
    assert "(" not in str(failure.value)  # nothing of Python's


def test_ranks_of_an_agent_that_could_not_look_are_not_forgotten(serve: Callable[..., Agent]) -> None:
    late = answer("late", outcome="denied", processes=(), error="run as root", job_id="job")
    agent = serve(says(encode(late)), "late")
    (gathered,) = capture_job([agent], ask_with(AgentClient()), job_id="job", node_deadline=60)
    assert (gathered.answer.outcome, gathered.answer.expected_ranks) == ("denied", (7, 8))


def test_an_agent_that_resets_the_connection_is_told_in_words(serve: Callable[..., Agent]) -> None:
    agent = serve(resetting)
    with pytest.raises(AgentFailure) as failure:
        AgentClient().ask(agent, Order(job_id="job"), AnswerReader(), deadline=60)
    assert str(failure.value) == f"{agent.address} cannot be asked: Connection reset by peer"
    assert failure.value.away  # as while it is restarted
