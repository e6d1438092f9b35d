"""C frames that are read by themselves: where Python's do not tell, of few, and never of what is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cheroot.wsgi import Server

from exporter.procfs import ProcFS
from snapshotter.analysis import analyser
from snapshotter.capture.agent import create_app
from snapshotter.capture.job import JobCapturer
from snapshotter.capture.local import local_node
from snapshotter.config import AgentsConfig, AnalysisConfig, CaptureConfig, Config
from snapshotter.gathered import Gathered
from snapshotter.metrics import Metrics
from snapshotter.render import text
from snapshotter.stacks import report
from snapshotter.stacks.model import JobCapture, NodeAnswer, Process
from snapshotter.web import formats
from snapshotter.web.view.stacks import Choice, show
from tests.running import wait_for

JOB = f"native-{os.getpid()}"
STUCK = """
import ctypes, time
libc = ctypes.CDLL(None)
def fused_kernel():
    print('ready', flush=True)
    libc.pause()
def moving():
    # A thousand functions in turn, so that two samples of two ranks never find the same ones.
    places = [eval(compile('lambda: sum(range(20000))', f'/job/step{{n}}.py', 'eval')) for n in range(1000)]
    print('ready', flush=True)
    while True:
        for place in places:
            place()
{function}()
"""


def state(pid: int) -> str:
    return str(ProcFS().stat(pid).state)  # type: ignore[union-attr]


class Ranks:
    """Ranks of one job on this machine."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *functions: str) -> None:
        for rank, function in enumerate(functions):
            numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(functions))}
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": JOB}
            process = subprocess.Popen(
                [sys.executable, "-c", STUCK.format(function=function)],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **numbers, **place},
            )
            self.processes.append(process)
        for process, function in zip(self.processes, functions, strict=True):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            if function == "fused_kernel":
                wait_for(lambda pid=process.pid: state(pid) == "S")

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    made = Ranks()
    yield made
    made.end()


def settings(*, when_unclear: bool = True, agents: AgentsConfig | None = None) -> Config:
    capture = msgspec.structs.replace(
        CaptureConfig(),
        sample_interval=0.5,
        process_timeout=60.0,
        node_timeout=240.0,
        native_when_unclear=when_unclear,
        ask_nccl=False,
    )
    return Config(capture=capture, agents=agents or AgentsConfig())


def capture(config: Config) -> tuple[Gathered, ...]:
    capturer = JobCapturer(
        lambda: local_node("here", ProcFS(), lambda: config.capture),
        lambda: config,
        lambda path: path.read_text().strip(),
        patience=0.0,
    )
    return capturer.capture(JOB)


def whole(gathered: tuple[Gathered, ...]) -> tuple[NodeAnswer, ...]:
    return tuple(one.whole() for one in gathered)


def with_native(answers: tuple[NodeAnswer, ...]) -> list[Process]:
    return [process for answer in answers for process in answer.processes if process.native_threads]


def check(gathered: tuple[Gathered, ...]) -> Process:
    answers = whole(gathered)
    (process,) = with_native(answers)  # one represents the class of all
    names = [frame.name for thread in process.native_threads for frame in thread.frames]
    assert any("pause" in name for name in names) and "fused_kernel" in names
    assert all(len(one.samples) == 2 for answer in answers for one in answer.processes)
    pause = process.samples[-1].pause_seconds
    assert pause is not None and pause > 0
    metrics = Metrics(lambda: "")
    metrics.count_answers(gathered)
    (paused,) = [one for one in metrics.collect() if one.name == "snapshotter_target_pause_seconds"]
    assert [one.value for one in paused.samples if one.name.endswith("_count")] == [1.0]
    return process


def test_all_alike_in_native_code_one_of_them_is_read_and_shown(ranks: Ranks) -> None:
    ranks.start("fused_kernel", "fused_kernel", "fused_kernel")
    gathered = capture(settings())
    process = check(gathered)
    for_people = text.render(analyser(AnalysisConfig()).report(JOB, [one.tree for one in gathered], 0.0))
    assert "With native frames (1)" in for_people and "pause" in for_people.partition("With native")[2]
    view = show(process, Choice())
    assert any("pause" in frame.function and frame.foreign for frame in view.native_threads[0].frames)
    threads = [json.loads(one) for one in formats.threads(process)]
    assert [bool(one["native_frames"]) for one in threads] == [False, True]


def test_through_an_agent_too(ranks: Ranks, tmp_path: Path) -> None:
    ranks.start("fused_kernel", "fused_kernel")
    (tmp_path / "token").write_text("t0ken\n")
    local = local_node("node-1", ProcFS(), lambda: settings().capture)
    app = create_app(
        node="node-1", find=local.find, capture=local.capture, matches=lambda given: given == "t0ken"
    )
    server = Server(("127.0.0.1", 0), app)
    server.prepare()
    threading.Thread(target=server.serve, daemon=True).start()
    try:
        port = server.bind_addr[1]
        agents = AgentsConfig(nodes=(f"127.0.0.1:{port}",), token_file=str(tmp_path / "token"))
        check(capture(settings(agents=agents)))
    finally:
        server.stop()


def test_not_where_it_is_switched_off(ranks: Ranks) -> None:
    ranks.start("fused_kernel")
    assert with_native(whole(capture(settings(when_unclear=False)))) == []


def test_not_of_a_job_that_moves(ranks: Ranks) -> None:
    ranks.start("moving", "moving")
    answers = whole(capture(settings()))
    assert report.analyse(JobCapture(JOB, answers), at=0.0).verdict.hung is False
    assert with_native(answers) == []


def test_never_of_a_process_that_is_stopped(ranks: Ranks) -> None:
    ranks.start("fused_kernel", "fused_kernel")
    stopped = ranks.processes[0]
    stopped.send_signal(signal.SIGSTOP)
    wait_for(lambda: state(stopped.pid) == "T")
    try:
        read = with_native(whole(capture(settings())))
    finally:
        stopped.send_signal(signal.SIGCONT)
    assert stopped.pid not in [one.pid for one in read]
