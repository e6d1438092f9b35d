"""Whether a log's training has come to its end."""

from __future__ import annotations

from exporter.logs import evaluations
from exporter.logs.interpreter import Interpreter
from exporter.logs.reading import Form
from exporter.logs.series import Series


def has_ended(interpreter: Interpreter) -> bool:
    """Whether the log says that training is over, or its counter has reached the end of the whole run.

    Sure enough to stop watching for a hang.
    """
    if interpreter.crashed:
        return False
    if interpreter.finished_by is not None:
        return True
    one = _newest(interpreter)
    if one is None or one.last is None:
        return False
    goes_through = not one.resets and one.form is not Form.EPOCH
    if goes_through and interpreter.declared is not None and one.last >= interpreter.declared:
        return True
    if not _is_complete(one) or _another_runs(interpreter, one):
        return False
    if one.epochs is not None and one.epoch is not None:
        return one.epoch >= one.epochs
    if one.epoch is not None or one.resets or one.total == 1 or _counts_epochs(interpreter):
        return False
    return not _more_epochs(interpreter, one) and not _a_longer_one(interpreter, one)


def looks_finished(interpreter: Interpreter) -> bool:
    """Whether a log that will not grow looks as if training ran to its end.

    Weaker than `has_ended`: between two epochs a running job's log looks the same.
    """
    if interpreter.crashed:
        return False
    if has_ended(interpreter):
        return True
    one = _newest(interpreter)
    if one is None or _another_runs(interpreter, one):
        return False
    if one.form is Form.BAR and one.closed and one.redrawn and one.last_record >= interpreter.last_record:
        return not _more_epochs(
            interpreter, one
        )  # ended by a newline, and nothing behind it: the loop is over
    if not _is_complete(one, 1 if one.form is Form.BAR else one.stride or 1):
        return False
    return not _more_epochs(interpreter, one)


def _another_runs(interpreter: Interpreter, one: Series) -> bool:
    """Whether a bar of something else is under way since: the evaluation behind an epoch, or the epochs themselves."""
    return any(
        other.form is Form.BAR and other.under_way and other.last_record > one.last_record
        for other in interpreter.chooser.series
    )


def _more_epochs(interpreter: Interpreter, one: Series) -> bool:
    """Whether the run has more epochs than were shown, by the records themselves, another counter or what was said."""
    if one.epochs is not None and one.epoch is not None:
        return one.epoch < one.epochs - 1
    counting = [
        other
        for other in interpreter.chooser.series
        if other.form is Form.EPOCH and other.total is not None and other.last is not None
    ]
    newest = max(counting, key=lambda other: other.last_number_record, default=None)
    if newest is not None and one.form is not Form.EPOCH:
        return (newest.last or 0) < (newest.total or 0) - 1
    declared = interpreter.declared_epochs
    return declared is not None and one.epoch is not None and one.epoch < declared - 1


def _counts_epochs(interpreter: Interpreter) -> bool:
    """Whether the log counts epochs, and does not say how many there are."""
    epochs = [one for one in interpreter.chooser.series if one.form is Form.EPOCH and one.last is not None]
    return bool(epochs) and all(one.total is None and one.epochs is None for one in epochs)


def _a_longer_one(interpreter: Interpreter, one: Series) -> bool:
    """Whether the same statement has shown a greater total: what came to its end may be an evaluation."""
    printed = evaluations.statement(one)
    return printed is not None and any(
        (other.total or 0) > (one.total or 0) and evaluations.statement(other) == printed
        for other in interpreter.chooser.series
    )


def _newest(interpreter: Interpreter) -> Series | None:
    accepted = interpreter.chooser.accepted()
    numbered = [one for one in interpreter.chooser.series if one.key in accepted and one.last is not None]
    numbered = [one for one in numbered if one.form is Form.KEYED] or numbered
    return max(numbered, key=lambda one: one.last_number_record, default=None)


def _is_complete(one: Series, stride: int = 1) -> bool:
    """Whether the counter stands at its total, or so near that the next record would be beyond it."""
    if one.total is None or one.last is None or one.last > one.total:
        return False
    if one.reached:  # the last record of each round is at the total
        return one.last + stride > one.total
    return one.last + stride >= one.total if stride > 1 or one.from_zero else one.last >= one.total
