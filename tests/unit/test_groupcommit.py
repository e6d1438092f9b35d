"""Committing for many at once: everybody gets the own outcome, after it is durable, and nobody waits for others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from snapshotter.groupcommit import GroupCommit


def test_who_comes_alone_is_committed_alone() -> None:
    batches: list[Sequence[int]] = []

    def commit(batch: Sequence[int]) -> list[int]:
        batches.append(batch)
        return [-number for number in batch]

    commits = GroupCommit(commit)
    assert [commits.add(number) for number in (1, 2)] == [-1, -2]
    assert batches == [[1], [2]]


def test_what_comes_during_a_commit_goes_into_the_next_together() -> None:
    batches: list[list[int]] = []
    under_way, go_on = threading.Event(), threading.Event()

    def commit(batch: Sequence[int]) -> list[int]:
        batches.append(sorted(batch))
        under_way.set()
        assert go_on.wait(60)
        return [-number for number in batch]

    commits = GroupCommit(commit)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(commits.add, 0)
        assert under_way.wait(60)
        rest = [pool.submit(commits.add, number) for number in range(1, 9)]
        while len(commits._waiting) < 8:  # the condition is what is waited for
            threading.Event().wait(0.001)
        go_on.set()
        assert [one.result(60) for one in (first, *rest)] == [-number for number in range(9)]
    assert batches == [[0], list(range(1, 9))]


def test_an_exception_is_the_outcome_of_one_or_of_all() -> None:
    def commit(batch: Sequence[str]) -> list[str | Exception]:
        if "all" in batch:
            raise OSError("the disk is full")
        return [ValueError(one) if one == "bad" else one for one in batch]

    commits = GroupCommit(commit)
    assert commits.add("good") == "good"
    with pytest.raises(ValueError, match="bad"):
        commits.add("bad")
    with pytest.raises(OSError, match="full"):
        commits.add("all")
    assert commits.add("good") == "good"
