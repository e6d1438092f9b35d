"""Agents over TLS, as the chart runs them: one certificate for all, which names no address, and one for who asks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from exporter import webconfig
from exporter.ranks import Scan
from snapshotter.capture import agent as agent_app
from snapshotter.capture.fanout import AgentFailure
from snapshotter.capture.inventory import Agent
from snapshotter.capture.job import _client
from snapshotter.capture.wire import AnswerReader, Order
from snapshotter.config import AgentsConfig
from snapshotter.stacks.model import NodeAnswer

NAME = "hangscope-agent"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Secret's files, as cert-manager writes them, and the web configuration beside them."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    for name, issued in (
        ("tls", authority.issue_cert(NAME)),
        ("client", authority.issue_cert("snapshotter")),
    ):
        issued.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        for pem in issued.cert_chain_pems:
            pem.write_to_path(tmp_path / f"{name}.crt", append=True)
    (tmp_path / "web.yaml").write_text(
        "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n"
        "  client_ca_file: ca.crt\n  client_auth_type: RequireAndVerifyClientCert\n"
    )
    return tmp_path


@pytest.fixture
def agent(folder: Path) -> Iterator[Agent]:
    app = agent_app.create_app(
        node="gpu-1",
        find=lambda: Scan(0.0, "gpu-1", ()),
        capture=lambda order: NodeAnswer("gpu-1", "ok", 1.0, 2.0, order.job_id, None, ()),
        matches=lambda token: token == "right",
    )
    path = folder / "web.yaml"
    config = webconfig.load(path)
    server = webconfig.server(webconfig.Gate(app, config), "127.0.0.1:0", config, path)
    webconfig.bind(server)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    yield Agent("127.0.0.1", server.bind_addr[1], "gpu-1")
    server.stop()
    thread.join()


@pytest.fixture
def ask(agent: Agent, folder: Path) -> Callable[..., NodeAnswer]:
    def with_files(**changed: str | None) -> NodeAnswer:
        files = {
            "ca_file": str(folder / "ca.crt"),
            "cert_file": str(folder / "client.crt"),
            "key_file": str(folder / "client.key"),
            "token_file": "token",
            "server_name": NAME,
        }
        client = _client(AgentsConfig(tls=True, **(files | changed)), lambda path: "right")  # type: ignore[arg-type]
        return client.ask(agent, Order(job_id="j"), AnswerReader(), deadline=60).answer

    return with_files


def test_one_certificate_serves_all_agents(ask: Callable[..., NodeAnswer]) -> None:
    assert ask().node == "gpu-1"


@pytest.mark.parametrize(
    "changed",
    [
        {"server_name": None},
        {"server_name": "another"},
        {"cert_file": None, "key_file": None},
        {"ca_file": None},
    ],
    ids=["names no address", "another name", "no certificate to show", "unknown authority"],
)
def test_who_does_not_fit_is_refused(ask: Callable[..., NodeAnswer], changed: dict[str, str | None]) -> None:
    with pytest.raises(AgentFailure) as failure:
        ask(**changed)
    assert failure.value.outcome == "unreachable"
