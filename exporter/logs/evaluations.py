"""Evaluations that look as training does: told by how their counters move beside the others of the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exporter.logs.series import Series

_SHORT = 2  # times that an evaluation's total is smaller than training's, at least


def statement(one: Series) -> str | None:
    """What series of one print statement with several totals have in common; None where no total is shown."""
    printed, _, shown = one.key.rpartition(":")
    return printed if one.total is not None and shown == str(one.total) else None


def find_short_runs(ones: Iterable[Series]) -> None:
    """Mark the short ones of the series of one print statement that ran through between two records of the long one.

    Series that are marked say so themselves (`Series.evaluates`).
    """
    alike: dict[str, list[Series]] = {}
    for one in ones:
        printed = statement(one)
        if printed is not None:
            alike.setdefault(printed, []).append(one)
    for group in alike.values():
        long = max(group, key=lambda one: one.total or 0)
        for one in group:
            complete = one.last is not None and one.last + max(1, one.stride) >= (one.total or 0)
            between = long.first_record < one.first_record and one.last_record < long.last_record
            if complete and between and (one.total or 0) * _SHORT <= (long.total or 0):
                one.aside = one.resets


def taking_turns(bars: Iterable[Series]) -> set[str]:
    """Of bars without description that take turns, the keys of the shorter ones."""
    repeated = [one for one in bars if one.cycles > 1 and one.total is not None]
    if len(repeated) < 2:
        return set()
    longest = max(repeated, key=lambda one: (one.total or 0, -one.number))
    return {one.key for one in repeated if one is not longest}


def left_out(bars: list[Series]) -> list[Series]:
    """Without bars that were seen in evaluations alone, or show no metrics, where others of their kind were and do."""
    trained = {_kind(one) for one in bars if one.outside_evaluation}
    bars = [one for one in bars if one.outside_evaluation or _kind(one) not in trained]
    measured = {one.key for one in bars if one.measured and not one.named}
    return [
        one
        for one in bars
        if one.named or one.measured or not measured or not measured.isdisjoint(one.inside)
    ]


def _kind(one: Series) -> str:
    """What bars of one description have in common, whatever their totals."""
    return one.key.rsplit(":", 2)[0]
