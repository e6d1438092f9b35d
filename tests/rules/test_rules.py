"""The rules as a whole: every alert is complete, tested and explained, and asks for metrics that exist."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from exporter import metrics as exporter_metrics
from snapshotter import metrics as snapshotter_metrics

RULES = Path(__file__).parents[2] / "rules"
RULE_FILES = ("settings.yaml", "training_rules.yaml", *sorted(p.name for p in RULES.glob("*_alerts.yaml")))
SEVERITIES = {"critical", "warning", "info"}
ANNOTATIONS = {"summary", "description", "runbook_url", "dashboard_url", "report_url"}


def _rules() -> Iterator[dict[str, Any]]:
    for name in RULE_FILES:
        for group in yaml.safe_load((RULES / name).read_text())["groups"]:
            yield from group["rules"]


ALERTS = {rule["alert"]: rule for rule in _rules() if "alert" in rule}
RECORDS = {rule["record"]: rule for rule in _rules() if "record" in rule}
EXPRESSIONS = sorted({rule["expr"] for rule in _rules()})


@dataclass(frozen=True)
class Metric:
    kind: str
    labels: frozenset[str]


def served() -> dict[str, Metric]:
    """Every series name that exporter and snapshotter can serve, with the labels that they set."""
    names = {}
    for spec in (*exporter_metrics.TABLE, *snapshotter_metrics.TABLE):
        labels = frozenset(spec.labels)
        if spec.kind in ("summary", "histogram"):
            names[f"{spec.name}_sum"] = names[f"{spec.name}_count"] = Metric("counter", labels)
        if spec.kind == "histogram":
            names[f"{spec.name}_bucket"] = Metric("counter", labels | {"le"})
        else:
            extra = {"quantile"} if spec.kind == "summary" else set()
            names[spec.name] = Metric(spec.kind, labels | extra)
    return names


def selectors(expression: str) -> Iterator[tuple[str, frozenset[str]]]:
    """The metric names of an expression, each with the labels that it is matched by."""

    def walk(node: Any) -> Iterator[tuple[str, frozenset[str]]]:
        match node:
            case promql_parser.VectorSelector():
                yield node.name or "", frozenset(matcher.name for matcher in node.matchers.matchers)
            case promql_parser.MatrixSelector():
                yield from walk(node.vector_selector)
            case promql_parser.SubqueryExpr() | promql_parser.UnaryExpr() | promql_parser.ParenExpr():
                yield from walk(node.expr)
            case promql_parser.AggregateExpr():
                yield from walk(node.expr)
            case promql_parser.BinaryExpr():
                yield from walk(node.lhs)
                yield from walk(node.rhs)
            case promql_parser.Call():
                for argument in node.args:
                    yield from walk(argument)

    return walk(promql_parser.parse(expression))


def lookups(text: str) -> list[str]:
    """The queries in an annotation's template, with stand-ins where it puts in labels."""
    texts = re.findall(r'printf "((?:[^"\\]|\\.)*%q(?:[^"\\]|\\.)*)"[^|}]*\| query', text)
    texts += re.findall(r'query "((?:[^"\\]|\\.)*)"', text)
    return [one.replace("%q", '"x"').replace('\\"', '"') for one in texts]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_another_parser_accepts_the_expression(expression: str) -> None:
    promql_parser.parse(expression)


def test_every_metric_and_label_in_an_expression_is_served_or_recorded() -> None:
    known = served()
    target = {"job", "instance"}
    asked = [(rule.get("alert", rule.get("record")), rule["expr"]) for rule in _rules()]
    for name, alert in ALERTS.items():
        asked += [(name, query) for text in alert["annotations"].values() for query in lookups(text)]
    unknown = []
    for rule, expression in asked:
        for name, labels in selectors(expression):
            if name in known:
                unknown += [(rule, name, label) for label in labels - known[name].labels - target]
            elif name not in RECORDS and name not in ("up", "ALERTS"):
                unknown.append((rule, name, ""))
    assert not unknown


def test_every_counter_is_rated() -> None:
    known = served()
    for rule in _rules():
        flat = re.sub(r"\b(rate|increase|last_over_time)\(\w+(\{[^}]*\})?\[\w+\]\)", "", rule["expr"])
        for name, _ in selectors(rule["expr"]):
            if name in known and known[name].kind == "counter":
                assert name not in flat, rule


@pytest.mark.parametrize("name", ALERTS)
def test_alert_is_complete(name: str) -> None:
    alert = ALERTS[name]
    assert re.fullmatch(r"(Training|Hangscope)([A-Z][a-z]+)+", name)
    assert set(alert["labels"]) == {"severity"}, "a label of changing value would be another alert each time"
    assert alert["labels"]["severity"] in SEVERITIES
    assert "for" in alert
    assert set(alert["annotations"]) >= ANNOTATIONS
    assert "{{" not in alert["annotations"]["summary"]
    assert "{{" in alert["annotations"]["description"] or "absent(" in alert["expr"]
    assert f"/{name}.md" in alert["annotations"]["runbook_url"]


@pytest.mark.parametrize("name", ALERTS)
def test_every_for_is_argued(name: str) -> None:
    """The comment above the alert gives the reason, or names the alert that does."""
    for file in RULE_FILES:
        before, found, _ = (RULES / file).read_text().partition(f"- alert: {name}\n")
        if found:
            comment = []
            for line in reversed(before.rstrip().splitlines()):
                if not line.strip().startswith("#"):
                    break
                comment.append(line.strip("# "))
            text = " ".join(reversed(comment))
            assert f"for: {ALERTS[name]['for']}" in text or re.search(r"As Hangscope\w+\.", text), (
                text or name
            )
            return
    raise AssertionError(name)


def test_every_alert_is_tested_firing_and_silent() -> None:
    outcomes: Counter[tuple[str, bool]] = Counter()
    for path in (RULES / "tests").glob("*.yaml"):
        for test in yaml.safe_load(path.read_text())["tests"]:
            for case in test.get("alert_rule_test", ()):
                outcomes[case["alertname"], bool(case["exp_alerts"])] += 1
    assert {name for name, _ in outcomes} == set(ALERTS)
    assert not [name for name in ALERTS if not outcomes[name, True] or not outcomes[name, False]]


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert {path.stem for path in (RULES / "runbooks").glob("*.md")} == set(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_runbook_says_what_it_means_what_to_look_at_and_what_to_do(name: str) -> None:
    text = (RULES / "runbooks" / f"{name}.md").read_text()
    assert text.startswith(f"# {name}\n")
    headings = re.findall(r"^## (.*)$", text, re.M)
    assert headings == ["What it means", "What to look at", "What to do"]


def test_every_alert_is_described() -> None:
    text = (RULES.parent / "docs" / "alerts.md").read_text()
    for name, alert in ALERTS.items():
        assert re.search(
            rf"^\| \[`{name}`\]\(\.\./rules/runbooks/{name}\.md\) \| {alert['labels']['severity']} \|",
            text,
            re.M,
        ), name
    for name in RECORDS:
        assert f"`{name}`" in text, name


def test_groups_follow_the_global_interval_and_load_in_the_oldest_prometheus() -> None:
    for name in RULE_FILES:
        for group in yaml.safe_load((RULES / name).read_text())["groups"]:
            assert set(group) == {"name", "rules"}
