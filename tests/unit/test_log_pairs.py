"""Pairs of numbers that are an epoch and a step rather than a step and a total."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.logs.check import check
from exporter.logs.pairs import Pairs
from exporter.logs.reading import Form, Reading


def _reading(number: int, total: int) -> Reading:
    return Reading(Form.KEYED, f"keyed::TRAIN:Batch0/0:{total}", number, total)


def _numbers(pairs: Pairs, shown: list[tuple[int, int]]) -> list[tuple[int | None, int | None, float | None]]:
    found = [pairs.read(_reading(*one)) for one in shown]
    return [(one.iteration, one.total, one.epoch) for one in found]


def test_a_total_that_grows_while_the_number_stands_still_is_the_counter() -> None:
    shown = [(4, 203700), (4, 203700), (4, 203800), (4, 203900), (5, 0)]
    assert _numbers(Pairs(), shown)[-2:] == [(203900, None, 4.0), (0, None, 5.0)]


def test_no_run_has_a_total_of_nothing() -> None:
    assert _numbers(Pairs(), [(4, 0), (4, 100)]) == [(0, None, 4.0), (100, None, 4.0)]


@pytest.mark.parametrize(
    "shown",
    [
        [(1, 100), (2, 100), (3, 100)],
        [(1, 100), (1, 200), (2, 200), (3, 200)],  # a run that was made longer
        [(5, 300), (5, 200), (5, 100)],
        [(1, 100), (2, 200), (3, 300), (4, 400)],
    ],
)
def test_others_stay_as_they_are(shown: list[tuple[int, int]]) -> None:
    assert [(number, total) for number, total, _ in _numbers(Pairs(), shown)] == shown


def test_a_total_from_elsewhere_in_the_record_is_one() -> None:
    reading = Reading(Form.KEYED, "keyed::step:0:None", 4, 0)
    assert Pairs().read(reading) is reading


def test_what_is_found_out_on_the_way_holds_for_the_records_before(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    lines = [f"DEBUG TRAIN Batch 4/{step} loss 12.64 lr 0.0003 rank 0\n" for step in range(100, 600, 100)]
    log.write_text("".join(lines))
    found = check(log, records=True)
    assert [(iteration, epoch) for _, iteration, _, epoch in found.records] == [
        (step, 4.0) for step in range(100, 600, 100)
    ]
    assert (found.iterations, found.last_iteration, found.total_iterations) == (5, 500, None)
