"""One look at one process: /proc first, then its Python stacks if reading them can do no harm."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from exporter.procfs import ProcFS
from exporter.ranks import TrainingProcess
from snapshotter.capture.bounded import run_all
from snapshotter.capture.facts import Facts, in_page_fault, read_facts
from snapshotter.capture.pyspy import PySpy
from snapshotter.stacks.model import Outcome, Sample

log = logging.getLogger(__name__)

_GONE = "the process ended before its stack was read"
_IN_FAULT = "it waits in a page fault for a page that does not come; reading it could hang the reader"
_ELSEWHERE = "it is in another PID namespace than this program: run that in the host's (hostPID)"
_MARGIN = 2.0  # seconds that reading /proc and killing a py-spy may take beyond py-spy's own limit
_FACTS_LIMIT = 2.0  # seconds


class Sampler:
    """Takes samples of many processes at once; safe to use from several threads."""

    def __init__(
        self, procfs: ProcFS, pyspy: PySpy, *, at_once: int, now: Callable[[], float] = time.time
    ) -> None:
        self._procfs = procfs
        self._pyspy = pyspy
        self._at_once = at_once
        self._now = now
        self._delays = procfs.delay_accounting() is not False

    def sample_all(
        self,
        targets: Sequence[TrainingProcess],
        *,
        total: float,
        done: Callable[[], None] = lambda: None,
    ) -> list[Sample]:
        """One sample of each, in order, within `total` seconds; `done` is called after each."""

        end = time.monotonic() + total

        def take(target: TrainingProcess) -> Sample:
            try:
                sample = self.sample(target, within=end - time.monotonic())
            except Exception as error:
                # A fault of ours in reading one process must not cost the others.
                log.exception("reading process %s failed", target.id.pid)
                sample = Sample(self._now(), "error", error=f"reading it failed: {error}")
            done()
            return sample

        taken = run_all(
            take,
            targets,
            at_once=self._at_once,
            limit=self._pyspy.timeout + _MARGIN,
            total=total + _MARGIN,
        )
        late = [target for target, sample in zip(targets, taken, strict=True) if sample is None]
        without_stacks = iter(
            run_all(
                self._facts_alone,
                late,
                at_once=self._at_once,
                limit=_FACTS_LIMIT,
                total=2 * _FACTS_LIMIT,
            )
        )
        return [
            sample or next(without_stacks) or Sample(self._now(), "timeout", error="/proc did not answer")
            for sample in taken
        ]

    def sample(self, target: TrainingProcess, *, within: float = math.inf) -> Sample:
        """One sample of one process; its stacks within so many seconds."""
        taken_at = self._now()
        facts = self._facts(target)
        if facts is None:
            return Sample(taken_at, "gone", error=_GONE)
        if in_page_fault(self._procfs, target.id.pid, facts):
            return _sample(taken_at, facts, "uninterruptible", _IN_FAULT)
        timeout = min(self._pyspy.timeout, within)
        dump = self._pyspy.dump(target.id.pid, target.id.start_ticks, timeout=timeout)
        if dump.outcome == "gone" and (now := self._facts(target)) is not None and now.state not in "ZX":
            return _sample(taken_at, facts, "error", _ELSEWHERE)
        return replace(
            _sample(taken_at, facts, dump.outcome, dump.error),
            threads=dump.threads,
            pause_seconds=dump.pause_seconds,
        )

    def _facts(self, target: TrainingProcess) -> Facts | None:
        facts = read_facts(self._procfs, target.id.pid, delays=self._delays)
        return facts if facts is not None and facts.start_ticks == target.id.start_ticks else None

    def _facts_alone(self, target: TrainingProcess) -> Sample:
        taken_at = self._now()
        facts = self._facts(target)
        if facts is None:
            return Sample(taken_at, "gone", error=_GONE)
        return _sample(taken_at, facts, "timeout", "its turn did not come or it gave no stack in time")


def _sample(taken_at: float, facts: Facts, outcome: Outcome, error: str | None) -> Sample:
    return Sample(
        taken_at=taken_at,
        outcome=outcome,
        error=error,
        state=facts.state,
        wchan=facts.wchan,
        kernel_stack=facts.kernel_stack,
        syscall=facts.syscall,
        counters=facts.counters,
        kernel_threads=facts.threads,
    )
