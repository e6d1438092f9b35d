"""The table of routes in docs/security.md is that of the programs, and what it says of tokens is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from flask import Flask
from prometheus_client import CollectorRegistry

import exporter.server
import snapshotter.app
from snapshotter.capture import agent

DOCS = Path(__file__).parents[2] / "docs"
ROWS = re.findall(
    r"^\| (exporter|agent|snapshotter) \| `(\S+)` \| (\w+) \| (\w+)",
    (DOCS / "security.md").read_text(),
    re.MULTILINE,
)


def exporters() -> Flask:
    served = exporter.server.create_app(
        CollectorRegistry(), node="n", sections=lambda: (), ready=lambda: True, reload=lambda: None
    )
    inner: Any = served
    return cast(Flask, inner.app.__self__)


def routes(app: Flask) -> Iterator[tuple[str, str]]:
    for rule in app.url_map.iter_rules():
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            yield rule.rule, method


APPS = {
    "exporter": exporters(),
    "agent": agent.create_app(
        node="n", find=cast(Any, None), capture=cast(Any, None), matches=lambda _: False
    ),
    "snapshotter": snapshotter.app.create_app(cast(Any, None)),
}


@pytest.mark.parametrize("program", APPS)
def test_every_route_is_in_the_table(program: str) -> None:
    listed = [(path, method) for name, path, method, _ in ROWS if name == program]
    served = {*routes(APPS[program])}
    if program == "exporter":
        served.add(("/metrics", "GET"))  # mounted beside the application
    assert sorted(listed) == sorted(served)


@pytest.mark.parametrize(
    ("path", "method"), [(path, method) for name, path, method, _ in ROWS if name == "agent"]
)
def test_agent_answers_nobody_without_a_token(path: str, method: str) -> None:
    answer = APPS["agent"].test_client().open(path, method=method)
    assert answer.status_code == 401


def test_what_changes_something_wants_a_token_at_the_snapshotter() -> None:
    for name, path, method, needs in ROWS:
        if name == "snapshotter":
            assert needs == ("open" if method == "GET" else "token"), (path, method)
