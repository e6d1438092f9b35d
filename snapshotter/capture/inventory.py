"""On which nodes a job runs, and where their agents listen.

The exporters' `training_process_info` in Prometheus says so; a static list of nodes stands in where there is
no Prometheus or it has nothing to say; with neither, this node is captured alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from snapshotter.capture.prometheus import PrometheusError, Series, quote
from snapshotter.stacks import rankset

DEFAULT_PORT = 11030
# A job whose exporter, node or processes went a while ago: its nodes are asked all the same.
_LOOK_BACK = "30m"

Source = Literal["prometheus", "static", "alone"]


@dataclass(frozen=True, slots=True)
class Agent:
    """Where a node's agent listens. `node` None: whatever the agent calls itself."""

    host: str
    port: int
    node: str | None = None
    ranks: tuple[int, ...] = ()  # that were last seen there; empty where nobody knows

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def name(self) -> str:
        return self.node or self.address


@dataclass(frozen=True, slots=True)
class Inventory:
    """The agents to ask (none: capture here), how they were found, and what went wrong on the way."""

    agents: tuple[Agent, ...]
    source: Source
    problem: str | None = None


def parse_agent(text: str, port: int = DEFAULT_PORT) -> Agent:
    """`host`, `host:port`, `[::1]:port`, or any of them after `node=`. Raises ValueError."""
    node, equals, address = text.strip().rpartition("=")
    match = re.fullmatch(r"(?:\[(?P<v6>[0-9a-fA-F:.%]+)\]|(?P<host>[\w.-]+))(?::(?P<port>\d{1,5}))?", address)
    number = port if match is None or match["port"] is None else int(match["port"])
    if match is None or not 0 < number < 65536 or (equals and not node):
        raise ValueError(f"{text!r} is no node: write HOST, HOST:PORT, [IPV6]:PORT or NODE=HOST:PORT")
    return Agent(match["v6"] or match["host"], number, node or None)


def find_agents(
    job_id: str,
    *,
    query: Callable[[str], Sequence[Series]] | None,
    static: Sequence[Agent] = (),
    port: int = DEFAULT_PORT,
    address_label: str = "instance",
) -> Inventory:
    """The agents of a job's nodes (of all nodes with training where `job_id` is empty). Never raises.

    `query` asks Prometheus, None where there is none. Agents listen on the host that `address_label` of the
    exporters' series names, on `port`; a node of the static list is asked where that says.
    """
    problem = None
    if query is not None:
        try:
            agents = _from_series(job_id, query, static, port, address_label)
            if agents:
                return Inventory(agents, "prometheus")
            problem = f"Prometheus knows no process of job {job_id}" if job_id else "Prometheus knows no job"
        except PrometheusError as error:
            problem = str(error)
    return Inventory(tuple(static), "static" if static else "alone", problem)


def _from_series(
    job_id: str,
    query: Callable[[str], Sequence[Series]],
    static: Sequence[Agent],
    port: int,
    address_label: str,
) -> tuple[Agent, ...]:
    selector = f"training_process_info{{job_id={quote(job_id)}}}" if job_id else "training_process_info"
    by = f"group by (node, role, rank, {address_label})"
    now = query(f"{by} ({selector})")
    lately = query(f"{by} (last_over_time({selector}[{_LOOK_BACK}]))")
    places = {agent.node: agent for agent in static if agent.node is not None}
    found: dict[str, Agent] = {}
    for series in (*now, *lately):
        node = series.labels.get("node", "")
        address = series.labels.get(address_label, "")
        host = _host(address) or _host(node)
        if node in found or not (node or host):
            continue
        place = places.get(node)
        found[node or host] = (
            Agent(place.host, place.port, node) if place else Agent(host, port, node or None)
        )
    here = _ranks(now)
    seen = {rank for ranks in here.values() for rank in ranks}
    before = _ranks(lately)
    agents = []
    for node, one in sorted(found.items()):
        # A rank that runs on another node by now has moved there.
        ranks = here.get(node, set()) | (before.get(node, set()) - seen)
        agents.append(replace(one, ranks=tuple(sorted(ranks))))
    return tuple(agents)


def _ranks(series: Iterable[Series]) -> dict[str, set[int]]:
    """Trainer ranks by node."""
    found: dict[str, set[int]] = {}
    for one in series:
        rank = rankset.number(one.labels.get("rank"))
        if one.labels.get("role") == "trainer" and rank is not None:
            found.setdefault(one.labels.get("node", ""), set()).add(rank)
    return found


def _host(address: str) -> str:
    """The host of a Prometheus instance: `host:port`, `[v6]:port` or a bare host."""
    match = re.fullmatch(r"(?:\w+://)?(?:\[([^\]]+)\]|([^:/\[\]]+))(?::\d+)?(?:/.*)?", address)
    return (match[1] or match[2]) if match else ""
