"""Counters written as `epoch/step` where others write `step/total`: `Batch 4/203700`, then `Batch 4/203800`.

One such record looks like any other. What tells is the second number: no run has a total of 0, and none has one that
grows from record to record while the first number stands still.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace

from exporter.logs.reading import Form, Reading

_MOST = 64  # shapes of one log that are remembered
_GROWN = 2  # times in a row after which the second number is the counter


@dataclass(slots=True)
class _Seen:
    first: int
    second: int
    grown: int = 0


@dataclass(slots=True)
class Pairs:
    """What the pairs of one log mean. `turned`: the shapes whose second number is the counter."""

    turned: set[str] = field(default_factory=set)
    _seen: OrderedDict[str, _Seen] = field(default_factory=OrderedDict)

    def read(self, reading: Reading) -> Reading:
        """The reading as it is, or with its epoch and counter in their places."""
        number, total = reading.iteration, reading.total
        if reading.form is not Form.KEYED or number is None or total is None:
            return reading
        shape, _, shown = reading.series.rpartition(":")
        if shown != str(total):  # the total stands elsewhere in the record
            return reading
        if shape not in self.turned and self._grows(shape, number, total):
            self.turned.add(shape)
        if shape not in self.turned:
            return reading
        return replace(reading, series=f"{shape}:turned", iteration=total, total=None, epoch=float(number))

    def _grows(self, shape: str, number: int, total: int) -> bool:
        if total == 0:
            return True
        seen = self._seen.get(shape)
        if seen is None:
            self._seen[shape] = _Seen(number, total)
            if len(self._seen) > _MOST:
                self._seen.popitem(last=False)
            return False
        if total != seen.second:
            seen.grown = seen.grown + 1 if number == seen.first and total > seen.second else 0
        seen.first, seen.second = number, total
        return seen.grown >= _GROWN
