"""`capture` on a real torch job that hangs: on this node, through agents, and where it cannot be done."""

from __future__ import annotations

import argparse
import hmac
import io
import os
import pwd
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cheroot.wsgi import Server

from exporter.procfs import ProcFS
from exporter.ranks import NearMiss, Scan
from snapshotter import oneshot
from snapshotter.bundle.reader import open_folder
from snapshotter.capture.agent import create_app
from snapshotter.capture.facts import thread_states
from snapshotter.capture.local import LocalNode, local_node
from snapshotter.config import AgentsConfig, CaptureConfig, Config
from snapshotter.oneshot import CannotCapture
from snapshotter.stacks.model import JobCapture
from tests.running import DEADLINE_SECONDS, wait_for

PROGRAM = Path(__file__).parent.parent / "programs" / "capture_train.py"
JOB = f"oneshot-{os.getpid()}"
QUICK = CaptureConfig(sample_interval=0.5, process_timeout=60.0, node_timeout=240.0)  # type: ignore[arg-type]
TOKEN = "t0ken"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The pid of torchrun, whose rank 0 hangs while rank 1 waits for it."""
    log = tmp_path_factory.mktemp("job") / "log"
    with log.open("wb") as output:
        launcher = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
                *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", f"--rdzv-id={JOB}"),
                *(PROGRAM, "--hang", "--workers=1"),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "WANDB_API_KEY": "hush"},
            start_new_session=True,
        )
    try:

        def hangs() -> bool:
            assert launcher.poll() is None, log.read_text()
            ranks = re.findall(r"has come to the hang in process (\d+)", log.read_text())
            # They are where they hang once no thread of theirs runs.
            return len(ranks) == 2 and {
                state for pid in ranks for state in thread_states(ProcFS(), int(pid))
            } == {"S"}

        wait_for(hangs, seconds=240, say=log.read_text)
        yield launcher.pid
    finally:
        # torchrun ends its ranks, which lead groups of their own.
        launcher.terminate()
        try:
            launcher.wait(DEADLINE_SECONDS)
        finally:
            launcher.kill()


class Ran:
    def __init__(self, *words: str | Path, settings: Config | None = None) -> None:
        parser = argparse.ArgumentParser()
        oneshot.add_arguments(parser)
        self.out, self.err = io.StringIO(), io.StringIO()
        self.status = oneshot.run(
            oneshot.wanted(parser.parse_args([str(word) for word in words])),
            settings or Config(capture=QUICK),
            node="here",
            procfs=ProcFS(),
            read_token=lambda path: path.read_text().strip(),
            out=self.out,
            err=self.err,
        )

    @property
    def said(self) -> str:
        return self.err.getvalue()


def check(capture: JobCapture) -> None:
    found = {(process.role, process.rank): process for process in capture.processes}
    assert set(found) == {
        ("trainer", 0),
        ("trainer", 1),
        ("dataloader", 0),
        ("dataloader", 1),
        ("launcher", None),
    }
    assert {process.outcome for process in found.values()} == {"ok"}
    frames = [
        frame.name
        for sample in found["trainer", 0].samples
        for thread in sample.threads
        for frame in thread.frames
    ]
    assert frames.count("hang") == 2
    assert found["trainer", 1].environment["RANK"] == "1"
    assert "hush" not in repr(capture)


def test_a_bundle_of_the_job_on_this_node(job: int, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "bundle"
    ran = Ran("--job", JOB, "-o", target)

    assert ran.status == 0, ran.said
    assert "here: sample 2 of 2: 5 of 5" in ran.said
    bundle = open_folder(target)
    check(bundle.capture())
    assert bundle.manifest().request.trigger == "manual"
    verdict = bundle.report()["verdict"]
    assert (verdict["scope"], verdict["culprit_ranks"]) == ("local", "0")
    assert verdict["headline"] in ran.out.getvalue()
    assert [path.name for path in target.parent.iterdir()] == ["bundle"]


def test_one_page_of_any_process_tree(job: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = tmp_path / "page.html"
    with caplog.at_level("INFO", "snapshotter.audit"):
        ran = Ran("--pid", str(job), "-o", target)
    user = pwd.getpwuid(os.getuid()).pw_name
    assert f'capture_taken job_id="{JOB}" pids=[{job}] trigger="manual" reason=' in caplog.text
    assert f'requested_by="{user}' in caplog.text
    assert ran.status == 0, ran.said
    page = target.read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "hang" in page
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.fixture
def agent() -> Iterator[str]:
    """The address of a real agent of this node."""
    local = local_node("gpu-node-1", ProcFS(), lambda: QUICK)
    app = create_app(
        node=local.node,
        find=local.find,
        capture=local.capture,
        matches=lambda given: hmac.compare_digest(given, TOKEN),
    )
    server = Server(("127.0.0.1", 0), app)
    server.prepare()
    threading.Thread(target=server.serve, daemon=True).start()
    yield f"127.0.0.1:{server.bind_addr[1]}"
    server.stop()


def test_through_agents_one_of_which_is_gone(job: int, tmp_path: Path, agent: str) -> None:
    (tmp_path / "token").write_text(TOKEN)
    settings = Config(capture=QUICK, agents=AgentsConfig(token_file=str(tmp_path / "token")))
    target = tmp_path / "bundle"
    ran = Ran("--job", JOB, "--nodes", f"{agent},127.0.0.1:9", "-o", target, settings=settings)

    assert ran.status == 0, ran.said
    assert (
        "not complete: 127.0.0.1:9: 127.0.0.1:9 cannot be asked: Connection refused: no agent listens"
        in ran.said
    )
    bundle = open_folder(target)
    assert [(entry.node, entry.outcome) for entry in bundle.manifest().nodes] == [
        ("gpu-node-1", "ok"),
        ("127.0.0.1:9", "unreachable"),
    ]
    check(bundle.capture())


def test_an_agent_captures_no_process_that_does_not_train(job: int, tmp_path: Path, agent: str) -> None:
    (tmp_path / "token").write_text(TOKEN)
    settings = Config(capture=QUICK, agents=AgentsConfig(token_file=str(tmp_path / "token")))
    ran = Ran("--job", "no-such-job", "--nodes", agent, "-o", tmp_path / "x.html", settings=settings)
    assert ran.status == 2
    assert "no process of job no-such-job is left on gpu-node-1" in ran.said
    assert JOB in ran.said  # what there is
    assert not (tmp_path / "x.html").exists()


def test_without_the_agents_token_it_is_said_where_to_name_it(tmp_path: Path, agent: str) -> None:
    ran = Ran("--job", JOB, "--nodes", f"{agent},{agent}", "-o", tmp_path / "x.html")
    assert ran.status == 2
    assert ran.said.count("agents.token_file") == 1  # a node that is named twice is asked once


def test_whose_stacks_could_not_be_read_is_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "py-spy"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o700)
    monkeypatch.setattr("snapshotter.capture.pyspy.find_binary", lambda: broken)
    process = subprocess.Popen(["sleep", "600"])
    try:
        ran = Ran("--pid", str(process.pid), "-o", tmp_path / "x.html")
    finally:
        process.kill()
        process.wait()
    assert ran.status == 0, ran.said
    assert (
        f"not complete: here: 1 process (pid {process.pid}): error, py-spy failed with status 3 and said nothing"
        in ran.said
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--pid", "999999999", "-o", "{}/x"], "no process runs with pid 999999999 on here"),
        (["--job", "nobody", "-o", "{}/x"], "no process of job nobody is left on here"),
        (["--nodes", "a b", "-o", "{}/x"], "HOST:PORT"),
        (["--nodes", "", "-o", "{}/x"], "HOST:PORT"),
        (["--nodes", "127.0.0.1,", "-o", "{}/x"], "HOST:PORT"),
        (["--pid", "1", "-o", "{}/full"], "is there already"),
        (["--pid", "1", "-o", "{}/full/file/x"], "cannot be written: File exists"),
        (["--pid", "1", "-o", "{}/folder.html"], "is a folder: name a file"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(tmp_path: Path, words: list[str], problem: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "folder.html").mkdir()
    ran = Ran(*(word.format(tmp_path) for word in words))
    assert ran.status == 2
    assert ran.said.count("\n") == 1
    assert ran.said.startswith("error: ")
    assert problem in ran.said


def test_processes_may_be_given_one_by_one() -> None:
    parser = argparse.ArgumentParser()
    oneshot.add_arguments(parser)
    asked = oneshot.wanted(parser.parse_args(["--pid", "1", "2", "--pid", "3", "-o", "x"]))
    assert asked.pids == (1, 2, 3)


@pytest.mark.parametrize(
    ("denied", "words"),
    [
        (
            0,
            " (pid 7: has WORLD_SIZE, but nothing says its rank); any Python processes can be named with --pid",
        ),
        (
            2,
            ", as far as can be told: 2 Python processes of other users cannot be looked into; run as root, or ",
        ),
    ],
)
def test_a_node_without_a_job_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, denied: int, words: str
) -> None:
    miss = NearMiss(7, ("python", "x.py"), "has WORLD_SIZE, but nothing says its rank")
    monkeypatch.setattr(LocalNode, "find", lambda self: Scan(1.0, "here", (), (miss,), denied=denied))
    ran = Ran("-o", tmp_path / "x.html")
    assert ran.status == 2
    assert ran.said.startswith(f"error: no training process runs on here{words}")
    assert "--pid" in ran.said


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(CannotCapture, match="--pid is about this node"):
        Ran("--pid", "1", "--nodes", "x", "-o", tmp_path / "y")


def test_several_jobs_are_named_not_guessed(job: int, tmp_path: Path, start_rank: Callable[[], None]) -> None:
    start_rank()
    ran = Ran("-o", tmp_path / "x")
    assert ran.status == 2
    assert "several jobs run on here: name one with --job: " in ran.said
    assert JOB in ran.said


@pytest.fixture
def start_rank() -> Iterator[Callable[[], None]]:
    """Starts a rank of another job."""
    running: list[subprocess.Popen[str]] = []

    def start() -> None:
        torchrun = {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
            "TORCHELASTIC_RUN_ID": f"other-{os.getpid()}",
        }
        process = subprocess.Popen(
            [sys.executable, "-c", "print('ready', flush=True); import time; time.sleep(600)"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **torchrun},
        )
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    yield start
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
