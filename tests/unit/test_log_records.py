"""Cutting bytes into records: however they come, the same records."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from exporter.logs.linereader import RecordSplitter

LIMIT = 12
stream = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"bb", b"x" * 9, b"\x00\xff", b""])).map(
    b"".join
)


def _pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


def _split(pieces: list[bytes]) -> tuple[list[bytes], bytes, int]:
    splitter = RecordSplitter(LIMIT)
    records = [record for piece in pieces for record in splitter.feed(piece)]
    return records, splitter.flush(), splitter.skipped


@given(stream, st.lists(st.integers(min_value=0)))
def test_any_chunking_gives_the_same_records(data: bytes, cuts: list[int]) -> None:
    assert _split(_pieces(data, cuts)) == _split([data])


@given(stream, st.lists(st.integers(min_value=0)))
def test_whole_gives_the_records_in_one_piece(data: bytes, cuts: list[int]) -> None:
    splitter = RecordSplitter(LIMIT)
    wholes = [splitter.whole(piece) for piece in _pieces(data, cuts)]
    records = [splitter.bounded(record) for whole in wholes for record in whole.splitlines(keepends=True)]
    expected, rest, _ = _split([data])
    assert [record[:-1] for record in records] == [record[:-1] for record in expected]
    assert splitter.flush() == rest


@given(stream)
def test_records_are_those_between_separators(data: bytes) -> None:
    records, rest, skipped = _split([data])
    expected = re.split(rb"\r\n|\n|\r", data)
    bodies = [record.rstrip(b"\r\n") for record in records]
    assert bodies == [b"" if len(body) > LIMIT else body for body in expected[:-1]]
    assert rest == (b"" if len(expected[-1]) > LIMIT else expected[-1])
    assert skipped == sum(len(body) > LIMIT for body in expected[:-1])


def test_a_bar_that_is_redrawn_is_told_from_one_that_is_closed() -> None:
    assert RecordSplitter().feed(b"1/9\r2/9\n") == [b"1/9\r", b"2/9\n"]


def test_an_endless_record_is_not_held() -> None:
    splitter = RecordSplitter(limit=1000)
    for _ in range(100):
        assert splitter.feed(b"x" * 900) == []
        assert splitter.pending <= 1000
    assert splitter.feed(b"\nnext\n") == [b"\n", b"next\n"]
    assert splitter.skipped == 1
