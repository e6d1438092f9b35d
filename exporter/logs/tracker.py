"""One followed log: its file, what its records mean, and when they came."""

from __future__ import annotations

import logging
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable

from exporter.logs import trouble
from exporter.logs.files import Files, NotFollowable
from exporter.logs.frameworks import Recogniser
from exporter.logs.interpreter import Interpreter, Observation
from exporter.logs.linereader import RecordSplitter
from exporter.logs.logfile import LogFile, Piece
from exporter.logs.model import LogState, Phase, Trouble
from exporter.logs.progress import Progress, Rules
from exporter.logs.reading import Reading
from exporter.logs.templates import Templates
from exporter.logs.verdict import has_ended
from exporter.logs.words import Topic

log = logging.getLogger(__name__)

FROM_BEGINNING = 8 << 20
"""Bytes of a log that appears while the exporter runs which are read from its beginning."""
_BACK = 64 << 10
_HEAD = 4 << 10  # in which a table's header is looked for
_FURTHEST_BACK = 16 << 20
_SKIMMED = 4 << 10  # bytes that came at once from which on known records are counted together
_TROUBLES = 200
_LONGEST_TROUBLE = 500  # characters


class Tracker:
    """Follows one log. `poll` reads what came; `state` says what is known.

    `interpreter` makes a fresh interpreter, as a log that is looked through backwards is read more than once.
    """

    def __init__(
        self,
        path: str,
        *,
        rules: Rules,
        now: float,
        files: Files | None = None,
        interpreter: Callable[[], Interpreter] = Interpreter,
        framework: str | None = None,
        remark: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.path = path
        self.rules = rules
        self.grew_at: float | None = None  # Unix seconds
        self.problem: str | None = None
        self._file = LogFile(path, files=files)
        self._make = interpreter
        self._remark = remark
        self._opened = False
        self._failures = 0
        self._failure: str | None = None
        self._started = False
        self._aside: dict[str, int | None] = {}
        self._interpreter = interpreter()
        self._splitter = RecordSplitter()
        self._late = RecordSplitter()  # what comes to a rotated file after another has begun
        self._generation = 0
        self._templates = Templates()
        self._progress = Progress(now)
        self._polled_at: float | None = None
        self._iterations = 0
        self._last_iteration: int | None = None
        self._total: int | None = None
        self._epoch: float | None = None
        self._recogniser = Recogniser(framework)
        self._trouble_counts: Tally[str] = Tally()
        self._troubles: deque[Trouble] = deque(maxlen=_TROUBLES)

    @property
    def identity(self) -> tuple[int, int] | None:
        """Device and inode of the file that is read."""
        return self._file.identity

    @property
    def last_progress_at(self) -> float | None:
        """Unix seconds: when training last moved on."""
        return self._progress.last_at

    def restart(self, now: float) -> None:
        """Another run has begun to write to the log."""
        self._progress.restart(now)
        self._interpreter.begin_again()
        self._last_iteration = self._total = self._epoch = None

    def start(self, now: float, *, from_end: bool, started_at: float | None = None, offset: int = 0) -> None:
        """Open the file. `from_end`: it was there before us, and only its last iteration is looked for.

        `started_at` is when its job's oldest process was started: what is older is another run's. `offset` is how
        far it was read when it was followed before.
        """
        self._started = True
        try:
            status = self._file.open(offset=offset)
            self._opened = True
            self.grew_at = min(now, status.st_mtime)
            old = started_at is not None and status.st_mtime < started_at and not offset
            if from_end or old or status.st_size - offset > FROM_BEGINNING:
                self._file.close()
                self._look_back(now)
            last = self._progress.last_at
            if last is not None and started_at is not None and last < started_at:
                self.restart(now)
        except (OSError, NotFollowable) as error:
            self._fail(error)

    def poll(self, now: float, limit: int = 1 << 62) -> bool:
        """Read what was appended since the last poll, `limit` bytes at most; whether there may be more."""
        if not self._opened:
            self.start(now, from_end=True)
            if not self._opened:
                return False
        since = self._polled_at
        read = 0
        try:
            for piece in self._file.read(now, limit):
                read += len(piece.data)
                # A file's time is its server's; what was not there at the last poll is no older than that.
                self.grew_at = min(now, piece.modified_at if since is None else max(since, piece.modified_at))
                self._take_piece(piece, self.grew_at, counting=True)
        except (OSError, NotFollowable) as error:
            self._fail(error)
            return False
        self._polled_at = now
        self.problem = None
        return read >= limit

    def _look_back(self, now: float) -> None:
        """Find the last iteration, from ever further back; nothing of it is counted."""
        back = _BACK
        while True:
            self._interpreter, self._splitter = self._make(), RecordSplitter()
            status = self._file.open(back=back)
            cut = self._file.offset > 0
            if cut:
                self._interpreter.begin_with(self._file.head(_HEAD))
            for piece in self._file.read(now):
                data = piece.data
                if cut:  # the first record's beginning was not read
                    cut = False
                    ends = [end for end in (data.find(b"\n"), data.find(b"\r")) if end >= 0]
                    data = data[min(ends) + 1 :] if ends else b""
                self._take_piece(
                    Piece(data, piece.generation, piece.modified_at),
                    min(now, status.st_mtime),
                    counting=False,
                )
            if self._progress.last_at is not None or back >= status.st_size or back >= _FURTHEST_BACK:
                break
            back *= 8
            self._file.close()
        self._trouble_counts.clear()
        self._troubles.clear()

    def _take_piece(self, piece: Piece, at: float, *, counting: bool) -> None:
        if piece.generation > self._generation:
            # A record that was begun in the file before may end in this one.
            self._generation, self._late = piece.generation, RecordSplitter()
        splitter = self._splitter if piece.generation == self._generation else self._late
        if len(piece.data) < _SKIMMED:
            for record in splitter.feed(piece.data):
                self._take(record, at, counting=counting)
            return
        records = splitter.whole(piece.data)
        if not self._templates:
            records = self._learn(records, at, counting=counting)
        if records:
            self._skim(records, at, counting=counting)

    def _learn(self, records: bytes, at: float, *, counting: bool) -> bytes:
        """Read record by record until a shape is known; gives what is left."""
        position = 0
        for record in records[: 4 * _SKIMMED].splitlines(keepends=True)[:-1]:
            self._take(self._splitter.bounded(record), at, counting=counting)
            position += len(record)
            if self._templates:
                break
        return records[position:]

    def _skim(self, records: bytes, at: float, *, counting: bool) -> None:
        self._templates.keep(self._interpreter.chooser.settled())
        if not self._templates:
            for record in records.splitlines(keepends=True):
                self._take(self._splitter.bounded(record), at, counting=counting)
            return
        for found in self._templates.skim(records):
            if isinstance(found, bytes):
                for record in found.splitlines(keepends=True):
                    self._take(self._splitter.bounded(record), at, counting=counting)
                continue
            template, numbers = found
            moved, first, counts = self._interpreter.skim(template.series, numbers)
            if moved and counts:
                self._progress.moved(at, timed=counting)
                self._iterations += counting * (moved - (first == self._last_iteration))
                self._last_iteration = self._interpreter.standing(template.series)

    def _take(self, record: bytes, at: float, *, counting: bool) -> None:
        try:
            observation = self._interpreter.feed(record)
        except Exception as error:
            self.failed(error)
            return
        if observation is None:
            return
        self._recogniser.see(observation.text)
        if observation.reading is None or observation.reading.topic is Topic.MENTION:
            self._look_for_trouble(observation, at)
        if observation.series is not None:
            accepted = observation.series.key in self._interpreter.chooser.accepted()
            if accepted and observation.moved:
                self._moved(observation, record, at, counting=counting)
            elif observation.moved and not accepted and self._interpreter.phase is Phase.EVALUATING:
                self._progress.alive(at)
        elif observation.reading is not None:
            self._beside(observation.reading, at)
        self._progress.enter(self._interpreter.phase, at)

    def _beside(self, reading: Reading, at: float) -> None:
        """Something else moves: a sign of life where training is not expected to move."""
        if reading.topic is Topic.MENTION or reading.iteration == self._aside.get(reading.series):
            return
        if len(self._aside) > _TROUBLES:
            self._aside.clear()
        self._aside[reading.series] = reading.iteration
        if self._interpreter.phase is not Phase.TRAINING:
            self._progress.alive(at)

    def _moved(self, observation: Observation, record: bytes, at: float, *, counting: bool) -> None:
        reading = observation.reading
        if reading is None:
            return
        if not self._templates.know(record) and reading.series in self._interpreter.chooser.settled():
            self._templates.learn(record, reading)
        self._progress.moved(at, timed=counting)
        if reading.iteration is None or reading.iteration != self._last_iteration:
            self._iterations += counting
        if reading.iteration is not None:
            self._last_iteration, self._total = reading.iteration, reading.total
        self._epoch = reading.epoch if reading.epoch is not None else self._epoch

    def _look_for_trouble(self, observation: Observation, at: float) -> None:
        kind = trouble.kind(observation.text)
        if kind is not None:
            self._trouble_counts[kind] += 1
            text = observation.text[:_LONGEST_TROUBLE]
            self._troubles.append(Trouble(kind, text, at, observation.rank))

    def failed(self, error: Exception) -> None:
        """Count an error that nobody foresaw; reading goes on behind what brought it about."""
        self._failures += 1
        text = f"{type(error).__name__}: {error}"[:_LONGEST_TROUBLE]
        if text != self._failure:
            log.error("reading %s failed; it is read on: %s", self.path, text, exc_info=error)
        self._failure = text

    def _fail(self, error: Exception) -> None:
        text = f"{self.path}: {error.strerror}" if isinstance(error, OSError) else str(error)
        if text != self.problem:
            log.warning("log cannot be followed: %s", text)
        self.problem = text

    @property
    def offset(self) -> int:
        """How far the file was read."""
        return self._file.offset

    def state(self, job_id: str, label: str, path: str) -> LogState:
        """All that is known, under the names that it is to have."""
        phase = self._interpreter.phase
        if has_ended(self._interpreter):
            phase = Phase.FINISHED
        elif phase is Phase.FINISHED or (self._progress.last_at is not None and phase is Phase.STARTING):
            phase = Phase.TRAINING
        return LogState(
            job_id=job_id,
            log=label,
            path=path,
            framework=self._recogniser.name,
            phase=phase,
            limit=self._progress.limit(self.rules, phase),
            since=self._progress.since,
            last_progress_at=self._progress.last_at,
            last_iteration=self._last_iteration,
            total_iterations=self._total,
            epoch=self._epoch,
            iterations=self._iterations,
            intervals=self._progress.intervals(),
            trouble_counts=tuple(sorted(self._trouble_counts.items())),
            troubles=tuple(self._troubles),
            skipped_records=self._splitter.skipped,
            problem=self.problem or self._remark(),
            opened=self._opened,
            failures=self._failures,
            failure=self._failure,
        )

    def close(self) -> None:
        self._file.close()
