from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.procfs import ProcFS
from exporter.ranks import ProcessId, TrainingProcess
from snapshotter.capture.joblog import troubles

WATCHDOG = (
    "[rank3]:[E1130 01:22:33.123 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600061 milliseconds"
)


class Job:
    """Processes whose standard output and error are files of ours, in a /proc of ours."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.processes: list[TrainingProcess] = []

    def process(self, output: Path, error: Path | None = None, rank: int | None = 0) -> None:
        pid = 100 + len(self.processes)
        folder = self.root / "proc" / str(pid) / "fd"
        folder.mkdir(parents=True)
        (folder / "1").symlink_to(output)
        (folder / "2").symlink_to(error or output)
        role = "launcher" if rank is None else "trainer"
        process = TrainingProcess(
            ProcessId(pid, 1), 1, "job", "trainer", rank, rank, 8, "python", (), "torchrun"
        )
        self.processes.append(replace(process, role=role))

    def troubles(self) -> tuple[str, ...]:
        return troubles(ProcFS(self.root / "proc"), self.processes)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        WATCHDOG,
        "[rank0]: RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId",
        "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "[rank1]: Traceback (most recent call last):",
        "gpu-1:123:456 [0] NCCL WARN NET/IB : Got completion from peer with status=12",
        "[rank3]: last enqueued NCCL work: 42, last completed NCCL work: 41.",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed.",
        "Fatal Python error: Segmentation fault",
    ],
)
def test_lines_of_trouble_are_taken(job: Job, tmp_path: Path, line: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"iteration 1 | loss 2.0\n{line}\niteration 2 | lm loss error: 0.1\rprogress 3%\n")
    job.process(log, rank=0)
    job.process(log, rank=1)
    assert job.troubles() == (line,)


def test_a_file_of_one_rank_names_it(job: Job, tmp_path: Path) -> None:
    for rank in (5, 6):
        (tmp_path / f"log{rank}").write_text(f"CUDA error: rank {rank} failed\n{WATCHDOG}\n")
        job.process(tmp_path / f"log{rank}", rank=rank)
    assert job.troubles() == (
        "[rank5]: CUDA error: rank 5 failed",
        WATCHDOG,
        "[rank6]: CUDA error: rank 6 failed",
        WATCHDOG,
    )


def test_a_file_of_many_is_read_once_and_only_at_its_end(job: Job, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("CUDA error: long ago\n" + "x" * 300_000 + "\nCUDA error: now\n")
    for rank in (None, 0, 1):
        job.process(log, rank=rank)
    assert job.troubles() == ("CUDA error: now",)


def test_pipes_terminals_and_missing_files_are_not_touched(job: Job, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    end = os.open(fifo, os.O_RDWR)
    os.write(end, b"CUDA error: in the pipe\n")
    job.process(fifo, Path("/dev/null"))
    job.process(tmp_path / "none", tmp_path)
    try:
        assert job.troubles() == ()
        assert os.read(end, 100) == b"CUDA error: in the pipe\n"
    finally:
        os.close(end)


def test_secrets_are_masked_and_lines_and_their_number_bounded(job: Job, tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = [f"ValueError: {number} https://me:hush@host/x" for number in range(300)]
    log.write_text("\n".join([*lines, "CUDA error: " + "x" * 1000]))
    job.process(log)
    found = job.troubles()
    assert len(found) == 200
    assert not any("hush" in line for line in found)
    assert len(found[-1]) <= 500
