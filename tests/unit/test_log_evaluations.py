"""Evaluations that print as training does, while the log grows: what counts is judged anew at each record."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from exporter.logs.interpreter import Interpreter
from exporter.logs.model import Phase


def _pairs(total: int, stride: int, *, first: int = 0) -> list[str]:
    return [f"[{n}/{total}] e_MAE: 0.12, f_MAE: 0.16, time/step=24ms" for n in range(first, total, stride)]


def _counted(interpreter: Interpreter, lines: Iterable[str]) -> int:
    """How many of the records count when they come."""
    count = 0
    for line in lines:
        observation = interpreter.feed(line.encode() + b"\n")
        assert observation is not None and observation.series is not None, line
        count += observation.series.key in interpreter.chooser.accepted()
    return count


def test_the_second_evaluation_of_the_same_statement_does_not_count() -> None:
    interpreter = Interpreter()
    training, evaluation = _pairs(1000, 100), _pairs(50, 10)
    _counted(interpreter, [*training, *evaluation])
    phases = []
    for _ in range(3):
        assert _counted(interpreter, training) == len(training)
        phases.append(interpreter.phase)
        assert _counted(interpreter, evaluation) == 0
        phases.append(interpreter.phase)
    assert phases == [Phase.TRAINING, Phase.EVALUATING] * 3


def test_one_that_goes_on_alone_is_training_with_another_total() -> None:
    interpreter = Interpreter()
    long, short = _pairs(1000, 100), _pairs(400, 100)
    _counted(interpreter, [*long, *short, *long])
    assert _counted(interpreter, short) == 0
    assert _counted(interpreter, short * 2) >= len(short)
    assert _counted(interpreter, short) == len(short)
    assert interpreter.phase is Phase.TRAINING


def test_totals_of_about_the_same_size_all_count() -> None:
    interpreter = Interpreter()
    for total in (1000, 992, 1004, 996, 1000, 992):
        lines = _pairs(total, 100)
        assert _counted(interpreter, lines) == len(lines)


def test_one_that_was_broken_off_is_no_evaluation() -> None:
    interpreter = Interpreter()
    _counted(interpreter, [*_pairs(1000, 100), *_pairs(400, 100)[:2], *_pairs(1000, 100)])
    short = _pairs(400, 100)
    assert _counted(interpreter, short) == len(short)


@pytest.mark.parametrize("parts", [1, 4])
def test_a_bar_within_each_step_moves_only_where_it_has_parts(parts: int) -> None:
    interpreter = Interpreter()
    moved = 0
    for step in range(1, 9):
        for part in range(1, parts + 1):
            interpreter.feed(
                f"Train mini-batches: 100%|####| {part}/{parts} [00:34<00:00, 34s/it]\n".encode()
            )
        outer = interpreter.feed(
            f"Running step:   1%|#   | {step}/1750 [04:29<130:54:12, 269s/it]\n".encode()
        )
        assert outer is not None and outer.series is not None
        moved += outer.moved and outer.series.key in interpreter.chooser.accepted()
    assert (moved >= 7) is (parts == 1)
    newest = {one.key: one.last for one in interpreter.chooser.series}
    assert {newest[key] for key in interpreter.chooser.accepted()} == {8 if parts == 1 else 4}


def test_a_newline_behind_what_another_wrote_ends_no_bar() -> None:
    interpreter = Interpreter()
    for end in (b"\r", b" a word of another writer\n"):
        interpreter.feed(b"Iteration:  23%|##   | 650/2771 [01:23<04:25,  7.98it/s]" + end)
    (bar,) = interpreter.chooser.series
    assert not bar.closed
    assert bar.redrawn
