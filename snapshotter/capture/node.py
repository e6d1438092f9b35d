"""One node: all processes of a job in parallel, twice, some seconds apart, with what /proc says both times.

Nothing that goes wrong with one process, or that the kernel keeps from us, stops the rest: it is recorded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from exporter.procfs import ProcFS, Unreadable
from exporter.ranks import Scan, TrainingProcess
from snapshotter.capture import targets
from snapshotter.capture.facts import Facts, in_page_fault, read_facts
from snapshotter.capture.privacy import allowed_environment, mask_command_line
from snapshotter.capture.pyspy import PySpy
from snapshotter.stacks.model import NodeAnswer, Outcome, Process, Sample

_GONE = "the process ended before its stack was read"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a capture is: `done` of `total` steps of `stage` on `node`."""

    node: str
    stage: str
    done: int
    total: int


def capture_node(
    find: Callable[[], Scan],
    procfs: ProcFS,
    pyspy: PySpy,
    *,
    node: str,
    job_id: str | None = None,
    pids: Sequence[int] = (),
    interval: float = 5.0,
    samples: int = 2,
    at_once: int = 8,
    progress: Callable[[Progress], None] = lambda step: None,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> NodeAnswer:
    """Take `samples` samples, `interval` seconds apart, of a job's processes or of the trees below `pids`.

    `find` looks for the training processes of the node. `at_once` bounds the py-spy that run at a time.
    Never raises for what it finds: where nothing is found, the answer has an error that says so.
    """
    started = now()
    scan = find()
    try:
        chosen = targets.of_pids(scan, pids, procfs) if pids else targets.of_job(scan, job_id, procfs)
        error = None if chosen else _nothing_found(scan, job_id, node)
    except targets.NoSuchTarget as problem:
        chosen, error = (), str(problem)
    taken: dict[int, list[Sample]] = {target.id.pid: [] for target in chosen}
    described: dict[int, dict[str, str]] = {}
    with ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="capture") as pool:
        for number in range(samples if chosen else 0):
            began = now()
            count = _Count(node, f"sample {number + 1} of {samples}", len(chosen), progress)
            take = _Taker(procfs, pyspy, now, count)
            for target, sample in zip(chosen, pool.map(take, chosen), strict=True):
                taken[target.id.pid].append(sample)
            if number == 0:
                described = {target.id.pid: _environment(procfs, target, taken) for target in chosen}
            if number + 1 < samples:
                sleep(max(0.0, interval - (now() - began)))
    return NodeAnswer(
        node=node,
        outcome="ok" if chosen else "gone",
        started_at=started,
        finished_at=now(),
        job_id=job_id or (chosen[0].job_id if chosen else ""),
        error=error,
        processes=tuple(
            _process(target, node, taken[target.id.pid], described[target.id.pid]) for target in chosen
        ),
    )


class _Count:
    """Counts finished processes over all threads and reports each."""

    def __init__(self, node: str, stage: str, total: int, progress: Callable[[Progress], None]) -> None:
        self._step = Progress(node, stage, 0, total)
        self._progress = progress
        self._lock = threading.Lock()

    def one_more(self) -> None:
        with self._lock:
            self._step = replace(self._step, done=self._step.done + 1)
            self._progress(self._step)


class _Taker:
    """Takes one sample of one process."""

    def __init__(self, procfs: ProcFS, pyspy: PySpy, now: Callable[[], float], count: _Count) -> None:
        self._procfs = procfs
        self._pyspy = pyspy
        self._now = now
        self._count = count
        self._delays = procfs.delay_accounting() is not False

    def __call__(self, target: TrainingProcess) -> Sample:
        sample = self._sample(target)
        self._count.one_more()
        return sample

    def _sample(self, target: TrainingProcess) -> Sample:
        pid = target.id.pid
        taken_at = self._now()
        facts = read_facts(self._procfs, pid, delays=self._delays)
        if facts is None or facts.start_ticks != target.id.start_ticks:
            return Sample(taken_at, "gone", error=_GONE)
        if in_page_fault(self._procfs, pid, facts):
            return _sample(
                taken_at,
                facts,
                "uninterruptible",
                "it waits in a page fault for a page that does not come; reading it could hang the reader",
            )
        dump = self._pyspy.dump(pid, target.id.start_ticks)
        return replace(
            _sample(taken_at, facts, dump.outcome, dump.error),
            threads=dump.threads,
            pause_seconds=dump.pause_seconds,
        )


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


def _environment(procfs: ProcFS, target: TrainingProcess, taken: dict[int, list[Sample]]) -> dict[str, str]:
    """Reading it takes the lock of the memory map, so not of a process that may hold it for ever."""
    if any(sample.outcome in ("uninterruptible", "gone") for sample in taken[target.id.pid]):
        return {}
    environment = procfs.environ(target.id.pid)
    return {} if isinstance(environment, Unreadable) else allowed_environment(environment)


def _process(
    target: TrainingProcess, node: str, samples: Sequence[Sample], environment: dict[str, str]
) -> Process:
    failed = [sample for sample in samples if sample.outcome != "ok"]
    outcome: Outcome = "ok" if len(failed) < len(samples) else failed[-1].outcome
    return Process(
        pid=target.id.pid,
        node=node,
        role=target.role,
        rank=target.rank,
        outcome=outcome,
        start_ticks=target.id.start_ticks,
        parent_pid=target.parent_pid,
        local_rank=target.local_rank,
        world_size=target.world_size,
        worker=target.worker,
        gpu=target.gpu,
        pod=target.pod,
        name=target.name,
        command_line=mask_command_line(target.command_line),
        environment=environment,
        error=failed[-1].error if failed else None,
        samples=tuple(samples),
    )


def _nothing_found(scan: Scan, job_id: str | None, node: str) -> str:
    jobs = sorted({process.job_id for process in scan.processes})
    if job_id is None:
        return f"no training process runs on {node}"
    others = f"; the jobs here are {', '.join(jobs)}" if jobs else ""
    return f"no process of job {job_id} is left on {node}{others}"
