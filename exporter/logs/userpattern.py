"""A user's own expression for iteration records, in bounded time."""

from __future__ import annotations

import json
import logging
import re
import selectors
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

from exporter.logs import patterns
from exporter.logs.numbers import count
from exporter.logs.reading import Form, Reading
from exporter.logs.words import Topic
from exporter.logs.wrappers import Record

log = logging.getLogger(__name__)

GROUPS = ("iteration", "total", "epoch")
_WORKER = Path(__file__).with_name("patternworker.py")
_SECONDS = 1.0  # of computing, for one record
_START_SECONDS = 20.0  # until the process runs
_LONGEST_SECONDS = 20.0  # for one record, where the process hardly gets to compute


def compiled(pattern: str) -> re.Pattern[str]:
    """The expression, checked. Raises ValueError that says what is wrong and what to write."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    if "iteration" not in expression.groupindex:
        raise ValueError(f"{pattern!r} has no group `iteration`: write it like step (?P<iteration>\\d+)")
    unknown = sorted(set(expression.groupindex) - set(GROUPS))
    if unknown:
        raise ValueError(f"{pattern!r} has a group `{unknown[0]}`: there are {', '.join(GROUPS)}")
    return expression


class _TooSlow(Exception):
    """The expression did not come to an end."""


class UserPattern:
    """Reads records by an expression alone; what else a record tells is still read by the general rules.

    Once the expression has been too slow it is not used any more: `problem` says so, and the general rules take over.
    """

    def __init__(self, pattern: str, *, seconds: float = _SECONDS) -> None:
        self._pattern = pattern
        self._seconds = seconds
        self._worker: subprocess.Popen[bytes] | None = None
        self._alone = threading.Lock()  # logs may be read in several threads
        self.problem: str | None = None
        self.asking = False  # a reader waits for the expression right now
        compiled(pattern)

    def read(self, record: Record) -> Reading | None:
        """What the record shows."""
        general = patterns.read(record)
        if self.problem is not None:
            return general
        try:
            with self._alone:
                self.asking = True
                try:
                    groups = self._ask(record.text) if self.problem is None else None
                finally:
                    self.asking = False
        except _TooSlow:
            self.problem = (
                f"pattern {self._pattern!r} took longer than {self._seconds:g} s on one record and is not used any "
                "more: avoid repetitions within repetitions"
            )
            log.error("%s", self.problem)
            return general
        except OSError as error:
            self.problem = f"pattern {self._pattern!r} cannot be used: {error}"
            log.error("%s", self.problem)
            return general
        if self.problem is not None:  # another reader found out meanwhile
            return general
        return reading(groups) if groups is not None else aside(general)

    @property
    def slowness(self) -> str:
        """What to say of a log whose reading waits for the expression."""
        return f"pattern {self._pattern!r} takes long on its records: avoid repetitions within repetitions"

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
            for stream in (self._worker.stdin, self._worker.stdout):
                if stream is not None:
                    stream.close()
            self._worker = None

    def _ask(self, text: str) -> dict[str, str | None] | None:
        if self._worker is None:
            self._worker = subprocess.Popen(
                [sys.executable, "-I", str(_WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self._send(self._pattern)
            try:
                self._receive(_START_SECONDS)  # a slow start of the process is not the expression's fault
            except _TooSlow as error:
                raise OSError(f"its process did not start within {_START_SECONDS:g} s") from error
        self._send(text)
        found: dict[str, str | None] | None = json.loads(self._receive(self._seconds))
        return found

    def _send(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        stream = self._pipe(self._worker.stdin if self._worker else None)
        stream.write(struct.pack(">I", len(data)) + data)
        stream.flush()

    def _receive(self, seconds: float) -> bytes:
        """The process's next answer, for which it may compute so long: on a busy node its turn comes seldom."""
        if self._worker is None:
            raise OSError("its process has ended")
        stream = self._pipe(self._worker.stdout)
        computed = ~self._worker.pid << 3 | 2  # the clock that clock_getcpuclockid(3) gives for a process
        until, given_up = time.clock_gettime(computed) + seconds, time.monotonic() + _LONGEST_SECONDS
        left = seconds
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while not selector.select(max(left, 0.01)):
                left = min(until - time.clock_gettime(computed), given_up - time.monotonic())
                if left <= 0:
                    self.close()
                    raise _TooSlow
        head = stream.read(4)
        if len(head) < 4:
            self.close()
            raise OSError("its process has ended")
        return stream.read(struct.unpack(">I", head)[0])

    @staticmethod
    def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
        if stream is None:
            raise OSError("its process has no pipe")
        return stream


def reading(groups: dict[str, str | None]) -> Reading | None:
    """The groups of an expression as a reading; None where the iteration is no number."""
    number = count((groups.get("iteration") or "").strip())
    if number is None:
        return None
    total, epoch = groups.get("total"), groups.get("epoch")
    try:
        at = float(epoch) if epoch else None
    except ValueError:
        at = None
    return Reading(Form.KEYED, "pattern", number, count(total.strip()) if total else None, at)


def aside(general: Reading | None) -> Reading | None:
    """What the general rules say of a record that a pinned expression does not match: no iteration, in any case."""
    if general is None or general.topic is not None:
        return general
    return Reading(
        general.form,
        general.series,
        general.iteration,
        topic=Topic.MENTION,
        why="the pinned pattern does not match",
    )
