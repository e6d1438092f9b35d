"""One followed log: its file, what its records mean, and when they came."""

from __future__ import annotations

import logging
from collections import Counter as Tally
from collections import deque
from pathlib import Path

from exporter.logs import trouble
from exporter.logs.frameworks import recognise
from exporter.logs.interpreter import Interpreter, Observation
from exporter.logs.linereader import RecordSplitter
from exporter.logs.logfile import Files, LogFile, NotFollowable
from exporter.logs.model import LogState, Phase, Trouble
from exporter.logs.progress import Progress, Rules

log = logging.getLogger(__name__)

_BACK = 256 << 10
_FURTHEST_BACK = 8 << 20
_TROUBLES = 200


class Tracker:
    """Follows one log. `poll` reads what came; `state` says what is known."""

    def __init__(
        self, path: str, *, job_id: str, label: str, rules: Rules, now: float, files: Files | None = None
    ) -> None:
        self.path = path
        self.job_id = job_id
        self.label = label
        self.rules = rules
        self._file = LogFile(path, files=files)
        self._splitter = RecordSplitter()
        self._interpreter = Interpreter()
        self._progress = Progress(now)
        self._polled_at: float | None = None
        self._iterations = 0
        self._last_iteration: int | None = None
        self._total: int | None = None
        self._epoch: float | None = None
        self._framework = ""
        self._trouble_counts: Tally[str] = Tally()
        self._troubles: deque[Trouble] = deque(maxlen=_TROUBLES)
        self.grew_at: float | None = None  # Unix seconds
        self.problem: str | None = None

    @property
    def identity(self) -> tuple[int, int] | None:
        return self._file.identity

    def start(self, now: float, *, from_end: bool) -> None:
        """Open the file. `from_end`: it was there before us, only its last iteration is looked for."""
        try:
            if from_end:
                self._look_back(now)
            else:
                self._file.open()
        except (OSError, NotFollowable) as error:
            self._fail(error)

    def poll(self, now: float) -> None:
        """Read what was appended since the last poll."""
        previous = self._polled_at
        self._polled_at = now
        try:
            for piece in self._file.read(now):
                self.grew_at = min(now, max(piece.modified_at, previous or piece.modified_at))
                for record in self._splitter.feed(piece.data):
                    self._take(record, self.grew_at, count=True)
        except (OSError, NotFollowable) as error:
            self._fail(error)
            return
        self.problem = None

    def _look_back(self, now: float) -> None:
        back = _BACK
        status = self._file.open(back=back)
        at = min(now, status.st_mtime)
        while True:
            self._interpreter, self._splitter = Interpreter(), RecordSplitter()
            first = self._file.offset > 0
            for piece in self._file.read(now):
                for record in self._splitter.feed(piece.data):
                    if first:
                        first = False  # its beginning was not read
                        continue
                    self._take(record, at, count=False)
            if (
                self._progress.last_at is not None
                or back >= _FURTHEST_BACK
                or not self._file.skip_back(back * 4)
            ):
                break
            back *= 4
        self._trouble_counts.clear()
        self.grew_at = status.st_mtime

    def _take(self, record: bytes, at: float, *, count: bool) -> None:
        observation = self._interpreter.feed(record)
        if observation is None:
            return
        if not self._framework:
            self._framework = recognise(observation.text)
        if observation.reading is None:
            kind = trouble.kind(observation.text)
            if kind is not None:
                self._trouble_counts[kind] += 1
                self._troubles.append(Trouble(kind, observation.text[:500], at, observation.rank))
        if observation.series is not None and observation.moved:
            self._moved(observation, at, count=count)
        elif observation.phase is not None:
            self._progress.paused(observation.phase, at)

    def _moved(self, observation: Observation, at: float, *, count: bool) -> None:
        series, reading = observation.series, observation.reading
        if series is None or reading is None or series.key not in self._interpreter.chooser.accepted():
            return
        self._progress.moved(at, timed=count)
        self._iterations += count
        if reading.iteration is not None:
            self._last_iteration = reading.iteration
            self._total = reading.total
        self._epoch = reading.epoch if reading.epoch is not None else self._epoch

    def _fail(self, error: Exception) -> None:
        text = (
            str(error)
            if isinstance(error, NotFollowable)
            else f"{self.path}: {getattr(error, 'strerror', error)}"
        )
        if text != self.problem:
            log.warning("log cannot be read: %s", text)
        self.problem = text

    def state(self) -> LogState:
        phase = self._interpreter.phase
        if self._progress.last_at is not None and phase is Phase.STARTING:
            phase = Phase.TRAINING
        return LogState(
            job_id=self.job_id,
            log=self.label,
            path=self.path,
            framework=self._framework or "unknown",
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
            problem=self.problem,
        )

    def close(self) -> None:
        self._file.close()


def name_of(path: str, others: set[str]) -> str:
    """The file's name, with as many parent folders before it as tell it from the others."""
    parts = Path(path).parts
    for length in range(1, len(parts) + 1):
        label = "/".join(parts[-length:])
        if label not in others:
            return label
    return path
