"""What a benchmark measured, row by row: printed by itself, and collected by `python -m benchmarks` for its page."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

COLLECT = "HANGSCOPE_BENCH_ROWS"
"""Environment: the file that rows are appended to."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, with its unit. `peer`: what was measured beside it in the same run, and its name. `bound`: what is
    promised; `good`: whether that was kept, None where nothing is promised.
    """

    what: str
    ours: str
    peer: str = ""
    bound: str = ""
    good: bool | None = None


def row(what: str, ours: str, *, peer: str = "", bound: str = "", good: bool | None = None) -> None:
    """Note a figure, if somebody collects them."""
    place = os.environ.get(COLLECT)
    if place:
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(Row(what, ours, peer, bound, good))) + "\n")


def read(place: Path) -> list[Row]:
    """The rows of a run. Raises OSError."""
    return [Row(**json.loads(line)) for line in place.read_text(encoding="utf-8").splitlines()]
