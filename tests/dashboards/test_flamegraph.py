"""The optional flame graph: its query makes of the snapshotter's answer what Grafana's panel reads."""

from __future__ import annotations

import json
from pathlib import Path

from snapshotter.render import grafana
from snapshotter.stacks.model import Frame
from snapshotter.stacks.tree import build
from tests import npm

DASHBOARD = Path(__file__).parents[2] / "dashboards" / "optional" / "hangscope-flamegraph.json"
EVALUATE = """
const [selector, answer] = JSON.parse(require('fs').readFileSync(0, 'utf8'));
require('jsonata')(selector).evaluate(answer).then(rows => console.log(JSON.stringify(rows)));
"""


def test_rows_are_nested_sets_with_the_ranks_in_the_label(modules: Path) -> None:
    train = Frame("train", "/train.py", 10)
    wait = Frame("all_reduce", "/dist.py", 20)
    read = Frame("read_shard", "/data.py", 30)
    stacks = {("MainThread", (wait, train)): 0b1101, ("MainThread", (read, train)): 0b0010}
    answer = json.loads(grafana.render([build("trainer", stacks, captured=0b1111)]))
    (target,) = json.loads(DASHBOARD.read_text())["panels"][0]["targets"]
    rows = json.loads(npm.node(EVALUATE, json.dumps([target["root_selector"], answer]), modules=modules))
    assert [list(row) for row in rows] == [["level", "value", "self", "label"]] * len(rows)
    assert [column["selector"] for column in target["columns"]] == ["level", "value", "self", "label"]
    assert [(row["level"], row["value"], row["self"]) for row in rows] == [
        (0, 4, 0),
        (1, 4, 0),
        (2, 4, 0),
        (3, 3, 3),
        (3, 1, 1),
    ]
    assert rows[-1]["label"] == "MainThread@read_shard@/data.py:30@1|0/2-3"
