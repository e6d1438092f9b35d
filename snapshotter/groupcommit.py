"""Committing for many at once: what comes in while one transaction is written goes into the next one together.

Nobody waits for others to come: who comes alone is committed alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(slots=True)
class _Waiting(Generic[Item, Result]):
    item: Item
    outcome: Result | Exception | None = None


class GroupCommit(Generic[Item, Result]):
    """Calls `commit` with all items that wait, one call at a time. Safe for many threads."""

    def __init__(self, commit: Callable[[Sequence[Item]], Sequence[Result | Exception]]) -> None:
        """`commit` gives one outcome for each item, once it is durable; what it raises is everybody's."""
        self._commit = commit
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._waiting: list[_Waiting[Item, Result]] = []

    def add(self, item: Item) -> Result:
        """The outcome of `item`, once committed. Raises what was its outcome, or what `commit` raised."""
        mine: _Waiting[Item, Result] = _Waiting(item)
        with self._lock:
            self._waiting.append(mine)
        with self._turn:
            if mine.outcome is None:
                self._commit_all()
        if mine.outcome is None:
            raise RuntimeError("a commit left an item without an outcome")
        if isinstance(mine.outcome, Exception):
            raise mine.outcome
        return mine.outcome

    def _commit_all(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, []
        try:
            outcomes = self._commit([one.item for one in batch])
        except Exception as error:
            outcomes = [error] * len(batch)
        for one, outcome in zip(batch, outcomes, strict=True):
            one.outcome = outcome
