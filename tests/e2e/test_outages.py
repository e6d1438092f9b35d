"""Each part of the chain is taken away during a hang and brought back: nothing is lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import outages
from standalone import processes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]


def test_nothing_is_lost_whatever_is_away(tmp_path: Path) -> None:
    processes.adopt_orphans()
    rows = outages.run(tmp_path)
    print(outages.table(rows))
    assert len(rows) == 7
    assert [row for row in rows if not row.good] == []


def test_the_page_has_the_table_of_every_outage() -> None:
    text = outages.PAGE.read_text(encoding="utf-8")
    _, _, rest = text.partition(outages.MARKS[0])
    written, _, _ = rest.partition(outages.MARKS[1])
    head, rule, *rows = written.splitlines()
    empty = outages.table([]).splitlines()
    assert [head, rule] == empty
    assert len(rows) == 9  # Redis, and a disk with all on it, are `make outages` alone
    assert all(re.search(r"\| once \| once \| nothing \| \d+\.\d s \|$", row) for row in rows)
