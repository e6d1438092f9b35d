"""Logs of many more frameworks, written after their format strings, and texts that only look like iterations."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.logs.check import check

SHAPES = Path(__file__).parents[1] / "fixtures" / "logs" / "shapes.txt"


def _sections() -> dict[str, list[tuple[str, str]]]:
    sections: dict[str, list[tuple[str, str]]] = {}
    for text in SHAPES.read_text(encoding="utf-8").split("\n== ")[1:]:
        name, *lines = text.split("\n")
        sections[name] = [
            (mark, record) for mark, bar, record in (line.partition("|") for line in lines) if bar
        ]
    return sections


SECTIONS = _sections()


@pytest.mark.parametrize("name", SECTIONS)
def test_shape(name: str, tmp_path: Path) -> None:
    lines = SECTIONS[name]
    log = tmp_path / "train.log"
    records = [record.replace("\\e", "\x1b") for _, record in lines]
    ended = [
        record.removesuffix("\\r") + "\r" if record.endswith("\\r") else record + "\n" for record in records
    ]
    log.write_text("".join(ended), encoding="utf-8", newline="")
    found = {record: iteration for record, iteration, _, _ in check(log, records=True).records}
    for record, (mark, text) in enumerate(lines, start=1):
        if mark == " ":
            assert record not in found, text
        elif mark != "?":
            assert record in found, text
            assert found[record] == (None if mark == "*" else int(mark)), text
