"""Every log with known truth: each training iteration found with its number, nothing else taken."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import yaml

from exporter.logs.check import Checked, check

TRAINING = Path(__file__).parents[1] / "fixtures" / "logs" / "training"
TRUTH = yaml.load((TRAINING / "expected.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)["files"]
NOTHING_SAYS_SO = {"sb3-table.log", "deepspeed-info.log", "deepspeed-quiet.log"}
"""Their runs had ended, but the last record is one like all others: the text holds no sign of it."""


@cache
def _read(name: str) -> Checked:
    return check(TRAINING / name, records=True)


def _checked(entry: dict) -> Checked:
    return _read(entry["file"])


@pytest.mark.parametrize("entry", TRUTH, ids=lambda entry: entry["file"])
def test_iterations(entry: dict) -> None:
    found = {record: (iteration, total, epoch) for record, iteration, total, epoch in _checked(entry).records}
    optional = {record for record, *_ in entry.get("optional") or ()}
    expected = entry["iterations"].get("list") or []
    for record, iteration, total, epoch, *extra in expected:
        more = extra[0] if extra else {}
        if more.get("redraw") and record not in found:
            continue
        assert record in found, f"record {record} is not taken"
        assert found[record][0] in {iteration, more.get("alt", iteration)}, f"record {record}"
        if epoch is not None:
            assert found[record][2] == epoch, f"record {record}"
        if total is not None and "alt" not in more:
            assert found[record][1] == total, f"record {record}"
    wrong = set(found) - optional - {record for record, *_ in expected}
    assert not wrong, f"records {sorted(wrong)} are no iterations"


@pytest.mark.parametrize("entry", TRUTH, ids=lambda entry: entry["file"])
def test_summary(entry: dict) -> None:
    found = _checked(entry)
    expected = entry["iterations"].get("list") or []
    numbered = [one for one in expected if one[1] is not None]
    assert found.iterations == len(found.records)
    assert found.last_record == (expected[-1][0] if expected else None)
    if numbered:
        for number, (_, iteration, _, _, *extra) in (
            (found.first_iteration, numbered[0]),
            (found.last_iteration, numbered[-1]),
        ):
            assert number in {iteration, *(one.get("alt") for one in extra)}
    else:
        assert found.first_iteration is found.last_iteration is None


@pytest.mark.parametrize("entry", TRUTH, ids=lambda entry: entry["file"])
def test_finished(entry: dict) -> None:
    expected = entry["training_finished"] and entry["file"] not in NOTHING_SAYS_SO
    assert _checked(entry).finished is expected
