"""Reading a log record by record: progress, phase, end. The same records always say the same, however they came."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby

from exporter.logs import patterns, phases
from exporter.logs.languages import in_english
from exporter.logs.model import Phase
from exporter.logs.numbers import count
from exporter.logs.pairs import Pairs
from exporter.logs.reading import Form, Reading
from exporter.logs.series import Chooser, Series
from exporter.logs.silence import Silence
from exporter.logs.tables import Tables
from exporter.logs.words import Topic
from exporter.logs.wrappers import Record, Unwrapper

_PHASE_OF_TOPIC = {
    Topic.EVALUATION: Phase.EVALUATING,
    Topic.CHECKPOINT: Phase.CHECKPOINTING,
    Topic.COMPILATION: Phase.COMPILING,
}
_LAST = (Form.BARE, Form.OTHER)  # a row of a table is surer than these
_DECLARED = re.compile(
    r"(?i)(?<![a-z])(?:(?:total|max|number of)[ _](?:number of )?(?:training |train |optimi[sz]ation |optimizer )*"
    r"(?:steps|iterations|iters|updates)|max_iters?|max_steps|train_iters|num_train(?:ing)?_steps|train_steps)"
    r"[\"']?\s*(?:[:=.]+|is|will be)?\s*(?P<n>\d[\d,]*)(?!\.?\d)"
)
_DECLARED_EPOCHS = re.compile(
    r"(?i)(?<![a-z])(?:(?:total|max|num|number of|scheduled|train)[_ ](?:number of )?(?:train(?:ing)?[_ ])?epochs"
    r"[\"']?\s*(?:[:=.]+|is|will be)?\s*(?P<n>\d+)(?!\.?\d)|for (?P<n_>\d+) epochs)"
)


@dataclass(frozen=True, slots=True)
class Observation:
    """What one record told."""

    record: int
    text: str
    rank: int | None
    reading: Reading | None
    series: Series | None  # set where the reading may be the training's
    moved: bool  # its number is another than the one before
    phase: Phase | None  # announced by it


class Interpreter:
    """The state of one log's understanding. `read` says what a record shows, by default by the general rules.

    `pairs`: what is known of the log already.
    """

    def __init__(
        self, read: Callable[[Record], Reading | None] = patterns.read, pairs: Pairs | None = None
    ) -> None:
        self._read = read
        self.pairs = Pairs() if pairs is None else pairs
        self._tables = Tables() if read is patterns.read else None
        self._unwrap = Unwrapper()
        self._silence = Silence()
        self.chooser = Chooser()
        self.records = 0
        self.last_record = 0  # the newest that is not blank
        self.phase = Phase.STARTING
        self.finished_by: str | None = None  # the words that said so
        self.crashed = False
        self.declared: int | None = None  # the run's length, where the log tells it beforehand
        self.declared_epochs: int | None = None

    def feed(self, raw: bytes) -> Observation | None:
        """Take the next record; None where nothing is in it, or where it is a part of one that goes on."""
        self.records += 1
        if self._tables is not None and self._silence.covers(raw) and not self._unwrap.joining:
            self.last_record = self.records
            return None
        record = self._unwrap.feed(raw)
        if record is None or not record.text.strip():
            return None
        self.last_record = self.records
        reading = self._read(record)
        if self._tables is not None and (reading is None or reading.form in _LAST):
            reading = self._tables.read(record) or reading
            if self._tables.begins:
                self._silence.forget()
        if reading is not None and reading.epoch is not None and not math.isfinite(reading.epoch):
            reading = replace(reading, epoch=None)  # NaN would differ from itself in every record
        series, moved = None, False
        # A record of training has nothing else to say, but for what another writer put behind its bar.
        phrases = in_english(record.text)
        if reading is None and self._tables is not None and not self._tables.begins:
            self._silence.learn(raw, phrases)
        if reading is not None and reading.topic is None:
            if self._tables is not None:
                reading = self.pairs.read(reading)
            series, moved = self._progress(reading, record)
            if reading.strong and reading.form is not Form.EPOCH:
                phrases = reading.tail
        interesting = phrases and phases.interesting(phrases)
        announced = self._hear(phrases, reading) if interesting else None
        if announced is None and reading is not None and reading.topic is not None:
            announced = _PHASE_OF_TOPIC.get(reading.topic)
        self._story(announced, reading, series, moved)
        return Observation(self.records, record.text, record.rank, reading, series, moved, announced)

    def begin_with(self, head: bytes) -> None:
        """Take note of a table's header in a log's first bytes, where what follows them is not read."""
        if self._tables is not None:
            for raw in head.splitlines(keepends=True)[:-1]:
                record = self._unwrap.feed(raw)
                if record is not None:
                    self._tables.read(record)
            self._unwrap = Unwrapper()

    def begin_again(self) -> None:
        """Another run has begun in the same log."""
        self.phase, self.finished_by, self.crashed = Phase.STARTING, None, False
        self.declared = self.declared_epochs = None

    def skim(self, key: str, numbers: list[bytes] | range) -> tuple[int, int | None, bool]:
        """Take records of a known series at once.

        Gives how many moved it on, the first number that did, and whether the series counts.
        """
        self.records += len(numbers)
        self.last_record = self.records
        series = self.chooser.get(key)
        if series is None:
            return 0, None, False
        values = numbers if isinstance(numbers, range) else _integers(numbers)
        moved = values if isinstance(values, range) else [number for number, _ in groupby(values)]
        moved = moved[1:] if moved[0] == series.last else moved
        self.chooser.skim(series, values, self.records)
        counts = key in self.chooser.accepted()
        if moved and counts and self.finished_by is None:
            self.phase = Phase.TRAINING
        return len(moved), moved[0] if moved else None, counts

    def standing(self, key: str) -> int | None:
        """The newest number of a series."""
        series = self.chooser.get(key)
        return None if series is None else series.last

    def _progress(self, reading: Reading, record: Record) -> tuple[Series, bool]:
        known = self.chooser.get(reading.series)
        moved = not reading.unstarted and (known is None or known.moves(reading))
        evaluating = self.phase is Phase.EVALUATING and (known is None or not known.outside_evaluation)
        series = self.chooser.observe(reading, self.records, evaluating=evaluating, closed=record.closed)
        return series, moved

    def _hear(self, text: str, reading: Reading | None) -> Phase | None:
        """What a text announces, beside the counter that it may show."""
        announced = phases.said(text)
        if announced is Phase.FINISHED:
            self.finished_by = text[:200]
        if phases.crashed(text):
            self.crashed, self.finished_by = True, None
        declared = _DECLARED.search(text[:400])
        length = None if declared is None else count(declared["n"])
        if length is not None and (reading is None or reading.iteration != length):  # else it is the counter
            self.declared = length
        epochs = _DECLARED_EPOCHS.search(text[:400])
        if epochs is not None:
            self.declared_epochs = int(epochs["n"] or epochs["n_"])
        if announced is None and self.phase is Phase.CHECKPOINTING and phases.saved(text):
            return Phase.TRAINING
        return announced

    def _story(
        self, announced: Phase | None, reading: Reading | None, series: Series | None, moved: bool
    ) -> None:
        if series is not None and moved and self._counts(series):
            if announced is not Phase.FINISHED and not (reading is not None and _is_last(reading)):
                self.finished_by = None
            if self.finished_by is None and self._is_training_again(series):
                self.phase = Phase.TRAINING
            self.crashed = False
        elif series is not None and moved and (series.evaluates or self._is_evaluation(series)):
            self.phase = Phase.EVALUATING
        if announced is Phase.FINISHED:
            self.phase = Phase.FINISHED
        elif announced is not None and self.finished_by is None and not self._only_starts(announced):
            self.phase = announced

    def _only_starts(self, announced: Phase) -> bool:
        """That training starts is no iteration yet: its grace goes on."""
        return announced is Phase.TRAINING and self.phase is Phase.STARTING

    def _counts(self, series: Series) -> bool:
        """Whether a series is taken for training's."""
        named = series.strong and series.form in (Form.KEYED, Form.METRICS) and not series.evaluates
        return named or series.key in self.chooser.accepted()

    def _is_evaluation(self, series: Series) -> bool:
        """Whether a bar without a word of what it is about runs where training's has come to its end."""
        if self.phase is not Phase.TRAINING or series.form is not Form.BAR or not series.under_way:
            return False
        accepted = self.chooser.accepted()
        if series.key in accepted:
            return False
        numbered = [one for one in self.chooser.series if one.key in accepted and one.last is not None]
        newest = max(numbered, key=lambda one: one.last_number_record, default=None)
        if newest is None or newest.form is not Form.BAR or newest.last != newest.total:
            return False
        return not newest.inside.get(series.key)  # a bar around training's counts epochs

    def _is_training_again(self, series: Series) -> bool:
        """Whether the records that move are not those of an evaluation which prints as training does."""
        if self.phase is not Phase.EVALUATING or series.outside_evaluation:
            return True
        return not any(one.outside_evaluation and self._counts(one) for one in self.chooser.series)


def _integers(numbers: list[bytes]) -> list[int]:
    try:
        return list(map(int, numbers))
    except ValueError:  # thousands are separated
        return [int(number.replace(b",", b"")) for number in numbers]


def _is_last(reading: Reading) -> bool:
    return reading.total is not None and reading.iteration is not None and reading.iteration >= reading.total
