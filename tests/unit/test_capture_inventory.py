from __future__ import annotations

from collections.abc import Sequence

import pytest

from snapshotter.capture.inventory import Agent, Inventory, find_agents, parse_agent
from snapshotter.capture.prometheus import PrometheusError, Series, quote


def series(node: str, rank: str, role: str = "trainer", instance: str = "") -> Series:
    labels = {"node": node, "role": role, "rank": rank, "instance": instance or f"{node}.cluster:11028"}
    return Series(labels, 1.0)


class Answers:
    def __init__(self, now: Sequence[Series], lately: Sequence[Series] = ()) -> None:
        self.now, self.lately = now, lately
        self.asked: list[str] = []

    def __call__(self, expression: str) -> Sequence[Series]:
        self.asked.append(expression)
        return self.lately if "last_over_time" in expression else self.now


@pytest.mark.parametrize(
    ("text", "agent"),
    [
        ("gpu-1", Agent("gpu-1", 11030)),
        ("gpu-1:99", Agent("gpu-1", 99)),
        ("10.0.0.1:99", Agent("10.0.0.1", 99)),
        ("[fe80::1]:99", Agent("fe80::1", 99)),
        ("[::1]", Agent("::1", 11030)),
        ("node-a=10.0.0.1", Agent("10.0.0.1", 11030, "node-a")),
        ("node-a=[::1]:99", Agent("::1", 99, "node-a")),
    ],
)
def test_places_of_agents(text: str, agent: Agent) -> None:
    assert parse_agent(text) == agent


@pytest.mark.parametrize(
    "text", ["", "host:", "host:0", "host:99999", "::1", "http://host", "a b", "=host", "host/x"]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_agent(text)


def test_nodes_and_their_ranks_come_from_prometheus() -> None:
    ask = Answers([series("n1", "0"), series("n1", "1"), series("n2", "2"), series("n2", "", "launcher")])
    found = find_agents("job", query=ask, port=7)
    assert found == Inventory(
        (Agent("n1.cluster", 7, "n1", (0, 1)), Agent("n2.cluster", 7, "n2", (2,))), "prometheus"
    )
    assert all('job_id="job"' in expression for expression in ask.asked)


def test_what_cannot_be_a_rank_is_expected_nowhere() -> None:
    ask = Answers([series("n1", rank) for rank in ("0", "x", "-1", str(1 << 20), "9" * 5000)])
    assert [one.ranks for one in find_agents("job", query=ask).agents] == [(0,)]


def test_a_node_whose_processes_are_gone_is_still_asked() -> None:
    ask = Answers([series("n1", "0")], [series("n1", "0"), series("n2", "1")])
    found = find_agents("job", query=ask)
    assert [(one.node, one.ranks) for one in found.agents] == [("n1", (0,)), ("n2", (1,))]


def test_a_rank_that_moved_is_expected_at_its_new_place_alone() -> None:
    ask = Answers([series("n1", "0"), series("n3", "1")], [series("n2", "1"), series("n3", "1")])
    found = find_agents("job", query=ask)
    assert [(one.node, one.ranks) for one in found.agents] == [("n1", (0,)), ("n2", ()), ("n3", (1,))]


def test_a_node_of_the_static_list_is_asked_where_that_says() -> None:
    found = find_agents(
        "job",
        query=Answers([series("n1", "0"), series("n2", "1")]),
        static=[parse_agent("n1=[::1]:5"), parse_agent("n9=host9")],
    )
    assert [(one.node, one.address) for one in found.agents] == [
        ("n1", "[::1]:5"),
        ("n2", "n2.cluster:11030"),
    ]


@pytest.mark.parametrize(
    ("instance", "host"),
    [("[2001:db8::1]:11028", "2001:db8::1"), ("10.1.2.3:11028", "10.1.2.3"), ("gpu-7", "gpu-7"), ("", "n1")],
)
def test_hosts_of_instances(instance: str, host: str) -> None:
    labels = {"node": "n1", "role": "trainer", "rank": "0", "instance": instance}
    found = find_agents("job", query=Answers([Series(labels, 1.0)]))
    assert [one.host for one in found.agents] == [host]


def test_another_label_may_hold_the_address() -> None:
    labels = {"node": "n1", "role": "trainer", "rank": "0", "host_ip": "10.0.0.9"}
    found = find_agents("job", query=Answers([Series(labels, 1.0)]), address_label="host_ip")
    assert [one.host for one in found.agents] == ["10.0.0.9"]


def test_the_static_list_stands_in_where_prometheus_says_nothing_or_fails() -> None:
    static = (Agent("h", 1),)

    def broken(expression: str) -> Sequence[Series]:
        raise PrometheusError("it is down")

    assert find_agents("job", query=Answers([]), static=static) == Inventory(
        static, "static", "Prometheus knows no process of job job"
    )
    assert find_agents("job", query=broken, static=static) == Inventory(static, "static", "it is down")
    assert find_agents("job", query=None, static=static) == Inventory(static, "static")
    assert find_agents("job", query=None) == Inventory((), "alone")


def test_a_hostile_job_id_stays_inside_its_string() -> None:
    assert quote('a"} or up{x="\\\n') == '"a\\"} or up{x=\\"\\\\\\n"'
