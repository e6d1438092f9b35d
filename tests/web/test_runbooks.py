"""The runbooks that alerts link to."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient

from snapshotter.web.runbooks import runbooks

RUNBOOKS = Path(__file__).parents[2] / "rules" / "runbooks"


@pytest.fixture
def client() -> FlaskClient:
    app = Flask("runbooks")
    app.register_blueprint(runbooks)
    return app.test_client()


def test_every_runbook_is_served_under_the_name_that_alerts_use(client: FlaskClient) -> None:
    listed = client.get("/runbooks/").text.split()
    assert listed == sorted(f"/runbooks/{path.name}" for path in RUNBOOKS.glob("*.md"))
    for address in listed:
        answer = client.get(address)
        assert answer.status_code == 200
        assert answer.text == (RUNBOOKS / Path(address).name).read_text()
        assert answer.content_type == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    "name", ["Unknown", "Unknown.md", "..%2f..%2fsettings.yaml", "..", ".md", "%00", "a%0ab", "a" * 10_000]
)
def test_nothing_else_is_served(client: FlaskClient, name: str) -> None:
    assert client.get(f"/runbooks/{name}").status_code == 404
