"""One node: all processes of a job in parallel, twice, some seconds apart, with what /proc says both times.

Nothing that goes wrong with one process, or that the kernel keeps from us, stops the rest: it is recorded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from exporter.procfs import ProcFS, Unreadable
from exporter.ranks import Scan, TrainingProcess
from snapshotter.capture import joblog, kernellog, native, openfiles, targets
from snapshotter.capture.bounded import Pending, call_within, run_all
from snapshotter.capture.expected import missing_here
from snapshotter.capture.privacy import allowed_environment, mask_command_line
from snapshotter.capture.pyspy import Dump, PySpy
from snapshotter.capture.rasfacts import RasFacts
from snapshotter.capture.sampling import Sampler
from snapshotter.stacks.digest import Digester
from snapshotter.stacks.model import NcclAnswer, NodeAnswer, Outcome, Process, Sample

log = logging.getLogger(__name__)

_FIND_LIMIT = 15.0  # seconds
_NATIVE_LIMIT = 30.0
_SIDE_LIMIT = 3.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a capture is: `done` of `total` steps of `stage` on `node`."""

    node: str
    stage: str
    done: int
    total: int


@dataclass(slots=True)
class _Side:
    """What is found out beside the stacks, by pid."""

    environment: dict[int, dict[str, str]] = field(default_factory=dict)
    open_files: dict[int, tuple[str, ...]] = field(default_factory=dict)


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
    at_once: int = 16,
    deadline: float = 60.0,
    native_frames: bool = False,
    kernel_log_before: float = 3600.0,
    remembered: Callable[[str], Iterable[int]] = lambda job_id: (),
    ask_nccl: Callable[[Scan, str], RasFacts] | None = None,
    read_kernel_log: Callable[[float, float], tuple[str, ...]] = kernellog.troubles,
    progress: Callable[[Progress], None] = lambda step: None,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> NodeAnswer:
    """Take samples of a job's processes (None: of all training here) or of the trees below `pids`.

    Samples are `interval` seconds apart, by `at_once` py-spy at a time, all within `deadline` seconds.
    `native_frames` adds C frames of outliers and representatives, which stops each for 0.1 s to
    some seconds. The kernel's log is read from `kernel_log_before` seconds back.

    `find` looks for the training processes of the node; `remembered` gives ranks of a job seen here before.
    `ask_nccl` is asked once, meanwhile. Never raises for what it finds: where nothing is found, or not in
    time, the answer has an error that says so.
    """
    job_id = job_id or None
    started = now()
    end = time.monotonic() + deadline

    def choose() -> tuple[Scan, tuple[TrainingProcess, ...]]:
        scan = find()
        return scan, targets.of_pids(scan, pids, procfs) if pids else targets.of_job(scan, job_id, procfs)

    def answer(outcome: Outcome, error: str | None, job: str = "") -> NodeAnswer:
        return NodeAnswer(node, outcome, started, now(), job_id or job, error)

    try:
        found = call_within(choose, min(_FIND_LIMIT, deadline))
    except targets.NoSuchTarget as problem:
        return answer("ok", str(problem))
    except OSError as error:
        return answer("error", f"{procfs.root} of {node} cannot be read: {error.strerror}")
    if found is None:
        return answer("timeout", f"looking for the training processes of {node} took too long")
    scan, chosen = found
    if not chosen and scan.denied:
        return answer("denied", _nothing_found(scan, job_id, node) + unseen(scan))
    job = job_id or (chosen[0].job_id if chosen else "")
    nccl = None if ask_nccl is None or not chosen else Pending(lambda: ask_nccl(scan, job))

    sampler = Sampler(procfs, pyspy, at_once=at_once, now=now)
    taken: list[list[Sample]] = [[] for _ in chosen]
    side = _Side()
    for number in range(samples if chosen else 0):
        began = time.monotonic()
        count = _Count(node, f"sample {number + 1} of {samples}", len(chosen), progress)
        left = max(1.0, end - began) / (samples - number)
        sampled = sampler.sample_all(chosen, total=left, done=count.one_more)
        for one, sample in zip(taken, sampled, strict=True):
            one.append(sample)
        if number == 0:
            _describe(procfs, chosen, taken, side)
        if number + 1 < samples:
            rest = min(interval, (end - began) / 2) - (time.monotonic() - began)
            sleep(max(0.0, rest))
    processes = tuple(_process(target, node, its, side) for target, its in zip(chosen, taken, strict=True))
    if native_frames:
        dumps = _read_native(pyspy, _worth_native(processes), end)
        processes = tuple(_with_native(one, dumps.get(one.pid)) for one in processes)
    ras = _ras(nccl, end)
    return NodeAnswer(
        node=node,
        outcome="ok",
        started_at=started,
        finished_at=now(),
        job_id=job,
        error=None if chosen else _nothing_found(scan, job_id, node),
        processes=processes,
        expected_ranks=missing_here(processes, call_within(lambda: tuple(remembered(job)), 1.0) or ()),
        nccl=None if ras is None else ras.answer,
        nccl_facts=() if ras is None else ras.facts,
        # Last, as it takes the interpreter's time and the samples want it first.
        job_log=_job_log(procfs, chosen, processes),
        kernel_log=_lines(Pending(lambda: read_kernel_log(started - kernel_log_before, now()))),
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
            try:
                self._progress(self._step)
            except Exception:  # telling is no reason to fail
                log.exception("progress could not be told")


def _describe(
    procfs: ProcFS, chosen: Sequence[TrainingProcess], taken: Sequence[Sequence[Sample]], side: _Side
) -> None:
    """Environments, and the open files of what is blocked; a process that may be locked is left alone."""

    def describe(item: tuple[TrainingProcess, Sample]) -> None:
        target, sample = item
        pid = target.id.pid
        if sample.outcome == "gone":
            return
        if sample.state == "D" or any(thread.state == "D" for thread in sample.kernel_threads):
            side.open_files[pid] = openfiles.on_network(procfs, pid)
        if sample.outcome != "uninterruptible":
            environment = procfs.environ(pid)
            if not isinstance(environment, Unreadable):
                side.environment[pid] = allowed_environment(environment)

    first = [(target, samples[0]) for target, samples in zip(chosen, taken, strict=True)]
    run_all(describe, first, at_once=4, limit=_SIDE_LIMIT, total=2 * _SIDE_LIMIT)


def _worth_native(processes: Sequence[Process]) -> list[Process]:
    digester = Digester()
    for process in processes:
        digester.add_process(process)
    by_pid = {process.pid: process for process in processes}
    return [by_pid[one.pid] for one in native.chosen(digester.digest.processes)]


def _read_native(pyspy: PySpy, processes: Sequence[Process], end: float) -> dict[int, Dump]:
    """The C frames by pid. A process that is in state D or stopped by now is left alone."""
    dumps: dict[int, Dump] = {}

    def read(process: Process) -> None:
        left = min(_NATIVE_LIMIT, end - time.monotonic())
        dumps[process.pid] = pyspy.dump(process.pid, process.start_ticks, native=True, timeout=left)

    total = max(0.0, end - time.monotonic())
    run_all(read, processes, at_once=2, limit=_NATIVE_LIMIT, total=total)
    return dict(dumps)


def _with_native(process: Process, dump: Dump | None) -> Process:
    if dump is None:
        return process
    return native.with_native(process, dump.threads, dump.pause_seconds)


def capture_native(
    find: Callable[[], Scan],
    procfs: ProcFS,
    pyspy: PySpy,
    *,
    node: str,
    job_id: str | None,
    wanted: Iterable[int],
    pids: Sequence[int] = (),
    deadline: float = 30.0,
    now: Callable[[], float] = time.time,
) -> NodeAnswer:
    """The C frames of the processes `wanted` of a job (of the trees below `pids`), within `deadline` seconds.

    One sample each, without Python stacks: outcome, pause, state. A pid that is not the job's is left out.
    Never raises for what it finds.
    """
    started = now()
    end = time.monotonic() + deadline

    def choose() -> list[TrainingProcess]:
        scan, only = find(), frozenset(wanted)
        found = targets.of_pids(scan, pids, procfs) if pids else targets.of_job(scan, job_id, procfs)
        return [target for target in found if target.id.pid in only]

    try:
        found = call_within(choose, min(_FIND_LIMIT, deadline))
    except (targets.NoSuchTarget, OSError) as problem:
        return NodeAnswer(node, "error", started, now(), job_id or "", str(problem))
    if found is None:
        error = f"looking for the training processes of {node} took too long"
        return NodeAnswer(node, "timeout", started, now(), job_id or "", error)
    bare = [_process(target, node, (Sample(now(), "ok"),), _Side()) for target in found]
    dumps = _read_native(pyspy, bare, end)
    late = Dump("timeout", error="no time was left for its C frames")
    processes = tuple(
        replace(
            one,
            outcome=dump.outcome,
            error=dump.error,
            samples=(Sample(now(), dump.outcome, dump.error, pause_seconds=dump.pause_seconds),),
            native_threads=dump.threads,
        )
        for one in bare
        for dump in (dumps.get(one.pid, late),)
    )
    return NodeAnswer(node, "ok", started, now(), job_id or "", processes=processes)


def _ras(pending: Pending[RasFacts] | None, end: float) -> RasFacts | None:
    if pending is None:
        return None
    try:
        answer = pending.result(max(0.0, end - time.monotonic()))
    except Exception as error:  # whatever the client of a broken peer runs into, the stacks matter more
        return RasFacts(NcclAnswer("", error=f"asking NCCL failed: {error}"))
    return answer or RasFacts(NcclAnswer("", error="NCCL did not answer within the capture's time"))


def _job_log(
    procfs: ProcFS, chosen: Sequence[TrainingProcess], processes: Sequence[Process]
) -> tuple[str, ...]:
    alive = {process.pid for process in processes if process.outcome != "gone"}
    readable = [target for target in chosen if target.id.pid in alive]
    return call_within(lambda: joblog.troubles(procfs, readable), _SIDE_LIMIT) or ()


def _lines(pending: Pending[tuple[str, ...]]) -> tuple[str, ...]:
    lines = pending.result(_SIDE_LIMIT)
    return ("hangscope: the kernel log did not answer in time",) if lines is None else lines


def _process(target: TrainingProcess, node: str, samples: Sequence[Sample], side: _Side) -> Process:
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
        environment=side.environment.get(target.id.pid, {}),
        open_files=side.open_files.get(target.id.pid, ()),
        error=failed[-1].error if failed else None,
        samples=tuple(samples),
    )


def unseen(scan: Scan) -> str:
    """The end of a sentence about what a scan did not find: that it may have missed it, and what to do."""
    if not scan.denied:
        return ""
    processes = "1 Python process" if scan.denied == 1 else f"{scan.denied} Python processes"
    return (
        f", as far as can be told: {processes} of other users cannot be looked into; "
        "run as root, or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
    )


def _nothing_found(scan: Scan, job_id: str | None, node: str) -> str:
    jobs = sorted({process.job_id for process in scan.processes})
    if job_id is None:
        return f"no training process runs on {node}"
    others = f"; the jobs here are {', '.join(jobs)}" if jobs else ", nor of any other job"
    return f"no process of job {job_id} is left on {node}{others}"
