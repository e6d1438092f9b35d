"""Reading a log record by record: progress, phase, end. Fed with the same records it says the same, however they came."""

from __future__ import annotations

import re
from dataclasses import dataclass

from exporter.logs import patterns, phases
from exporter.logs.model import Phase
from exporter.logs.numbers import count
from exporter.logs.reading import Form, Reading
from exporter.logs.series import Chooser, Series
from exporter.logs.words import Topic
from exporter.logs.wrappers import Record, Unwrapper

_PHASE_OF_TOPIC = {
    Topic.EVALUATION: Phase.EVALUATING,
    Topic.CHECKPOINT: Phase.CHECKPOINTING,
    Topic.COMPILATION: Phase.COMPILING,
}
_DECLARED = re.compile(
    r"(?i)(?<![a-z])(?:(?:total|max|number of)[ _](?:number of )?(?:training |train |optimi[sz]ation |optimizer )*"
    r"(?:steps|iterations|iters|updates)|max_iters?|max_steps|train_iters|num_train(?:ing)?_steps|train_steps)"
    r"[\"']?\s*(?:[:=.]+|is|will be)?\s*(?P<n>\d[\d,]*)(?!\.?\d)"
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
    """The state of one log's understanding."""

    def __init__(self, read: object = None) -> None:
        self._unwrap = Unwrapper()
        self.chooser = Chooser()
        self.records = 0
        self.phase = Phase.STARTING
        self.finished_by: str | None = None  # the record that said so
        self.crashed = False
        self.declared: int | None = None
        self._last: tuple[str, int | None] | None = None
        self.last_text = ""
        self.last_record = 0  # the newest that is not blank

    def feed(self, raw: bytes) -> Observation | None:
        """Take the next record; None where nothing is in it, or where it is a part of one that goes on."""
        self.records += 1
        record = self._unwrap.feed(raw)
        if record is None or not record.text.strip():
            return None
        self.last_text = record.text
        self.last_record = self.records
        reading = patterns.read(record)
        series, moved = None, False
        announced = phases.said(record.text) if phases.interesting(record.text) else None
        if reading is not None and reading.topic is None:
            series, moved = self._progress(reading, record)
        elif reading is not None and announced is None:
            announced = _PHASE_OF_TOPIC.get(reading.topic) if reading.topic else None
        self._story(record, announced, reading, series, moved)
        return Observation(self.records, record.text, record.rank, reading, series, moved, announced)

    def _progress(self, reading: Reading, record: Record) -> tuple[Series, bool]:
        known = {one.key: one for one in self.chooser.series}.get(reading.series)
        moved = not reading.unstarted and (known is None or known.moves(reading))
        evaluating = self.phase is Phase.EVALUATING and (known is None or not known.outside_evaluation)
        series = self.chooser.observe(reading, self.records, evaluating=evaluating, closed=record.closed)
        return series, moved

    def _is_training_again(self, series: Series | None) -> bool:
        """Whether the records that move are not those of an evaluation which prints as training does."""
        if self.phase is not Phase.EVALUATING or series is None or series.outside_evaluation:
            return True
        return not any(one.outside_evaluation for one in self.chooser.series if one.form is not Form.EPOCH)

    def _story(
        self,
        record: Record,
        announced: Phase | None,
        reading: Reading | None,
        series: Series | None,
        moved: bool,
    ) -> None:
        text = record.text
        if announced is Phase.FINISHED:
            self.finished_by = text[:200]
            self.phase = Phase.FINISHED
        elif reading is not None and reading.topic is None and moved and reading.form is not Form.EPOCH:
            if self.finished_by is not None and not _is_last(reading):
                self.finished_by = None
            if self.finished_by is None and self._is_training_again(series):
                self.phase = Phase.TRAINING
            self.crashed = False
        elif announced is not None and self.phase is not Phase.FINISHED:
            self.phase = (
                self.phase if announced is Phase.TRAINING and self.phase is Phase.STARTING else announced
            )
        elif self.phase is Phase.CHECKPOINTING and phases.interesting(text) and phases.saved(text):
            self.phase = Phase.TRAINING
        if phases.interesting(text) and phases.crashed(text):
            self.crashed = True
            self.finished_by = None
        declared = (
            _DECLARED.search(text[:400]) if "step" in text or "iter" in text or "update" in text else None
        )
        if declared is not None and reading is None:
            self.declared = count(declared["n"])


def _is_last(reading: Reading) -> bool:
    return reading.total is not None and reading.iteration is not None and reading.iteration >= reading.total
