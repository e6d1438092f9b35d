"""Asks the jobs of this node about themselves: seldom, one node a job, and never where it could hurt."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from exporter.config import NcclConfig
from exporter.nccl.find import SKIPS, Skip, Target, find, use_json
from exporter.nccl.model import RasReport
from exporter.nccl.question import Asked, ask_target
from exporter.nccl.stall import Stall, follow
from exporter.procfs import ProcFS
from exporter.ranks import Scan, TrainingProcess

log = logging.getLogger(__name__)

LOOK_AGAIN = 15.0
"""Seconds until it is looked again whether a job that is not asked may be: that reads its memory map."""
LOOK_AGAIN_FOR_NCCL = 60.0
"""The same where no process has loaded NCCL: then those of all were read. It is asked much later anyway."""

CORRUPT = "corrupt"
"""Counted with the reasons of failed questions: an answer with impossible figures."""
_CORRUPT_TEXT = "impossible figures (a fault of this NCCL version); the tables of this answer are not used"

MOST_BACK_OFF = 16
"""After failures in a row the wait doubles, up to so many intervals."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """RAS about one job as it was last asked; published, never changed.

    `report` is there while the last question was answered and nothing keeps the next one from being asked.
    """

    job_id: str
    skip: Skip | None  # why it is not asked now
    up: bool | None = None  # None: never asked
    asked_at: float | None = None  # Unix seconds
    seconds: float | None = None  # that the last question took
    report: RasReport | None = None
    stalled: dict[str, float] = field(default_factory=dict)  # seconds by communicator hash
    errors: tuple[tuple[str, int], ...] = ()  # failed questions by reason, since the job was first seen
    failure: str = ""  # of the last question


@dataclass(slots=True)
class _Job:
    """What is remembered of a job while any process of it lives here."""

    ask_at: float = 0.0  # not before
    look_at: float = 0.0
    failures: int = 0
    entries: int = 0
    hashes: frozenset[str] = frozenset()  # of the communicators that the last answer named
    seen_silent: bool = False  # a trainer was seen before anything listened
    listening_since: float | None = None  # when that changed
    stalls: dict[str, Stall] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    status: JobStatus | None = None


class NcclWatcher:
    """Background reader: `poll()` often, it asks when a job is due; `latest` is what is known."""

    def __init__(
        self,
        config: NcclConfig,
        procfs: ProcFS,
        scan: Callable[[], Scan],
        *,
        now: Callable[[], float] = time.time,
        ask: Callable[..., Asked] = ask_target,
    ) -> None:
        self._config = config
        self._procfs = procfs
        self._scan = scan
        self._now = now
        self._ask = ask
        self._jobs: dict[str, _Job] = {}
        self.latest: tuple[JobStatus, ...] = ()

    def configure(self, config: NcclConfig) -> None:
        """Use another configuration from the next poll on."""
        self._config = config

    def poll(self) -> None:
        """Look at every job of the node and ask those that are due."""
        jobs: dict[str, list[TrainingProcess]] = {}
        for process in self._scan().processes:
            jobs.setdefault(process.job_id, []).append(process)
        self._jobs = {job_id: self._jobs.get(job_id, _Job()) for job_id in jobs}
        self._publish()
        for job_id, processes in jobs.items():
            self._look(job_id, self._jobs[job_id], processes)
            self._publish()  # a silent server of one job does not hold back what is known of another

    def _publish(self) -> None:
        self.latest = tuple(job.status for job in self._jobs.values() if job.status is not None)

    def _look(self, job_id: str, job: _Job, processes: Iterable[TrainingProcess]) -> None:
        now = self._now()
        if max(job.look_at, job.ask_at) > now + self._config.interval * MOST_BACK_OFF:
            # The clock was set back, or the interval made shorter.
            job.look_at, job.ask_at = now, now + self._config.interval
            job.listening_since = None if job.listening_since is None else min(job.listening_since, now)
        if self._config.enabled and now < max(job.look_at, job.ask_at):
            self._wait(job)
            return
        found = find(self._procfs, tuple(processes), self._config)
        if not isinstance(found, Target):
            job.seen_silent = job.seen_silent or found == "not_listening"
            self._withhold(job_id, job, found)
        elif self._too_early(job, found, now):
            self._withhold(job_id, job, "quiet_start")
        elif now >= job.ask_at:
            self._question(job, found, now)

    def _withhold(self, job_id: str, job: _Job, skip: Skip) -> None:
        """Publish why nothing is asked, and no longer what was said before: it would grow old unnoticed."""
        if job.status is None or job.status.skip != skip:
            log.info("NCCL RAS of job %s is not asked: %s", job_id, SKIPS[skip])
        job.status = JobStatus(job_id, skip, errors=tuple(sorted(job.errors.items())))
        job.look_at = self._now() + (LOOK_AGAIN_FOR_NCCL if skip == "no_nccl" else LOOK_AGAIN)

    @staticmethod
    def _wait(job: _Job) -> None:
        """Not due yet: what was said last stands."""
        if job.failures and job.status is not None and job.status.skip is None:
            job.status = replace(job.status, skip="back_off")

    def _too_early(self, job: _Job, target: Target, now: float) -> bool:
        """Whether the job, or its RAS service where we saw that appear, is in its first minutes."""
        if job.listening_since is None and (job.seen_silent or target.started is None):
            job.listening_since = now
        since = max(one for one in (job.listening_since, target.started) if one is not None)
        return now - since < self._config.quiet_start

    def _question(self, job: _Job, target: Target, now: float) -> None:
        json = use_json(target.version, self._config, job.entries)
        asked = self._ask(self._procfs, target, json=json, hashes=job.hashes)
        ended = self._now()
        job.ask_at = now + self._config.interval
        if asked.answer is None:
            self._withhold(target.job_id, job, asked.skip or "ambiguous")
            return
        answer = asked.answer
        good = answer.reason is None
        problem = answer.reason or (CORRUPT if answer.report.corrupt else None)
        if problem is not None:
            job.errors[problem] = job.errors.get(problem, 0) + 1
            log.warning("NCCL RAS of job %s: %s: %s", target.job_id, problem, answer.detail or _CORRUPT_TEXT)
        job.failures = 0 if good else job.failures + 1
        job.ask_at = now + self._config.interval * min(2**job.failures, MOST_BACK_OFF)
        if good:
            job.entries = max(job.entries, answer.report.rank_entries)
            job.hashes = frozenset(one.hash for one in answer.report.communicators)
            job.stalls = follow(job.stalls, answer.report, ended)
        job.status = JobStatus(
            job_id=target.job_id,
            skip=None,
            up=good,
            asked_at=ended,
            seconds=answer.reply.seconds,
            report=answer.report if good else None,
            stalled={name: max(0.0, ended - stall.since) for name, stall in job.stalls.items()}
            if good
            else {},
            errors=tuple(sorted(job.errors.items())),
            failure=answer.detail,
        )
