"""Logs written after formats of frameworks and loops: every iteration found, nothing else taken, the end seen."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import yaml

from exporter.logs.check import Checked, check
from exporter.logs.interpreter import Interpreter
from exporter.logs.linereader import RecordSplitter
from exporter.logs.verdict import has_ended

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


def _said_to_be_over(name: str) -> int:
    """How many records before the last iteration leave a log that looks as if training were over."""
    last = max((record for record, *_ in TRUTH[name]["records"]), default=0)
    interpreter, over = Interpreter(), 0
    for record in RecordSplitter().feed((WRITTEN / f"{name}.log").read_bytes())[: max(0, last - 1)]:
        interpreter.feed(record)
        over += has_ended(interpreter)
    return over


def test_no_log_has_ended_before_its_last_iteration() -> None:
    """What has ended is not watched: a hang at the end of the first epoch would not be seen."""
    over = {name: count for name in TRUTH if (count := _said_to_be_over(name))}
    # Nothing has said by then that there are epochs at all.
    assert over == {"cellpose-train": 1, "tensorpack-bars": 1, "two-ranks-bars-and-epochs": 3}


def test_each_log_has_its_truth() -> None:
    assert {path.stem for path in WRITTEN.glob("*.log")} == TRUTH.keys()
