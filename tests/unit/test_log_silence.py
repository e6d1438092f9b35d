"""Records like others that said nothing are passed over, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.logs.check import check
from exporter.logs.interpreter import Interpreter
from exporter.logs.silence import Silence

TRAINING = Path(__file__).parents[1] / "fixtures" / "logs" / "training"


@pytest.mark.parametrize("path", sorted(TRAINING.glob("*.log")), ids=lambda path: path.name)
def test_passing_over_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = check(path, records=True)
    monkeypatch.setattr(Silence, "covers", lambda *_: False)
    assert check(path, records=True) == quick


def _fed(*records: str) -> list[bool]:
    """For each record whether it was read."""
    interpreter = Interpreter()
    return [interpreter.feed(f"{one}\n".encode()) is not None for one in records]


def test_noise_is_read_once() -> None:
    lines = [f"gpu-1:41{n} [0] NCCL INFO Channel {n:02d}/24 :    0   {n}" for n in range(5)]
    assert _fed(*lines) == [True, False, False, False, False]


@pytest.mark.parametrize(
    "records",
    [
        ("loss after step 1.5", "loss after step 2"),
        ("5 documents", "6 documents", "7 documents done"),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        ("saving model 1", "saving model 2"),
        ("1,2.5,0.1", "2,2.4,0.1"),
    ],
)
def test_what_may_tell_something_is_read_each_time(records: tuple[str, ...]) -> None:
    assert _fed(*records)[-1]


def test_rows_are_read_once_their_table_has_begun() -> None:
    rows = [f"run {n} 2.5 0.1" for n in range(3)]
    assert _fed(*rows, "name  epoch  loss  time", *rows) == [True, False, False, True, True, True, True]
    counted = Interpreter()
    for line in ("a1\t5\t2.5", "a2\t6\t2.4", "name\tepoch\tloss", "a3\t7\t2.3", "a4\t8\t2.2"):
        counted.feed(f"{line}\n".encode())
    assert [one.last for one in counted.chooser.series] == [8]


def test_parts_of_a_record_are_never_passed_over() -> None:
    stamp = "2026-06-12T10:00:0{}.1Z stdout {} {}"
    interpreter = Interpreter()
    for n, part, text in ((1, "F", "all is well"), (2, "P", "step 7 loss 2.5 "), (3, "F", "all is well")):
        observation = interpreter.feed((stamp.format(n, part, text) + "\n").encode())
    assert observation is not None
    assert observation.reading is not None
    assert observation.reading.iteration == 7
