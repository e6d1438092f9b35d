"""Logs written after formats of frameworks and loops: every iteration found, nothing else taken, the end seen."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import yaml

from exporter.logs.check import Checked, check

WRITTEN = Path(__file__).parents[1] / "fixtures" / "logs" / "written"
TRUTH = yaml.load((WRITTEN / "truth.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)


@cache
def _read(name: str) -> Checked:
    return check(WRITTEN / f"{name}.log", records=True)


@pytest.mark.parametrize("name", TRUTH)
def test_iterations(name: str) -> None:
    found = {record: iteration for record, iteration, _, _ in _read(name).records}
    optional = set(TRUTH[name].get("optional", ()))
    expected = {record: set(numbers) for record, *numbers in TRUTH[name]["records"]}
    missing = expected.keys() - found.keys()
    assert not missing, f"records {sorted(missing)} are not taken"
    wrong = found.keys() - expected.keys() - optional
    assert not wrong, f"records {sorted(wrong)} are no iterations"
    for record, numbers in expected.items():
        assert found[record] in numbers, f"record {record}"


@pytest.mark.parametrize("name", [name for name in TRUTH if "finished" in TRUTH[name]])
def test_how_it_ends(name: str) -> None:
    found, truth = _read(name), TRUTH[name]
    numbered = [(total, epoch) for _, iteration, total, epoch in found.records if iteration is not None]
    total, epoch = numbered[-1] if numbered else (None, None)
    assert found.finished is truth["finished"]
    assert truth.get("phase", found.phase) == found.phase
    assert truth.get("total", found.total_iterations) == found.total_iterations == total
    assert truth.get("epoch", epoch) == epoch


def test_each_log_has_its_truth() -> None:
    assert {path.stem for path in WRITTEN.glob("*.log")} == TRUTH.keys()
