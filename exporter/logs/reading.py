"""What one record says, before it is known which of a log's counters is the training's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from exporter.logs.words import Topic


class Form(StrEnum):
    """How a record shows its counter."""

    KEYED = "keyed"  # step 5, iteration: 10/100, "global_step": 3, [ 5/100] loss …
    METRICS = "metrics"  # a metrics dict that shows no number
    BAR = "bar"  # n/total with a drawn bar
    OPEN_BAR = "open bar"  # a bar without a total
    EPOCH = "epoch"  # shows whole epochs only
    ROW = "row"  # of a table whose header names the counter
    BARE = "bare"  # a number without any name, before metrics
    OTHER = "other"  # counts episodes, rounds, frames …


NO_METRICS = "no metrics beside the number: counts once the same has come again with a higher one"


@dataclass(frozen=True, slots=True)
class Reading:
    """One record, read by itself."""

    form: Form
    series: str  # records of one shape have the same
    iteration: int | None = None
    total: int | None = None
    epoch: float | None = None
    topic: Topic | None = None  # set: it is about something else than training
    strong: bool = True  # False: it counts only once the same shape has come again with a higher number
    named: bool = False  # a bar whose description names training
    measured: bool = False  # a bar that shows metrics behind its rate
    unstarted: bool = False  # a bar drawn before its first iteration
    why: str = ""  # why it does not count, for people
    epochs: int | None = None  # the run has so many
    tail: str = ""  # what else was written behind a bar


_NUMBERS = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?%?", re.IGNORECASE)
_BLANKS = re.compile(r"\s+")


def shape(text: str) -> str:
    """The text with its numbers made alike: what records of one print statement have in common."""
    return _BLANKS.sub("", _NUMBERS.sub("0", text))[:120]
