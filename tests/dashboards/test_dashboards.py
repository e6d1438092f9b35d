"""The dashboards as files: up to date, and by the rules of Grafana's dashboard linter."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import promql_parser
import pytest
import yaml

from exporter import metrics as exporter_metrics
from snapshotter import metrics as snapshotter_metrics

ROOT = Path(__file__).parents[2]
DASHBOARDS = {
    path.stem: json.loads(path.read_text()) for path in (ROOT / "dashboards").glob("hangscope-*.json")
}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Panel types whose value has no unit.
NO_UNIT = {"row", "text", "state-timeline", "flamegraph"}


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", ())


PANELS = [
    pytest.param(panel, id=f"{uid}: {panel['title']}")
    for uid, dashboard in DASHBOARDS.items()
    for panel in panels(dashboard)
    if panel["type"] != "row"
]
TARGETS = [
    pytest.param(target["expr"], id=f"{param.id} {target['refId']}")
    for param in PANELS
    for target in param.values[0].get("targets", ())
    if "expr" in target
]


def plain(expression: str) -> str:
    """The expression with Grafana's variables put in."""
    return re.sub(r"\$(job_id|rank|instance)\b", "x", expression.replace("$__rate_interval", "1m"))


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    path = ROOT / "dashboards" / "generate.py"
    spec = importlib.util.spec_from_file_location("dashboards_generate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_generated_files_are_up_to_date(generate: ModuleType) -> None:
    for path, text in generate.files().items():
        assert path.read_text() == text, f"{path}: run `python dashboards/generate.py`"


def test_config_maps_hold_the_same_and_fit(generate: ModuleType) -> None:
    maps = list(yaml.safe_load_all(generate.CONFIG_MAPS.read_text()))
    held = {}
    for one in maps:
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert sum(map(len, one["data"].values())) < 1 << 20
        held |= {name: json.loads(text) for name, text in one["data"].items()}
    assert held == {f"{uid}.json": dashboard for uid, dashboard in DASHBOARDS.items()}


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_dashboard_can_be_provisioned(uid: str) -> None:
    dashboard = DASHBOARDS[uid]
    assert dashboard["uid"] == uid
    assert len(uid) <= 40
    assert dashboard["id"] is None
    assert dashboard["editable"] is False
    assert "__inputs" not in dashboard, "only the import dialog resolves them, provisioning does not"
    ids = [panel["id"] for panel in panels(dashboard)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_panels_do_not_overlap(uid: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARDS[uid]["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, (panel["title"], taken[x, y])
                taken[x, y] = panel["title"]


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_variables(uid: str) -> None:
    variables = {one["name"]: one for one in DASHBOARDS[uid]["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    for one in variables.values():
        if one["type"] == "query":
            assert one["datasource"] == DATASOURCE
            assert one["refresh"] == 2, "read again when the time range changes"
            assert one["label"]
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(DASHBOARDS[uid])))
    assert used <= set(variables), "every variable that is used is defined"
    assert set(variables) - {"datasource"} <= used | {"snapshotter_url"}


@pytest.mark.parametrize("panel", PANELS)
def test_panel(panel: dict[str, Any]) -> None:
    assert panel["title"] and panel["description"]
    assert panel["datasource"] == DATASOURCE
    assert panel["targets"]
    if panel["type"] not in NO_UNIT:
        assert panel["fieldConfig"]["defaults"]["unit"]
    for target in panel["targets"]:
        assert target["datasource"] == DATASOURCE
    references = [target["refId"] for target in panel["targets"]]
    assert len(set(references)) == len(references)


@pytest.mark.parametrize("expression", TARGETS)
def test_query_is_promql_with_the_rate_interval(expression: str) -> None:
    promql_parser.parse(plain(expression))
    for function, window in re.findall(r"\b(rate|irate|increase)\([^\[]*\[([^\]]+)\]", expression):
        assert window == "$__rate_interval", function


@functools.cache
def _served() -> dict[str, tuple[str, set[str]]]:
    names: dict[str, tuple[str, set[str]]] = {}
    for spec in (*exporter_metrics.TABLE, *snapshotter_metrics.TABLE):
        labels = {*spec.labels, "job", "instance"}
        if spec.kind == "histogram":
            names[f"{spec.name}_bucket"] = ("counter", {*labels, "le"})
        else:
            names[spec.name] = (spec.kind, {*labels, "quantile"} if spec.kind == "summary" else labels)
    return names


@functools.cache
def _recorded() -> set[str]:
    files = (ROOT / "rules").glob("*.yaml")
    groups = [group for file in files for group in (yaml.safe_load(file.read_text()) or {}).get("groups", ())]
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


def _selectors(node: Any) -> Iterator[Any]:
    match node:
        case promql_parser.VectorSelector():
            yield node
        case promql_parser.MatrixSelector():
            yield node.vector_selector
        case promql_parser.AggregateExpr() | promql_parser.ParenExpr() | promql_parser.UnaryExpr():
            yield from _selectors(node.expr)
        case promql_parser.SubqueryExpr():
            yield from _selectors(node.expr)
        case promql_parser.BinaryExpr():
            yield from _selectors(node.lhs)
            yield from _selectors(node.rhs)
        case promql_parser.Call():
            for argument in node.args:
                yield from _selectors(argument)


@pytest.mark.parametrize("expression", TARGETS)
def test_query_asks_for_what_is_served_and_rates_counters(expression: str) -> None:
    served, recorded = _served(), _recorded()
    for selector in _selectors(promql_parser.parse(plain(expression))):
        if selector.name in served:
            kind, labels = served[selector.name]
            assert {matcher.name for matcher in selector.matchers.matchers} <= labels, selector.name
            if kind == "counter":
                assert re.search(rf"\b(rate|increase)\({selector.name}\b", expression)
        else:
            assert selector.name in recorded | {"ALERTS"}


@pytest.mark.parametrize("panel", [param for param in PANELS if param.values[0]["type"] == "table"])
def test_columns_of_a_table_exist(panel: dict[str, Any]) -> None:
    """Fields named in transformations and overrides are labels of the queries, or their values."""
    served = {label for _, labels in _served().values() for label in labels} | {"alertname", "severity"}
    several = len(panel["targets"]) > 1
    values = {f"Value #{target['refId']}" for target in panel["targets"]} if several else {"Value"}
    shown = next(
        one["options"]["include"]["names"]
        for one in panel["transformations"]
        if one["id"] == "filterFieldsByName"
    )
    assert set(shown) <= served | values
    for override in panel["fieldConfig"]["overrides"]:
        renamed = next(
            one["options"]["renameByName"] for one in panel["transformations"] if one["id"] == "organize"
        )
        assert override["matcher"]["options"] in {renamed.get(name, name) for name in shown}
