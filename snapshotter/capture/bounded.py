"""Many calls at once, each within a time limit, none of which can hold up the rest or the program's end.

A call into the kernel may never return (a dead file server, a locked memory map). Its thread is then left
behind: threads here are daemons, and another one takes its place.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def _start(work: Callable[[], None]) -> None:
    """Start a thread that nothing waits for: neither now, until it runs, nor at the program's end.

    threading.Thread.start() waits until the thread has its turn, which on a node whose ranks spin on all
    cores takes 10 ms for each.
    """
    _thread.start_new_thread(work, ())


class _Batch(Generic[Item, Result]):
    def __init__(self, call: Callable[[Item], Result], items: Sequence[Item]) -> None:
        self.call = call
        self.items = items
        self.changed = threading.Condition()
        self.next = 0
        self.started: dict[int, float] = {}  # calls under way
        self.ended: dict[int, tuple[Result | None, BaseException | None]] = {}
        self.closed = False

    def work(self) -> None:
        while (number := self._begin()) is not None:
            result, failure = None, None
            try:
                result = self.call(self.items[number])
            except BaseException as error:
                failure = error
            if not self._end(number, result, failure):  # given up meanwhile, and this thread replaced
                return

    def _begin(self) -> int | None:
        with self.changed:
            if self.closed or self.next == len(self.items):
                return None
            number = self.next
            self.next += 1
            self.started[number] = time.monotonic()
            self.changed.notify()
            return number

    def _end(self, number: int, result: Result | None, failure: BaseException | None) -> bool:
        with self.changed:
            if self.closed or self.started.pop(number, None) is None:
                return False
            self.ended[number] = (result, failure)
            self.changed.notify()
            return True


def run_all(
    call: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    at_once: int,
    limit: float,
    total: float,
) -> list[Result | None]:
    """`call` of every item, `at_once` at a time, in the order of `items`; None where it took too long.

    `limit` seconds bound each call from its start, `total` the whole. An exception of a call is raised here,
    after all others have ended.
    """
    batch = _Batch(call, items)
    end = time.monotonic() + total

    for _ in range(min(at_once, len(items))):
        _start(batch.work)
    with batch.changed:
        while len(batch.ended) < len(items):
            now = time.monotonic()
            if now >= end:
                break
            overdue = [one for one, since in batch.started.items() if now - since >= limit]
            for number in overdue:
                del batch.started[number]
                batch.ended[number] = (None, None)
                _start(batch.work)
            if overdue:
                continue
            due = min((since + limit for since in batch.started.values()), default=end)
            batch.changed.wait(max(0.0, min(due, end) - now))
        batch.closed = True
        failures = [batch.ended[number][1] for number in sorted(batch.ended)]
        for failure in failures:
            if failure is not None:
                raise failure
        return [batch.ended.get(number, (None, None))[0] for number in range(len(items))]


class Pending(Generic[Result]):
    """A call that was started and whose result is wanted later, if it comes."""

    def __init__(self, call: Callable[[], Result]) -> None:
        self._batch = _Batch(lambda _: call(), [None])
        _start(self._batch.work)

    def result(self, within: float) -> Result | None:
        """The result; None where it does not come within so many seconds. The call's exception is raised."""
        with self._batch.changed:
            self._batch.changed.wait_for(lambda: self._batch.ended, within)
            result, failure = self._batch.ended.get(0, (None, None))
        if failure is not None:
            raise failure
        return result


def call_within(call: Callable[[], Result], seconds: float) -> Result | None:
    """One call; None where it took longer than `seconds`. Its exception is raised here."""
    return Pending(call).result(seconds)
