from __future__ import annotations

import threading
import time

import pytest

from snapshotter.capture.bounded import call_within, run_all


def test_results_come_in_the_order_of_the_items() -> None:
    assert run_all(lambda number: number * 2, range(100), at_once=7, limit=60, total=60) == [
        number * 2 for number in range(100)
    ]
    assert run_all(lambda number: number, [], at_once=3, limit=60, total=60) == []


def test_no_more_run_at_once_than_allowed() -> None:
    lock, running, most = threading.Lock(), 0, 0
    four = threading.Barrier(4, timeout=30)

    def call(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        four.wait()
        time.sleep(0.002)
        with lock:
            running -= 1

    run_all(call, range(40), at_once=4, limit=60, total=60)
    assert most == 4


def test_calls_that_never_return_cost_their_own_result_alone() -> None:
    for_ever = threading.Event()

    def call(number: int) -> int:
        if number < 3:
            for_ever.wait(30)
        return number

    began = time.monotonic()
    results = run_all(call, range(20), at_once=2, limit=0.5, total=60)
    assert time.monotonic() - began < 20
    assert results == [None, None, None, *range(3, 20)]
    for_ever.set()


def test_the_whole_is_bounded_and_what_was_not_begun_is_left() -> None:
    for_ever = threading.Event()
    began = time.monotonic()
    results = run_all(lambda number: for_ever.wait(30), range(5), at_once=1, limit=20, total=0.1)
    assert time.monotonic() - began < 20
    assert results == [None] * 5
    for_ever.set()


def test_an_exception_is_raised_where_the_call_was_asked_for() -> None:
    def call(number: int) -> int:
        if number == 2:
            raise KeyError("two")
        return number

    with pytest.raises(KeyError, match="two"):
        run_all(call, range(4), at_once=1, limit=60, total=60)


def test_one_call() -> None:
    for_ever = threading.Event()
    assert call_within(lambda: 3, 60) == 3
    assert call_within(lambda: for_ever.wait(30), 0.05) is None
    for_ever.set()
