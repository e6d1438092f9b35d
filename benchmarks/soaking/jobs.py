"""Runs the planned jobs, a few at a time, and writes down what happened when."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.soaking.plan import RANKS, Plan, Run, plan
from standalone import processes

RANK = Path(__file__).with_name("rank.py")
PATIENCE = 150.0  # seconds that a hang lasts at most until it is paged, captured and diagnosed


@dataclass(slots=True)
class Truth:
    """One job as it really went. Times are Unix seconds."""

    plan: Plan
    started_at: float
    runs: int = 0
    hung_at: float | None = None
    fault: str = ""
    victim: int = 0
    hang_ended_at: float | None = None
    ended_at: float | None = None


@dataclass(slots=True)
class Jobs:
    """Several jobs side by side. `step` moves each on; it is to be called about once a second."""

    folder: Path
    chance: random.Random
    slots: int
    seen: Callable[[Truth], bool]  # whether all that must come of a job's hang has come
    truths: list[Truth] = field(default_factory=list)
    rotations: int = 0
    restarts: int = 0
    pauses: int = 0
    _lives: list[Iterator[None]] = field(default_factory=list)
    _ranks: dict[str, list[subprocess.Popen[bytes]]] = field(default_factory=dict)

    def step(self, *, more: bool) -> None:
        """Move all jobs on; where one has ended, another begins, as long as there are to be `more`."""
        self._lives = [life for life in self._lives if next(life, self) is not self]
        while more and len(self._lives) < self.slots:
            self._lives.append(self._life(plan(f"soak-{len(self.truths):04d}", self.chance)))
            next(self._lives[-1])

    @property
    def alive(self) -> int:
        return len(self._lives)

    def end(self) -> None:
        for job_id in list(self._ranks):
            self._kill(job_id)

    def _life(self, plan: Plan) -> Iterator[None]:
        truth = Truth(plan, time.time())
        self.truths.append(truth)
        folder = self.folder / plan.job_id
        folder.mkdir(parents=True)
        for number, run in enumerate(plan.runs):
            yield from _for(self.chance.uniform(0, 4) if number else 0)
            truth.runs += 1
            self.restarts += number > 0
            self.rotations += sum(kind == "rotate" for kind, _ in run.steps)
            self.pauses += sum(kind in ("evaluate", "checkpoint") for kind, _ in run.steps)
            (folder / "at-end").unlink(missing_ok=True)
            self._start(plan, run, folder)
            while not (folder / "at-end").exists() and self._all_live(plan.job_id):
                yield
            if run.end == "hang":
                yield from self._hang(truth, run)
            elif run.end == "killed":
                yield from _for(self.chance.uniform(0, 20))
            else:
                while any(one.poll() is None for one in self._ranks[plan.job_id]):
                    yield
            self._kill(plan.job_id)
        truth.ended_at = time.time()
        shutil.rmtree(folder, ignore_errors=True)

    def _hang(self, truth: Truth, run: Run) -> Iterator[None]:
        truth.hung_at, truth.fault, truth.victim = time.time(), run.fault, run.victim
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and not self.seen(truth):
            yield
        yield from _for(self.chance.uniform(0, 30))
        truth.hang_ended_at = time.time()

    def _start(self, plan: Plan, run: Run, folder: Path) -> None:
        orders = {
            "run": asdict(run),
            "logger": plan.logger,
            "shared_log": plan.shared_log,
            "folder": str(folder),
        }
        environment = {"TORCHELASTIC_RUN_ID": plan.job_id, "WORLD_SIZE": str(RANKS), "PATH": os.defpath}
        self._ranks[plan.job_id] = [
            processes.start(
                [sys.executable, "-S", str(RANK), json.dumps(orders)],
                log=folder / "stray.log",
                environment=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(RANKS)
        ]

    def _all_live(self, job_id: str) -> bool:
        return all(one.poll() is None for one in self._ranks[job_id])

    def _kill(self, job_id: str) -> None:
        for one in self._ranks.pop(job_id):
            # The group: a rank in disk sleep has a child that sleeps as well, and becomes ours when the rank is gone.
            below = processes.descendants(one.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
            for pid in below:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def _for(seconds: float) -> Iterator[None]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield
