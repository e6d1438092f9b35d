"""The flame graph inside Grafana, of a job of 64 ranks: what the panel's query makes of the service's answer."""

from __future__ import annotations

import json
import re
from pathlib import Path

from snapshotter.dumps import load_dumps
from tests import npm
from tests.programs import make_dumps

from .conftest import Service

TESTS = Path(__file__).parents[1]
PANEL = TESTS.parent / "dashboards" / "optional" / "hangscope-flamegraph.json"
EVALUATE = """
const [selector, answer] = JSON.parse(require('fs').readFileSync(0, 'utf8'));
require('jsonata')(selector).evaluate(answer).then(rows => console.log(JSON.stringify(rows)));
"""


def test_a_job_of_64_ranks(service: Service, tmp_path: Path) -> None:
    name = next(one for one, scenario in make_dumps.scenarios(64).items() if scenario.scope == "local")
    truth = make_dumps.write(tmp_path / "dumps", name, 64, workers=2)
    capture, problems = load_dumps(tmp_path / "dumps")
    assert not problems
    service.capturer.answers = lambda request: capture.nodes
    capture_id = service.capture()

    (panel,) = json.loads(PANEL.read_text())["panels"]
    assert panel["type"] == "flamegraph"
    (query,) = panel["targets"]
    path = query["url"].removeprefix("${snapshotter_url:raw}").replace("${capture_id}", capture_id)
    answer = service.client.get(path)
    assert (answer.status_code, answer.mimetype) == (200, "application/json")
    modules = npm.installed(TESTS / "dashboards" / "schema")
    rows = json.loads(npm.node(EVALUATE, json.dumps([query["root_selector"], answer.json]), modules=modules))

    # The fields that Grafana's panel looks for, under their names, numbers as numbers.
    columns = {column["text"]: column["type"] for column in query["columns"]}
    assert columns == {"level": "number", "value": "number", "self": "number", "label": "string"}
    assert all(column["selector"] == column["text"] for column in query["columns"])
    assert len(rows) > 30
    for row in rows:
        assert list(row) == list(columns)
        assert [type(row[name]) for name in columns] == [int, int, int, str]

    # Nested sets: depth first, each as wide as what is in it, and none empty.
    inner = [0] * len(rows)
    above: list[int] = []
    for index, row in enumerate(rows):
        assert row["level"] <= (rows[index - 1]["level"] + 1 if index else 0)
        del above[row["level"] :]
        if above:
            inner[above[-1]] += row["value"]
        above.append(index)
    assert all(row["value"] == row["self"] + below > 0 for row, below in zip(rows, inner, strict=True))

    # The frame of the culprits says who is in it and who is not.
    culprits = truth["culprit_ranks"]
    assert any(re.search(rf"@{re.escape(culprits)}\|[\d/-]+$", row["label"]) for row in rows), culprits
