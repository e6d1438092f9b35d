"""Whether a log's training has come to its end."""

from __future__ import annotations

from exporter.logs.interpreter import Interpreter


def finished(interpreter: Interpreter) -> bool:
    """Whether the log says so, or its counter has reached its total."""
    if interpreter.crashed:
        return False
    if interpreter.finished_by is not None:
        return True
    return False
