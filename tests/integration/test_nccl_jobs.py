"""Jobs of real processes with real sockets: shared ports, frozen processes, network namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.config import NcclConfig
from exporter.nccl.find import Target, find
from exporter.nccl.question import ask_job, ask_target
from exporter.nccl.ras import Limits
from exporter.nccl.watcher import NcclWatcher
from exporter.procfs import ProcFS, Unreadable
from exporter.ranks import ProcessId, Scan, TrainingProcess
from exporter.yamlconfig import Duration
from tests.running import shared_port

TESTS = Path(__file__).parent.parent
FOLDER = TESTS / "fixtures" / "nccl" / "transcripts"
PROGRAM = TESTS / "programs" / "ras_stand_in.py"
CONFIG = NcclConfig(version="2.30.7", quiet_start=Duration(0))
PROCFS = ProcFS()

Start = Callable[..., TrainingProcess]


@pytest.fixture
def port() -> Iterator[int]:
    with shared_port() as port:
        yield port


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts trainers; they end with the test."""
    running: list[subprocess.Popen[str]] = []

    def one(
        job_id: str, rank: int, port: int, answer: str, *options: str, host: str = "127.0.0.1"
    ) -> TrainingProcess:
        command = [sys.executable, str(PROGRAM), host, str(port), str(FOLDER / f"{answer}.reply"), *options]
        environ = {**os.environ, "NCCL_RAS_ADDR": f"[{host}]:{port}" if ":" in host else f"{host}:{port}"}
        popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
        running.append(popen)
        assert popen.stdout is not None
        assert popen.stdout.readline().startswith("ready")
        stat = PROCFS.stat(popen.pid)
        assert not isinstance(stat, Unreadable)
        return TrainingProcess(
            id=ProcessId(popen.pid, stat.start_ticks),
            parent_pid=os.getpid(),
            job_id=job_id,
            role="trainer",
            rank=rank,
            local_rank=rank,
            world_size=4,
            name="python",
            command_line=tuple(command),
            launcher="torchrun",
        )

    yield one
    for popen in running:
        popen.send_signal(signal.SIGCONT)
        popen.kill()
        popen.wait()
        assert popen.stdout is not None
        popen.stdout.close()


def gpus(status: object) -> int | None:
    report = getattr(status, "report", None)
    return report.summary.gpus if report is not None and report.summary is not None else None


def test_jobs_that_share_a_port_each_get_their_own_answer(start: Start, port: int) -> None:
    """Healthy text answers name no process: nothing in them says whose they are."""
    four = [start("four", rank, port, "twojobs-answer-4procs-2.30.7") for rank in range(2)]
    two = [start("two", rank, port, "twojobs-answer-2procs-2.30.7") for rank in range(2)]
    time = [2e9]
    watcher = NcclWatcher(CONFIG, PROCFS, lambda: Scan(time[0], "node", (*four, *two)), now=lambda: time[0])
    for _ in range(8):
        time[0] += 60
        watcher.poll()
        assert {status.job_id: gpus(status) for status in watcher.latest} == {"four": 4, "two": 2}


def test_a_job_that_never_answers_beside_one_that_does_is_not_given_its_answer(
    start: Start, port: int
) -> None:
    ours = start("ours", 0, port, "twojobs-answer-4procs-2.30.7")
    start("theirs", 0, port, "twojobs-answer-2procs-2.30.7")
    os.kill(ours.id.pid, signal.SIGSTOP)
    target = find(PROCFS, [ours], CONFIG)
    assert isinstance(target, Target)
    assert target.shared
    limits = Limits(handshake=0.2, silent_tries=3)
    asked = ask_target(PROCFS, target, json=False, limits=limits)
    assert asked.skip == "ambiguous" or (asked.answer is not None and asked.answer.reason == "silent")


def test_a_frozen_process_of_the_job_does_not_silence_it(start: Start, port: int) -> None:
    job = [start("job", rank, port, "healthy-json-2.30.7") for rank in range(3)]
    os.kill(job[1].id.pid, signal.SIGSTOP)
    # The kernel picks one of the three at random, so that the frozen one may be picked again and again.
    limits = Limits(handshake=0.3, silent_tries=40)
    for _ in range(4):
        asked = ask_job(PROCFS, job, CONFIG, limits=limits)
        assert asked.answer is not None
        assert asked.answer.reason is None


def test_ipv6(start: Start) -> None:
    with shared_port("::1") as port:
        job = [start("job", 0, port, "healthy-json-2.30.7", host="::1")]
    asked = ask_job(PROCFS, job, CONFIG)
    assert asked.answer is not None
    assert asked.answer.report.complete
    assert asked.answer.text.count('"pid"') == 8


@pytest.mark.skipif(
    os.environ.get("CI") != "true" and os.geteuid() != 0,
    reason="only root may enter another network namespace",
)
def test_a_job_in_a_network_namespace_of_its_own(start: Start, port: int) -> None:
    inside = [start("inside", 0, port, "healthy-json-2.30.7", "--own-network")]
    outside = [start("outside", 0, port, "big-2.30.7")]
    assert gpus(ask_job(PROCFS, inside, CONFIG).answer) == 8
    assert gpus(ask_job(PROCFS, outside, CONFIG).answer) == 64
    target = find(PROCFS, inside, CONFIG)
    assert isinstance(target, Target)
    assert not target.shared


def test_a_capture_asks_from_any_node_but_not_in_the_first_minutes(start: Start, port: int) -> None:
    trainer = start("job", 0, port, "healthy-json-2.30.7")
    asked = ask_job(PROCFS, [trainer], NcclConfig(version="2.30.7"))
    assert asked.skip == "quiet_start"
    assert ask_job(PROCFS, [trainer], NcclConfig(version="2.26.2")).skip == "unsafe_version"
    assert ask_job(PROCFS, [trainer], NcclConfig()).skip == "no_nccl"
