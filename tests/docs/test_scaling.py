"""The numbers of series in docs/scaling.md: by the table of metrics, and by what an exporter really served."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporter.collectors.nccl import SHOWN
from exporter.logs.model import Phase
from exporter.metrics import TABLE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
EXPOSITION = (ROOT / "tests" / "fixtures" / "expositions" / "exporter.prom").read_text(encoding="utf-8")
SAMPLES = [one for family in text_string_to_metric_families(EXPOSITION) for one in family.samples]
COUNTS = Counter(spec.labels for spec in TABLE)
QUANTILES = 4

PER_RANK_AND_ROLE = COUNTS["job_id", "rank", "role"]
PER_LOG = COUNTS["job_id", "log"] - 1 + QUANTILES + 2 + 1 + len(Phase)  # the summary; info; phases
SKIP_REASONS = sum(one.name == "nccl_ras_skipped" for one in SAMPLES)
PER_JOB = (
    sum(spec.labels == ("job_id",) and not spec.name.startswith("nccl_") for spec in TABLE) + SKIP_REASONS
)
PER_ASKED_JOB = (
    sum(spec.labels == ("job_id",) and spec.name.startswith("nccl_") for spec in TABLE) + 2
)  # info, OK
PER_NODE = sum("job_id" not in one.labels for one in SAMPLES)
PRESSURE = 6


def number(text: str) -> int:
    return int(text.replace(",", ""))


def row(start: str) -> int:
    found = re.search(rf"^\| {re.escape(start)}[^|]*\| (?:up to )?([\d,]+) \|", PAGE, re.MULTILINE)
    assert found is not None, start
    return number(found[1])


@pytest.mark.parametrize(
    ("start", "counted"),
    [
        ("node |"[:-2], PER_NODE),
        ("rank and role on the node", PER_RANK_AND_ROLE),
        ("followed log", PER_LOG),
        ("job on the node", PER_JOB),
        ("job, on the node that asks NCCL", PER_ASKED_JOB),
    ],
)
def test_table_counts_right(start: str, counted: int) -> None:
    assert row(start) == counted


def test_what_was_served_is_what_the_table_says() -> None:
    """A whole exposition, put together from its parts."""
    names = Counter(one.name for one in SAMPLES)
    parts = (
        PER_NODE
        + names["training_processes"] * (PER_RANK_AND_ROLE - 1)  # that kernel accounts no delays
        + names["training_process_info"]
        + names["training_process_blocked_info"]
        + names["training_log_info"] * PER_LOG
        + names["training_ranks_running"] * PER_JOB
    )
    assert "training_process_io_wait_seconds_total" not in names
    assert parts == len(SAMPLES)
    assert f"A scrape of {parts} series is {len(EXPOSITION.encode()):,} bytes" in PAGE


def test_examples_are_worked_out_right() -> None:
    node = PER_NODE + 17 * PER_RANK_AND_ROLE + 41 + PER_JOB + PRESSURE
    once = PER_LOG + PER_ASKED_JOB
    assert row("a node with 8 ranks") == node
    assert row("a job of 1,024 ranks") == 128 * node + once
    assert row("10,000 such nodes") == 10_000 * node + -(-10_000 // 128) * once
    assert f"{10_000 * node // 15 // 1000},000 samples a\nsecond" in PAGE


def test_bad_communicators_are_bounded() -> None:
    assert f"the {SHOWN} worst communicators" in PAGE and f"{SHOWN} bad communicators a job" in PAGE
    assert f"up to {3 * SHOWN} in a bad state" in PAGE


def test_what_no_rule_needs_is_listed() -> None:
    rules = "".join(path.read_text() for path in (ROOT / "rules").glob("*.yaml"))
    dashboards = "".join(
        json.dumps(json.loads(path.read_text())) for path in (ROOT / "dashboards").glob("*.json")
    )
    (listed,) = re.findall(r"<!-- not in rules -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert listed.splitlines() == [
        f"- `{spec.name}`"
        + (" (dashboard)" if re.search(rf"\b{spec.name}(_sum|_count)?\b", dashboards) else "")
        for spec in sorted(TABLE, key=lambda spec: spec.name)
        if not re.search(rf"\b{spec.name}\b", rules)
    ]


def test_the_example_drops_nothing_that_rules_or_snapshotter_need() -> None:
    (pattern,) = re.findall(r"regex: (\S+)", PAGE)
    rules = "".join(path.read_text() for path in (ROOT / "rules").glob("*.yaml"))
    for spec in TABLE:
        if re.fullmatch(pattern, f"{spec.name};dataloader"):
            assert not re.search(rf"\b{spec.name}\b", rules), spec.name
