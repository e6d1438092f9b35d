"""A job's capture through everything between: Prometheus, agents under their server, NCCL, or here alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from cheroot.wsgi import Server
from pytest_httpserver import HTTPServer

from exporter.nccl.question import Asked
from exporter.nccl.ras import Reply, understand
from exporter.procfs import ProcFS
from exporter.ranks import ProcessId, Scan, TrainingProcess
from snapshotter.capture import rasfacts
from snapshotter.capture.agent import create_app
from snapshotter.capture.facts import look
from snapshotter.capture.job import JobCapturer
from snapshotter.capture.local import local_node
from snapshotter.capture.node import Progress
from snapshotter.capture.wire import Order
from snapshotter.config import AgentsConfig, CaptureConfig, Config, PrometheusConfig
from snapshotter.stacks.model import NodeAnswer

TOKEN = "t0ken"
TRANSCRIPTS = Path(__file__).parent.parent / "fixtures" / "nccl" / "transcripts"


def host(number: int) -> str:
    """A loopback address that no other process uses, so that the port that was free on one is so on all."""
    return f"127.{1 + os.getpid() // 256 % 255}.{os.getpid() % 256}.{number + 1}"


class Nodes:
    """Agents on loopback addresses that share a port, as those of a cluster do."""

    def __init__(self) -> None:
        self.orders: dict[str, Order] = {}
        self.servers: list[Server] = []
        self.port = 0

    def start(self, number: int) -> None:
        node = f"node-{number}"

        def capture(order: Order) -> NodeAnswer:
            self.orders[node] = order
            return NodeAnswer(node, "ok", 1.0, 2.0, job_id=order.job_id)

        app = create_app(
            node=node,
            find=lambda: Scan(1.0, node, ()),
            capture=capture,
            matches=lambda given: given == TOKEN,
        )
        server = Server((host(number), self.port), app)
        server.prepare()
        self.port = server.bind_addr[1]
        threading.Thread(target=server.serve, daemon=True).start()
        self.servers.append(server)


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    for server in nodes.servers:
        server.stop()


def tell(httpserver: HTTPServer, numbers: Sequence[int]) -> None:
    """Prometheus knows one rank on each of these nodes."""
    result = [
        {
            "metric": {
                "node": f"node-{number}",
                "role": "trainer",
                "rank": str(number),
                "instance": f"{host(number)}:11028",
            },
            "value": [1.0, "1"],
        }
        for number in numbers
    ]
    body = {"status": "success", "data": {"resultType": "vector", "result": result}}
    httpserver.expect_request("/api/v1/query").respond_with_json(body)


def capturer(tmp_path: Path, url: str | None, port: int, nodes: Sequence[str] = ()) -> JobCapturer:
    (tmp_path / "token").write_text(TOKEN + "\n")
    config = Config(
        capture=msgspec.structs.replace(
            CaptureConfig(), sample_interval=0.0, process_timeout=60.0, node_timeout=240.0
        ),
        agents=AgentsConfig(token_file=str(tmp_path / "token"), port=port, nodes=tuple(nodes)),
        prometheus=PrometheusConfig(url=url),
    )
    return JobCapturer(
        lambda: local_node("here", ProcFS(), lambda: config.capture),
        lambda: config,
        lambda path: path.read_text().strip(),
        patience=0.0,
    )


def test_an_order_reaches_every_node_that_prometheus_knows(
    nodes: Nodes, httpserver: HTTPServer, tmp_path: Path
) -> None:
    for number in range(1, 5):
        nodes.start(number)
    tell(httpserver, [1, 2, 3, 4, 5])  # nobody listens on the fifth
    steps: list[Progress] = []

    answers = capturer(tmp_path, httpserver.url_for(""), nodes.port).capture(
        "job", capture_id="c1", reason="it hangs", requested_by="alertmanager", progress=steps.append
    )

    assert {one.answer.node: one.answer.outcome for one in answers} == {
        "node-1": "ok",
        "node-2": "ok",
        "node-3": "ok",
        "node-4": "ok",
        "node-5": "unreachable",
    }
    assert [one.answer.expected_ranks for one in answers] == [(1,), (2,), (3,), (4,), (5,)]
    assert [(step.stage, step.done, step.total) for step in steps] == [("nodes", n, 5) for n in range(1, 6)]
    order = nodes.orders["node-2"]
    assert (order.job_id, order.capture_id, order.reason, order.requested_by) == (
        "job",
        "c1",
        "it hangs",
        "alertmanager",
    )
    # RAS speaks of the whole job, and each question costs the job something.
    assert {node for node, one in nodes.orders.items() if one.ask_nccl} == {"node-1"}


def test_the_static_list_is_asked_where_prometheus_is_down(nodes: Nodes, tmp_path: Path) -> None:
    nodes.start(1)
    made = capturer(tmp_path, "http://127.0.0.1:9", nodes.port, nodes=[host(1), "node-9=127.0.0.1:9"])
    answers = made.capture("job")
    assert [(one.answer.node, one.answer.outcome) for one in answers] == [
        ("node-1", "ok"),
        ("node-9", "unreachable"),
    ]


def test_a_job_that_is_not_here_may_be_where_nobody_could_tell(tmp_path: Path) -> None:
    (gathered,) = capturer(tmp_path, "http://127.0.0.1:9", 1).capture("elsewhere")
    error = gathered.answer.error
    assert error is not None and error.startswith("no process of job elsewhere is left on here")
    assert "Prometheus at http://127.0.0.1:9 does not answer" in error
    assert error.endswith("agents.nodes names none, so only this node is looked at")


def test_without_agents_this_node_is_captured(rank: TrainingProcess, tmp_path: Path) -> None:
    (gathered,) = capturer(tmp_path, None, 1).capture(rank.job_id)
    answer = gathered.whole()
    assert (answer.node, answer.outcome, answer.job_id) == ("here", "ok", rank.job_id)
    assert [(one.pid, one.rank, one.outcome) for one in answer.processes] == [(rank.id.pid, 0, "ok")]
    assert answer.nccl is not None
    assert answer.nccl.error == "not asked: no process has loaded NCCL"


@pytest.fixture
def rank() -> Iterator[TrainingProcess]:
    """A rank of a job of its own."""
    job = f"alone-{os.getpid()}"
    torchrun = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "TORCHELASTIC_RUN_ID": job,
    }
    process = subprocess.Popen(
        [sys.executable, "-c", "print('ready', flush=True); import time; time.sleep(600)"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **torchrun},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        now = look(ProcFS(), process.pid)
        assert now is not None
        yield TrainingProcess(
            ProcessId(process.pid, now.start_ticks), 1, job, "trainer", 0, 0, 1, "python", (), "torchrun"
        )
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def answering(name: str) -> Callable[..., Asked]:
    reply = Reply((TRANSCRIPTS / f"{name}.reply").read_bytes(), None, 0.1)
    return lambda *_, **__: Asked(answer=understand(reply))


def test_what_ras_says_is_kept_word_for_word_and_held_against_ranks(
    rank: TrainingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "killed-t75-2.30.7"
    monkeypatch.setattr(rasfacts, "ask_job", answering(name))
    found = rasfacts.ask(ProcFS(), Scan(time.time(), "here", (rank,)), rank.job_id)
    assert found.answer.error is None
    assert found.answer.raw == (TRANSCRIPTS / f"{name}.reply").read_text()
    assert {fact.kind for fact in found.facts} >= {"dead"}


def test_an_answer_that_broke_off_is_kept_with_its_reason(
    rank: TrainingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = Reply(b"SERVER PROTOCOL 2\nNCCL ver", None, 0.1, "timeout", "it took too long")
    monkeypatch.setattr(rasfacts, "ask_job", lambda *_, **__: Asked(answer=understand(reply)))
    found = rasfacts.ask(ProcFS(), Scan(time.time(), "here", (rank,)), rank.job_id)
    assert found.answer.raw == "SERVER PROTOCOL 2\nNCCL ver"
    assert found.answer.error == "timeout: it took too long"
    assert found.facts == ()
