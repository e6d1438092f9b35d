"""The capture of a job wherever it runs: through the agents of its nodes, or here where there are none."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from exporter.yamlconfig import ConfigError
from snapshotter.capture import native
from snapshotter.capture.fanout import AgentClient, Tls, capture_job
from snapshotter.capture.inventory import Agent, Inventory, find_agents, parse_agent
from snapshotter.capture.local import LocalNode
from snapshotter.capture.node import Progress
from snapshotter.capture.prometheus import Prometheus
from snapshotter.capture.wire import AnswerReader, Order
from snapshotter.config import AgentsConfig, Config
from snapshotter.gathered import Gathered
from snapshotter.stacks.digest import digest
from snapshotter.stacks.model import NodeAnswer
from snapshotter.stacks.premerge import digest_trees

log = logging.getLogger(__name__)

_ANSWER_MARGIN = 15.0  # seconds that an agent's answer may take beyond its capture
_NATIVE_TIME = 30.0  # seconds for C frames, where they are needed
_PATIENCE = 20.0  # seconds for an agent that is being restarted
# What is done where Prometheus does not tell the nodes.
_INSTEAD = {
    "static": "those of agents.nodes are asked",
    "alone": "agents.nodes names none, so only this node is looked at",
}


@dataclass(frozen=True, slots=True)
class JobCapturer:
    """Captures jobs by the configuration in force. Safe to use from several threads."""

    local: Callable[[], LocalNode]  # asked only where there is no agent
    settings: Callable[[], Config]
    read_token: Callable[[Path], str]  # raises exporter.yamlconfig.ConfigError
    now: Callable[[], float] = time.time
    patience: float = _PATIENCE  # seconds that an agent whose host refuses connections is asked again

    def capture(
        self,
        job_id: str,
        *,
        capture_id: str = "",
        reason: str = "",
        requested_by: str = "",
        agents: Sequence[Agent] | None = None,
        native_frames: bool = False,
        progress: Callable[[Progress], None] = lambda step: None,
    ) -> tuple[Gathered, ...]:
        """One answer of each node; job_id empty: whatever trains. `agents` given: those and no others.

        Raises ConfigError, PySpyMissing.
        """
        config = self.settings()
        found = Inventory(tuple(agents), "static") if agents is not None else self.inventory(job_id)
        if found.problem is not None:
            log.warning("where job %s runs: %s; %s", job_id or "(any)", found.problem, _INSTEAD[found.source])
        order = Order(
            job_id=job_id,
            capture_id=capture_id,
            reason=reason,
            requested_by=requested_by,
            interval=float(config.capture.sample_interval),
            deadline=float(config.capture.node_timeout),
            native_frames=native_frames or config.capture.native_frames,
            ask_nccl=config.capture.ask_nccl,
            with_tree=True,
        )
        end = time.monotonic() + config.agents.total_timeout
        unclear = config.capture.native_when_unclear and not order.native_frames
        if not found.agents:
            local = self.local()
            answer = local.capture(order, progress)
            if found.problem is not None and answer.error is not None:
                answer = replace(answer, error=f"{answer.error}; {found.problem}: {_INSTEAD[found.source]}")
            return (Gathered.of(with_native_frames(local, order, answer) if unclear else answer),)
        client = _client(config.agents, self.read_token)
        reader = AnswerReader()
        to_ask = _asks_nccl(found.agents)
        quiet = msgspec.structs.replace(order, ask_nccl=False)

        def ask(agent: Agent, deadline: float) -> Gathered:
            return client.ask(agent, order if agent in to_ask else quiet, reader, deadline=deadline)

        gathered = capture_job(
            found.agents,
            ask,
            job_id=job_id,
            node_deadline=config.capture.node_timeout + _ANSWER_MARGIN,
            total_deadline=config.agents.total_timeout,
            patience=self.patience,
            progress=progress,
            now=self.now,
        )
        if not unclear:
            return gathered

        def ask_native(agent: Agent, order: Order, deadline: float) -> Gathered:
            return client.ask(agent, order, reader, deadline=deadline)

        return _with_native_frames(found.agents, gathered, order, ask_native, end)

    def inventory(self, job_id: str) -> Inventory:
        """The agents of a job's nodes. Raises ConfigError for a token that cannot be read."""
        config = self.settings()
        query = None
        if config.prometheus.url is not None:
            token_file = config.prometheus.token_file
            token = None if token_file is None else self.read_token(Path(token_file))
            query = Prometheus(config.prometheus.url, token=token).query
        return find_agents(
            job_id,
            query=query,
            static=[parse_agent(one, config.agents.port) for one in config.agents.nodes],
            port=config.agents.port,
            address_label=config.agents.address_label,
        )


def with_native_frames(
    local: LocalNode, order: Order, answer: NodeAnswer, pids: Sequence[int] = ()
) -> NodeAnswer:
    """This node's answer with C frames where Python's do not tell what a hang is."""
    wanted = native.wanted(order.job_id, digest([answer]))
    if not wanted:
        return answer
    again = _native_order(order, tuple(one.pid for one in wanted), _NATIVE_TIME)
    return native.merged(answer, local.capture(again, pids=pids))


def _with_native_frames(
    agents: Sequence[Agent],
    gathered: tuple[Gathered, ...],
    order: Order,
    ask: Callable[[Agent, Order, float], Gathered],
    end: float,
) -> tuple[Gathered, ...]:
    """The same for all nodes, of outliers and one representative of each class, until `end` at most."""
    left = min(_NATIVE_TIME + _ANSWER_MARGIN, end - time.monotonic())
    if left < _ANSWER_MARGIN:
        return gathered
    pids: dict[str, list[int]] = {}
    for process in native.wanted(order.job_id, digest_trees(one.tree for one in gathered)):
        pids.setdefault(process.node, []).append(process.pid)
    places = {
        one.answer.node: agent for agent, one in zip(agents, gathered, strict=True) if one.answer.node in pids
    }
    orders = {
        places[node]: _native_order(order, tuple(its), left - _ANSWER_MARGIN / 2)
        for node, its in pids.items()
    }
    extra = capture_job(
        tuple(orders),
        lambda agent, deadline: ask(agent, orders[agent], deadline),
        job_id=order.job_id,
        node_deadline=left,
        total_deadline=left,
    )
    for failed in (one.answer for one in extra if one.answer.outcome != "ok"):
        log.warning("no native frames of %s: %s", failed.node, failed.error)
    later = {one.answer.node: one for one in extra if one.answer.outcome == "ok"}
    return tuple(
        _merged(one, later[one.answer.node]) if one.answer.node in later else one for one in gathered
    )


def _merged(one: Gathered, later: Gathered) -> Gathered:
    whole = Gathered.of(native.merged(one.whole(), later.whole()))
    return whole.expecting(one.answer.expected_ranks)


def _native_order(order: Order, pids: tuple[int, ...], deadline: float) -> Order:
    return msgspec.structs.replace(
        order,
        native_pids=pids,
        ask_nccl=False,
        deadline=max(1.0, min(deadline, order.deadline)),
        reason=f"native frames, as Python's do not tell: {order.reason}",
    )


def _asks_nccl(agents: Sequence[Agent]) -> frozenset[Agent]:
    """Any node's RAS speaks of the whole job, and each question costs the job: two nodes ask, not all."""
    by_rank = sorted(agents, key=lambda agent: (not agent.ranks, agent.ranks))
    return frozenset((by_rank[0], by_rank[-1]))


def check_files(config: Config, read_token: Callable[[Path], str]) -> None:
    """Read the files that captures will need: better now than when a job hangs. Raises ConfigError."""
    _client(config.agents, read_token)
    if config.prometheus.token_file is not None:
        read_token(Path(config.prometheus.token_file))


def _client(config: AgentsConfig, read_token: Callable[[Path], str]) -> AgentClient:
    """Raises ConfigError."""
    token = None if config.token_file is None else read_token(Path(config.token_file))
    files = (config.ca_file, config.cert_file, config.key_file)
    tls = Tls(*files, server_name=config.server_name) if config.tls else None
    try:
        return AgentClient(token=token, tls=tls)
    except OSError as error:
        names = ", ".join(one for one in files if one is not None)
        raise ConfigError(
            f"agents.ca_file, cert_file, key_file: {names} cannot be used: {error.strerror or error}"
        ) from error
