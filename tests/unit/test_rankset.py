from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshotter.stacks import rankset

some_ranks = st.frozensets(st.integers(0, 5000), max_size=200)


def test_folds_as_people_write_ranks() -> None:
    assert rankset.fold(rankset.of(range(6))) == "0-5"
    assert rankset.fold(rankset.of([60, 61, 62, 65])) == "60-62/65"
    assert rankset.fold(rankset.EMPTY) == ""
    assert rankset.fold(rankset.of([7])) == "7"
    assert rankset.fold(rankset.of([8, 7])) == "7-8"


@given(some_ranks)
def test_folding_is_parsed_back(ranks: frozenset[int]) -> None:
    bits = rankset.of(ranks)
    assert rankset.parse(rankset.fold(bits)) == bits
    assert list(rankset.members(bits)) == sorted(ranks)
    assert bits.bit_count() == len(ranks)
    assert rankset.lowest(bits) == min(ranks, default=None)


@given(some_ranks, some_ranks)
def test_is_a_set(a: frozenset[int], b: frozenset[int]) -> None:
    assert rankset.of(a) | rankset.of(b) == rankset.of(a | b)
    assert rankset.of(a) & rankset.of(b) == rankset.of(a & b)
    assert rankset.of(a) & ~rankset.of(b) == rankset.of(a - b)
    assert rankset.union([rankset.of(a), rankset.of(b)]) == rankset.of(a | b)


def test_groups_may_come_in_any_order_and_overlap() -> None:
    assert rankset.parse("65/60-62/61-63") == rankset.of([60, 61, 62, 63, 65])


@pytest.mark.parametrize(
    "text", ["a", "1-", "-1", "3-1", "1//2", "/", "1,2", "99999999999", "0-9999999", "²"]
)
def test_refuses_what_is_no_rank_list(text: str) -> None:
    with pytest.raises(ValueError):
        rankset.parse(text)


def test_numbers_that_others_wrote() -> None:
    assert [rankset.number(text) for text in ("0", "007", str(rankset.MAX_RANK))] == [0, 7, rankset.MAX_RANK]
    for text in (None, "", "x", "-1", "1.0", " 1", "²", str(rankset.MAX_RANK + 1), "9" * 5000):
        assert rankset.number(text) is None


@pytest.mark.parametrize("rank", [-1, rankset.MAX_RANK + 1, 10**12])
def test_refuses_numbers_that_no_job_has(rank: int) -> None:
    with pytest.raises(ValueError, match="not between"):
        rankset.of([0, rank])


def test_spans() -> None:
    assert rankset.span(3, 5) == rankset.of([3, 4, 5])
    assert rankset.span(5, 4) == rankset.EMPTY
