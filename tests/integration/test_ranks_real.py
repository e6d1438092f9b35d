"""Real launchers and real waiting, found on this machine's own /proc."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from exporter.procfs import ProcFS
from exporter.ranks import Job, RankFinder, TrainingProcess
from exporter.sampler import Group, ProcessSampler

PROGRAMS = Path(__file__).parents[1] / "programs"
TRAIN, IDLE = str(PROGRAMS / "ranks_train.py"), str(PROGRAMS / "ranks_idle.py")
BIN = Path(sys.executable).parent
# Of a machine that does much else: torch is imported three times, one after another.
DEADLINE = 600.0
pytestmark = pytest.mark.timeout(2 * DEADLINE)


@contextmanager
def running(command: Sequence[str], log: Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a session of its own, which is ended with all that it started."""
    base = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "OMPI_", "PMI"))}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        base.pop(name, None)
    with log.open("wb") as output:
        program = subprocess.Popen(
            command, env=base | environ, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield program
    finally:
        for pid in [*descendants(program.pid), program.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        program.wait()


def descendants(pid: int) -> list[int]:
    procfs = ProcFS()
    parents = {one: procfs.stat(one) for one in procfs.pids()}
    found, wave = [], {pid}
    while wave:
        wave = {one for one, stat in parents.items() if getattr(stat, "ppid", None) in wave}
        found.extend(wave)
    return found


def wait_for(wanted: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE
    while not wanted():
        if time.monotonic() > deadline:
            pytest.fail(f"not seen within {DEADLINE} s; the program said: {log.read_text()[-2000:]}")
        time.sleep(0.2)


class Watch:
    """What a finder sees of the processes below one that we started."""

    def __init__(self, top: subprocess.Popen[bytes]) -> None:
        self._top = top.pid
        self._finder = RankFinder(ProcFS(), node="here")
        self.processes: list[TrainingProcess] = []
        self.job: Job | None = None

    def look(self) -> bool:
        scan = self._finder.scan()
        family = {self._top, *descendants(self._top)}
        self.processes = [one for one in scan.processes if one.id.pid in family]
        ids = {one.job_id for one in self.processes}
        self.job = next((job for job in scan.jobs if job.job_id in ids), None)
        return bool(self.processes)

    def sees(self, trainers: int, workers: int, launcher: bool) -> bool:
        self.look()
        roles = [one.role for one in self.processes]
        return (
            roles.count("trainer") == trainers
            and sum(one.name == "pt_data_worker" for one in self.processes) == workers
            and ("launcher" in roles) == launcher
        )

    def ranks(self, role: str) -> list[tuple[int | None, int | None]]:
        return sorted((one.rank, one.local_rank) for one in self.processes if one.role == role)


def test_torchrun_with_workers_checkpoint_writers_and_a_killed_rank(tmp_path: Path) -> None:
    run, log, folder = f"run-{uuid.uuid4()}", tmp_path / "log", str(tmp_path / "saved")
    command = [str(BIN / "torchrun"), "--nproc-per-node=2", f"--rdzv-id={run}", "--rdzv-backend=c10d"]
    with running([*command, "--rdzv-endpoint=127.0.0.1:0", TRAIN, "checkpoint", folder], log) as top:
        watch = Watch(top)
        wait_for(lambda: watch.sees(2, 4, launcher=True) and len(watch.ranks("checkpoint")) == 2, log)
        assert watch.ranks("trainer") == watch.ranks("checkpoint") == [(0, 0), (1, 1)]
        assert watch.ranks("dataloader") == [(0, 0), (0, 0), (1, 1), (1, 1)]
        assert {one.job_id for one in watch.processes} == {run}
        assert watch.job is not None
        assert (watch.job.expected, watch.job.running, watch.job.world_size) == (2, 2, 2)
        pids = {one.rank: one.id.pid for one in watch.processes if one.role == "trainer"}
        for pid in (top.pid, pids[0]):  # the agent would end the others, and rank 0 itself
            os.kill(pid, signal.SIGSTOP)
        os.kill(pids[1], signal.SIGKILL)
        wait_for(lambda: watch.look() and watch.job is not None and watch.job.running == 1, log)
        assert (watch.job.expected, watch.job.missing_ranks) == (2, (1,))


def test_accelerate(tmp_path: Path) -> None:
    log = tmp_path / "log"
    # None that the kernel gives away, and of runs side by side each has its own.
    port = 21_000 + uuid.uuid4().int % 7_000
    options = ["--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no"]
    options += ["--dynamo_backend=no", f"--main_process_port={port}"]
    with running([str(BIN / "accelerate"), "launch", *options, IDLE], log) as top:
        watch = Watch(top)
        wait_for(lambda: watch.sees(2, 0, launcher=True), log)
        assert watch.ranks("trainer") == [(0, 0), (1, 1)]
        assert {(one.job_id, one.launcher) for one in watch.processes} == {(f"here:{port}", "accelerate")}


def test_mpirun(tmp_path: Path) -> None:
    program = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
    assert program is not None, "install openmpi-bin"
    log = tmp_path / "log"
    command = [program, "--oversubscribe", "-np", "3", sys.executable, IDLE]
    with running(command, log, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1") as top:
        watch = Watch(top)
        wait_for(lambda: watch.sees(3, 0, launcher=True), log)
        assert watch.ranks("trainer") == [(0, 0), (1, 1), (2, 2)]
        assert watch.job is not None
        assert (watch.job.expected, watch.job.job_id[:4]) == (3, "mpi-")


def test_multiprocessing_spawn(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running([sys.executable, TRAIN, "spawn", str(tmp_path / "store")], log) as top:
        watch = Watch(top)
        wait_for(lambda: watch.sees(2, 4, launcher=True), log)
        assert watch.ranks("trainer") == [(0, 0), (1, 1)]
        assert watch.ranks("launcher") == [(None, None)]


def watched_rank(tmp_path: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    environ = {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": f"run-{uuid.uuid4()}"}
    return running([sys.executable, IDLE, *arguments], tmp_path / "log", **environ)


def sample(sampler: ProcessSampler, finder: RankFinder, pid: int) -> Group | None:
    """One poll; the group of the job that the process is in."""
    finder.poll()
    sampler.poll()
    job = next((one.job_id for one in finder.latest.processes if one.id.pid == pid), None)
    groups = (one for one in sampler.latest.groups if one.job_id == job and one.role == "trainer")
    return next(groups, None)


def test_real_disk_sleep_is_seen(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with watched_rank(tmp_path, "fifo", str(fifo)) as rank:
        finder = RankFinder(ProcFS(), node="here")
        sampler = ProcessSampler(ProcFS(), lambda: finder.latest, counters_every=0.5)

        def asleep() -> bool:
            group = sample(sampler, finder, rank.pid)
            return group is not None and group.uninterruptible_longest > 1.0 and bool(group.blocked)

        wait_for(asleep, tmp_path / "log")
        group = sample(sampler, finder, rank.pid)
        assert group is not None
        assert group.uninterruptible_seconds > 1.0
        assert {one.state for one in group.blocked} == {"D"}
        os.kill(rank.pid, signal.SIGKILL)
        fifo.write_bytes(b"")


def test_child_between_vfork_and_exec_is_no_worker(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with watched_rank(tmp_path, "fifo", str(fifo)) as rank:
        wait_for(lambda: len(descendants(rank.pid)) == 1, tmp_path / "log")
        (child,) = descendants(rank.pid)
        assert ProcFS().shares_memory(child, rank.pid)
        hours_later = RankFinder(ProcFS(), node="here", now=lambda: time.time() + 7200)
        roles = {one.id.pid: one.role for one in hours_later.scan().processes}
        assert (roles[rank.pid], roles[child]) == ("trainer", "other")
        fifo.write_bytes(b"")


# Since Python 3.12, where other threads run.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_has_memory_of_its_own() -> None:
    waiting, done = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(done)
        os.read(waiting, 1)
        os._exit(0)
    try:
        assert not ProcFS().shares_memory(child, os.getpid())
    finally:
        os.close(done)
        os.waitpid(child, 0)
        os.close(waiting)


def test_busy_reader_on_tmpfs_is_not_in_disk_sleep(tmp_path: Path) -> None:
    data = Path("/dev/shm") / f"hangscope-{uuid.uuid4()}"
    data.write_bytes(b"x" * (8 << 20))
    try:
        with watched_rank(tmp_path, "read", str(data)) as rank:
            finder = RankFinder(ProcFS(), node="here")
            sampler = ProcessSampler(ProcFS(), lambda: finder.latest, counters_every=0.5)

            def read_much() -> bool:
                group = sample(sampler, finder, rank.pid)
                return group is not None and (group.totals.rchar or 0) > 256 << 20

            wait_for(read_much, tmp_path / "log")
            group = sample(sampler, finder, rank.pid)
            assert group is not None
            assert group.uninterruptible_longest == 0.0
            assert (group.totals.read_bytes or 0) < 8 << 20
    finally:
        data.unlink()


def test_stopped_rank_is_seen(tmp_path: Path) -> None:
    with watched_rank(tmp_path) as rank:
        finder = RankFinder(ProcFS(), node="here")
        sampler = ProcessSampler(ProcFS(), lambda: finder.latest)
        wait_for(lambda: sample(sampler, finder, rank.pid) is not None, tmp_path / "log")
        os.kill(rank.pid, signal.SIGSTOP)

        def stopped() -> bool:
            group = sample(sampler, finder, rank.pid)
            return group is not None and group.stopped_longest > 0.5

        wait_for(stopped, tmp_path / "log")
        os.kill(rank.pid, signal.SIGCONT)
