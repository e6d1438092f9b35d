"""Numbers as logs print them, and as nobody should."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from exporter.logs import userpattern
from exporter.logs.check import run
from exporter.logs.numbers import count

ENDLESS = "9" * 400


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,200", 1200),
        ("0005", 5),
        ("21.0", 21),
        ("21.5", None),
        ("1.25k", 1250),
        ("2M", 2_000_000),
        ("1.20e+03", 1200),
        ("1.5e+00", None),
        (ENDLESS, None),
        (f"{ENDLESS}k", None),
        (f"1e+{ENDLESS}", None),
        ("the+end", None),
        ("nank", None),
        ("-5k", None),
        ("", None),
    ],
)
def test_a_count_or_none(text: str, number: int | None) -> None:
    assert count(text) == number


@pytest.mark.parametrize("shown", ["the+end", f"{ENDLESS}k", "infG", ""])
def test_what_an_expression_takes_for_an_iteration_may_be_none(shown: str) -> None:
    assert userpattern.reading({"iteration": shown}) is None


@pytest.mark.parametrize(
    "record",
    [
        f"step {ENDLESS}k loss: 0.5",
        f"epoch {ENDLESS} step 3 loss: 0.5",
        f"Epoch {ENDLESS}: 30%|### | 3/10 [00:01<00:02, 3.1it/s, loss=0.5]",
        f'{{"epoch": {ENDLESS}, "step": 3, "loss": 0.5}}',
        '{"epoch": 1e999, "step": 3, "loss": 0.5}',
        '{"epoch": NaN, "step": 3, "loss": 0.5}',
    ],
)
def test_a_number_without_end_is_none_and_the_rest_is_read(record: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"{record}\n" * 3 + "step 4 loss: 0.5\n" * 2)
    out = io.StringIO()
    assert run([log], as_json=True, records=True, explain=True, out=out) == 0

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    found = json.loads(out.getvalue(), parse_constant=refuse)
    assert found["last_iteration"] == 4
    assert all(epoch is None for _, _, _, epoch in found["records"])
