"""The page of benchmarks is what its generator writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks import results
from benchmarks.results import Row

PAGE = bench.PAGE.read_text(encoding="utf-8")


def test_the_page_has_the_generators_shape() -> None:
    assert bench.written(PAGE, {}) == PAGE
    sections = re.findall(r"(?ms)^<!-- (\w+) -->$\n(.*?)^<!-- end of \1 -->$", PAGE)
    assert sections
    for name, text in sections:
        lines = text.splitlines()
        assert lines[0] == f"## {bench.title(name)}"
        assert re.match(rf"`make bench-{name}`\. \d{{4}}-\d\d-\d\d, \d+ cores of .*Python 3\.", lines[2])
        head = lines.index(bench._COLUMNS[0])
        assert lines[head + 1] == bench._COLUMNS[1]
        rows = lines[head + 2 :]
        assert rows
        for row in rows:
            cells = re.split(r"(?<!\\)\|", row)
            assert len(cells) == 7 and cells[5].strip() in ("kept", "**missed**", ""), row


def test_a_section_is_replaced_and_the_others_stay() -> None:
    first = {name: bench.section(name, [Row(name, "1 s")], "2026-01-01.") for name in ("nccl", "webhook")}
    page = bench.written("", first)
    again = bench.written(
        page, {"nccl": bench.section("nccl", [Row("a|b", "2 s", good=False)], "2026-01-02.")}
    )
    assert "| webhook | 1 s |" in again and "| nccl | 1 s |" not in again
    assert "| a\\|b | 2 s |  |  | **missed** |" in again
    assert again.index("<!-- nccl -->") < again.index("<!-- webhook -->")


def test_every_benchmark_gives_rows_and_says_what_it_is() -> None:
    for name in bench.names():
        source = (bench.ROOT / "benchmarks" / f"bench_{name}.py").read_text(encoding="utf-8")
        assert re.search(r"\brow\(|results\.row\(", source), name
        assert bench.title(name) != name


def test_rows_come_back_as_they_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "rows"
    results.row("nobody collects", "1 s")
    monkeypatch.setenv(results.COLLECT, str(place))
    results.row("a", "1 s", peer="b 2 s", bound="3 s", good=True)
    results.row("c", "4 s")
    assert results.read(place) == [Row("a", "1 s", "b 2 s", "3 s", True), Row("c", "4 s")]


def test_the_machine_is_described_and_not_named() -> None:
    import socket

    text = bench.machine()
    assert "cores of" in text and "Linux" in text and "py-spy" in text
    name = re.escape(socket.gethostname())
    assert not re.search(rf"(?<![\w.-]){name}(?![\w.-])", text)
