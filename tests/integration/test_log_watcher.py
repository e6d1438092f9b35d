"""Which logs are followed and shown, with real processes that write them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from exporter.collectors.iteration import IterationCollector
from exporter.config import Config, JobConfig, LimitsConfig, LogConfig
from exporter.logs import searching, watcher
from exporter.logs.discovery import Discovery, Found, Search
from exporter.logs.files import Files
from exporter.logs.lanes import Lane
from exporter.logs.model import LogReport, LogState, Phase
from exporter.logs.userpattern import UserPattern
from exporter.logs.watcher import LogWatcher
from exporter.procfs import ProcFS
from exporter.ranks import ProcessId, Scan, TrainingProcess
from exporter.yamlconfig import Duration
from tests.running import wait_for

PROC = ProcFS(Path("/proc"))
ITERATIONS = b"".join(b"iter %d: loss 2.5, time 3.1ms\n" % number for number in range(1, 6))
ENOUGH = 60.0  # seconds in which what does not hang comes back, on a busy machine too


class Node:
    """Processes that write logs, and a watcher whose clock only goes as told."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        files: Files | None = None,
        discovery: Discovery | None = None,
        patience: float = ENOUGH,
    ) -> None:
        self.now = time.time()
        self.processes: list[TrainingProcess] = []
        self._children: list[subprocess.Popen[bytes]] = []
        self.watcher = LogWatcher(
            config or Config(),
            PROC,
            lambda: Scan(self.now, "node", tuple(self.processes)),
            now=lambda: self.now,
            files=files,
            discovery=discovery,
            patience=patience,
        )

    def start(
        self,
        command: str,
        *,
        job_id: str = "job",
        rank: int | None = 0,
        role: str = "trainer",
        command_line: tuple[str, ...] = ("python", "train.py"),
        writes: Path | None = None,
        **options: object,
    ) -> subprocess.Popen[bytes]:
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | options
        child = subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.PIPE, **streams)  # type: ignore
        self._children.append(child)
        stat = PROC.stat(child.pid)
        assert not isinstance(stat, str)
        self.processes.append(
            TrainingProcess(
                id=ProcessId(child.pid, stat.start_ticks),  # type: ignore[union-attr]
                parent_pid=os.getpid(),
                job_id=job_id,
                role=role,  # type: ignore[arg-type]
                rank=rank,
                local_rank=rank,
                world_size=1,
                name="sh",
                command_line=command_line,
                launcher="torchrun",
            )
        )
        if writes is not None:
            wait_for(_links(child.pid, 1, str(writes)))
        return child

    def end(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                stream.close()
        self.processes = [one for one in self.processes if one.id.pid != child.pid]

    def poll(self, seconds: float = 3.0) -> LogReport:
        """One poll, late enough after the last one for a search."""
        self.now += seconds
        self.watcher.poll()
        return self.watcher.latest

    def one(self, seconds: float = 3.0) -> LogState:
        (state,) = self.poll(seconds).logs
        return state

    def close(self) -> None:
        for child in self._children:
            self.end(child)


@pytest.fixture
def node() -> Iterator[Node]:
    with contextlib.closing(Node()) as one:
        yield one


def _links(pid: int, number: int, target: str) -> Callable[[], bool]:
    return lambda: os.readlink(f"/proc/{pid}/fd/{number}") == target


def test_the_file_behind_a_ranks_output(node: Node, tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    node.start(f"exec sleep 60 > {log} 2>&1", writes=log)
    node.poll()
    log.write_bytes(ITERATIONS)
    state = node.one()
    assert (state.job_id, state.log, state.path, state.last_iteration) == ("job", "out.log", str(log), 5)


def test_ranks_with_files_of_the_same_name(node: Node, tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        log = tmp_path / str(rank) / "stdout.log"
        node.start(f"exec sleep 60 > {log}", rank=rank, writes=log)
        wait_for(log.exists)
    assert {one.log for one in node.poll().logs} >= {"0/stdout.log", "1/stdout.log"}


def test_a_file_that_was_deleted_is_read_through_the_process(node: Node, tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    child = node.start(f"exec > {log} 2>&1; rm {log}; while read line; do echo $line; done")
    wait_for(lambda: os.readlink(f"/proc/{child.pid}/fd/1").endswith(" (deleted)"))
    assert child.stdin is not None
    node.poll()
    child.stdin.write(ITERATIONS)
    child.stdin.flush()
    wait_for(lambda: os.stat(f"/proc/{child.pid}/fd/1").st_size == len(ITERATIONS))
    assert (node.one().path, node.one().last_iteration) == (str(log), 5)


def test_a_pipe_into_tee(node: Node, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    tee = subprocess.Popen(["tee", str(log)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        wait_for(log.exists)
        node.start("exec sleep 60", stdout=tee.stdin, stderr=tee.stdin)
        node.poll()
        log.write_bytes(ITERATIONS)
        report = node.poll()
        assert [(one.path, one.last_iteration) for one in report.logs] == [(str(log), 5)]
        assert report.unfollowed == ()
    finally:
        tee.kill()
        tee.wait()
        assert tee.stdin is not None
        tee.stdin.close()


@pytest.mark.parametrize(("kind", "target"), [("pipe", subprocess.PIPE), ("null", subprocess.DEVNULL)])
def test_an_output_without_a_file_is_said_once(node: Node, kind: str, target: int) -> None:
    node.start("exec sleep 60", rank=3, stdout=target, stderr=target)
    for _ in range(2):
        (one,) = node.poll().unfollowed
        assert (one.job_id, one.rank, one.kind) == ("job", 3, kind)
        assert "logs" in one.remedy
    assert node.watcher.latest.logs == ()


def test_a_terminal(node: Node) -> None:
    master, terminal = os.openpty()
    try:
        node.start("exec sleep 60", stdout=terminal, stderr=terminal)
        (one,) = node.poll().unfollowed
        assert one.kind == "terminal"
    finally:
        os.close(master)
        os.close(terminal)


def test_torchruns_log_folder_is_known_from_its_command_line(node: Node, tmp_path: Path) -> None:
    for attempt in range(2):
        for rank in range(2):
            folder = tmp_path / "none_abc" / f"attempt_{attempt}" / str(rank)
            folder.mkdir(parents=True)
            (folder / "stdout.log").touch()
    os.utime(tmp_path / "none_abc" / "attempt_0", (1, 1))
    node.start(
        "exec sleep 60",
        rank=None,
        role="launcher",
        command_line=("torchrun", "--log-dir", str(tmp_path), "--tee", "3", "train.py"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    paths = {one.path for one in node.poll().logs}
    assert paths == {str(tmp_path / "none_abc" / "attempt_1" / str(rank) / "stdout.log") for rank in range(2)}


def test_slurms_output_file_is_known_from_the_job(node: Node, tmp_path: Path) -> None:
    (tmp_path / "slurm-4711.out").write_bytes(ITERATIONS)
    child = node.start(
        "exec sleep 60",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"SLURM_JOB_ID": "4711", "SLURM_SUBMIT_DIR": str(tmp_path)},
    )
    # In the middle of an exec a process has no environment.
    wait_for(lambda: PROC.comm(child.pid) == "sleep" and PROC.environ(child.pid))
    report = node.poll()
    assert [one.log for one in report.logs] == ["slurm-4711.out"]
    assert report.unfollowed == ()


def test_pod_logs_are_known_by_the_pods_uid(tmp_path: Path) -> None:
    uid = "0a1b2c3d-1111-2222-3333-444455556666"
    proc = tmp_path / "proc"
    (proc / "77" / "fd").mkdir(parents=True)
    (proc / "stat").write_text("btime 1700000000\n")
    (proc / "77" / "cgroup").write_text(
        f"0::/kubepods.slice/kubepods-burstable-pod{uid.replace('-', '_')}.slice/cri-containerd-1.scope\n"
    )
    (proc / "77" / "environ").write_bytes(b"RANK=0\0")
    os.mkfifo(tmp_path / "pipe")
    for number in (1, 2):
        (proc / "77" / "fd" / str(number)).symlink_to(tmp_path / "pipe")
    log = tmp_path / "pods" / f"team_train-0_{uid}" / "pytorch" / "0.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"2026-06-12T10:00:03.352740243Z stdout F " + ITERATIONS.splitlines()[-1] + b"\n")
    process = TrainingProcess(
        ProcessId(77, 1), 1, "team/train", "trainer", 0, 0, 1, "python", ("python",), "kubernetes"
    )
    watcher = LogWatcher(
        Config(),
        ProcFS(proc),
        lambda: Scan(time.time(), "node", (process,)),
        discovery=Discovery(ProcFS(proc), pod_logs=tmp_path / "pods"),
        patience=ENOUGH,
    )
    watcher.poll()
    (state,) = watcher.latest.logs
    assert (state.job_id, state.log, state.last_iteration) == ("team/train", "0.log", 5)


def test_series_end_with_the_job(node: Node, tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    child = node.start(f"exec sleep 60 > {log}", writes=log)
    wait_for(log.exists)
    assert len(node.poll().logs) == 1
    node.end(child)
    assert node.poll().logs == ()


def test_a_configured_log_of_a_job_ends_with_it_too(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.touch()
    with contextlib.closing(Node(Config(logs=(LogConfig(path=f"{tmp_path}/*.log", job_id="mine"),)))) as node:
        child = node.start("exec sleep 60", job_id="mine")
        log.write_bytes(ITERATIONS)
        assert node.one().job_id == "mine"
        assert node.one(4000).job_id == "mine"  # silent for long, but its job lives
        node.end(child)
        assert node.poll().logs == ()


def test_a_configured_log_belongs_to_the_process_that_has_it_open(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.touch()
    with contextlib.closing(Node(Config(logs=(LogConfig(path=str(log)),)))) as node:
        child = node.start(f"exec 7>> {log}; exec sleep 60")
        wait_for(lambda: os.path.exists(f"/proc/{child.pid}/fd/7"))
        assert node.one(20).job_id == "job"


def test_a_configured_log_without_processes_counts_while_it_grows(tmp_path: Path) -> None:
    log = tmp_path / "run7.log"
    log.write_bytes(ITERATIONS)
    os.utime(log, (1, 1))
    config = Config(logs=(LogConfig(path=str(log)),), limits=LimitsConfig(hang_limit=Duration(100)))
    with contextlib.closing(Node(config)) as node:
        assert node.poll().logs == ()  # an old one
        with log.open("ab") as stream:
            stream.write(b"iter 6: loss 2.5, time 3.1ms\n")
        os.utime(log, (node.now + 3, node.now + 3))
        state = node.one()
        assert (state.job_id, state.last_iteration, state.iterations) == ("run7", 6, 1)
        assert node.one(150).age(node.now) == pytest.approx(150)
        assert node.poll(100).logs == ()  # silent for more than twice its limit
        with log.open("ab") as stream:
            stream.write(b"loading the model\n")
        os.utime(log, (node.now + 3, node.now + 3))
        state = node.one()
        assert (state.phase, state.age(node.now)) == (Phase.STARTING, 0.0)  # another run, with its own grace


def test_what_an_earlier_run_wrote_is_not_the_new_ones_age(node: Node, tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.write_bytes(ITERATIONS)
    os.utime(log, (node.now - 86_400, node.now - 86_400))
    node.start(f"exec sleep 60 >> {log}", writes=log)
    node.now = time.time() + 5
    state = node.one(0)
    assert (state.phase, state.last_iteration) == (Phase.STARTING, None)
    assert state.age(node.now) == 0.0


def test_a_requeued_job_in_the_same_log(node: Node, tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    first = node.start(f"exec sleep 60 >> {log}", job_id="1", writes=log)
    node.poll()
    log.write_bytes(ITERATIONS)
    assert node.one().last_iteration == 5
    node.end(first)
    node.poll(1000)
    node.start(f"exec sleep 60 >> {log}", job_id="1", writes=log)
    state = node.one(1000)
    assert (state.phase, state.age(node.now), state.iterations) == (Phase.STARTING, 0.0, 0)
    with log.open("ab") as stream:
        stream.write(ITERATIONS)
    assert node.one().iterations == 5


def test_overrides_by_log_and_job(tmp_path: Path) -> None:
    for name in ("a.log", "b.log", "c.log"):
        (tmp_path / name).touch()
    config = Config(
        logs=(
            LogConfig(path=f"{tmp_path}/a.log", job_id="big-1", hang_limit=Duration(11)),
            LogConfig(path=f"{tmp_path}/b.log", job_id="big-2"),
            LogConfig(path=f"{tmp_path}/c.log", job_id="small", pattern=r"tick (?P<iteration>\d+)"),
        ),
        jobs=(JobConfig(job_id="big-*", hang_limit=Duration(22)),),
        limits=LimitsConfig(hang_limit=Duration(33)),
    )
    with contextlib.closing(Node(config)) as node:
        node.poll()
        for name in ("a.log", "b.log"):
            (tmp_path / name).write_bytes(ITERATIONS)
        (tmp_path / "c.log").write_bytes(ITERATIONS + b"tick 9\n")
        states = {one.log: one for one in node.poll().logs}
        assert {name: one.limit.seconds for name, one in states.items()} == {
            "a.log": 11,
            "b.log": 22,
            "c.log": 33,
        }
        assert states["c.log"].last_iteration == 9
        node.watcher.configure(Config(logs=config.logs, limits=LimitsConfig(hang_limit=Duration(44))))
        assert {one.log: one.limit.seconds for one in node.poll().logs}["b.log"] == 44


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"pattern": r"tick (?P<iteration>\d+)"}, {"pattern": r"iter (?P<iteration>\d+)"}),
        ({"pattern": r"tick (?P<iteration>\d+)"}, {}),
        ({"framework": "keras"}, {"framework": "nanogpt"}),
        ({}, {"pattern": r"iter (?P<iteration>\d+)"}),
    ],
)
@pytest.mark.parametrize("of_job", [False, True])
def test_another_way_to_read_holds_for_logs_that_are_followed(
    before: dict[str, str], after: dict[str, str], of_job: bool, tmp_path: Path
) -> None:
    log = tmp_path / "train.log"
    log.touch()

    def config(pinned: dict[str, str]) -> Config:
        entry = {} if of_job else pinned
        jobs = (JobConfig(job_id="mine", **pinned),) if of_job else ()
        return Config(logs=(LogConfig(path=str(log), job_id="mine", **entry),), jobs=jobs)

    with contextlib.closing(Node(config(before))) as node:
        node.start("exec sleep 60", job_id="mine")
        node.poll()
        log.write_bytes(ITERATIONS)
        node.poll()
        node.watcher.configure(config(after))
        state = node.one()
        assert (state.log, state.last_iteration, state.iterations) == ("train.log", 5, 0)  # nothing twice
        with log.open("ab") as stream:
            stream.write(b"iter 6: loss 2.5, time 3.1ms\n")
        state = node.one()
        assert (state.last_iteration, state.iterations, state.problem) == (6, 1, None)
        node.watcher.configure(config(after))
        assert node.one().iterations == 1  # what stays as it was is not read again


def test_another_configuration_in_the_middle_of_a_record_costs_no_pattern(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.touch()
    config = Config(logs=(LogConfig(path=str(log), job_id="mine", pattern=r"iter (?P<iteration>\d+)"),))
    with contextlib.closing(Node(config)) as node:
        node.start("exec sleep 60", job_id="mine")
        node.poll()
        (pattern,) = node.watcher._patterns.values()
        ask = pattern._ask

        def ask_and_reload(text: str) -> dict[str, str | None] | None:
            found = ask(text)
            node.watcher.configure(config)
            return found

        pattern._ask = ask_and_reload  # type: ignore[method-assign]
        log.write_bytes(ITERATIONS)
        state = node.one()
        assert (state.last_iteration, state.problem) == (5, None)
        worker = pattern._worker
        node.watcher.configure(Config(logs=(LogConfig(path=str(log), job_id="mine"),)))
        node.poll()
        assert worker is not None
        assert (node.watcher._patterns, worker.returncode is not None) == ({}, True)


def test_how_far_logs_were_read_is_remembered_of_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_REMEMBERED", 2)
    logs = [tmp_path / f"{number}.log" for number in range(4)]
    with contextlib.closing(Node()) as node:
        node.poll()
        for log in logs:
            child = node.start(f"exec sleep 60 >> {log}", job_id=log.stem, writes=log)
            node.poll()
            log.write_bytes(ITERATIONS)
            assert node.one().iterations == 5
            node.end(child)
            assert node.poll().logs == ()
        assert len(node.watcher._left) == 2
        node.start(f"exec sleep 60 >> {logs[-1]}", job_id=logs[-1].stem, writes=logs[-1])
        assert node.one().iterations == 0


HANGING: set[int] = set()  # threads


def hang(release: threading.Event) -> None:
    """Hang until released, in a thread that is known to."""
    HANGING.add(threading.get_ident())
    try:
        release.wait()
    finally:
        HANGING.discard(threading.get_ident())


class Patient(Lane):
    """A lane whose work is given up as soon as it is known to hang, and never for being slow."""

    def wait(self, seconds: float) -> bool:
        thread = self._thread
        if seconds and thread is not None:
            wait_for(lambda: not self.busy or thread.ident in HANGING)
        return super().wait(0.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (searching, watcher):
        monkeypatch.setattr(module, "Lane", Patient)


class Dead(Files):
    """A file system that stops to answer for the files of one name."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.dead = False

    def status(self, descriptor: int) -> os.stat_result:
        if self.dead and os.readlink(f"/proc/self/fd/{descriptor}").endswith("dead.log"):
            hang(self.release)
        return super().status(descriptor)


@pytest.mark.usefixtures("patient")
def test_a_read_that_hangs_stops_its_own_log_alone(tmp_path: Path) -> None:
    for name in ("alive.log", "dead.log"):
        (tmp_path / name).touch()
    files = Dead()
    config = Config(logs=(LogConfig(path=f"{tmp_path}/*.log"),))
    with contextlib.closing(Node(config, files=files)) as node:
        node.poll()
        files.dead = True
        try:
            node.poll()
            for name in ("alive.log", "dead.log"):
                (tmp_path / name).write_bytes(ITERATIONS)
            states = {one.log: one for one in node.poll().logs} | {one.log: one for one in node.poll().logs}
            assert states["alive.log"].last_iteration == 5
        finally:
            files.dead = False
            files.release.set()
        wait_for(lambda: {one.log: one.last_iteration for one in node.poll().logs}.get("dead.log") == 5)


class DeadPaths(Discovery):
    """Searches that do not come back while a word is in their path."""

    def __init__(self, word: str) -> None:
        super().__init__(PROC)
        self.word = word
        self.release = threading.Event()
        self.begun = 0

    def configured(self, entry: LogConfig) -> tuple[Found, ...]:
        if self.word and self.word in entry.path:
            self.begun += 1
            hang(self.release)
        return super().configured(entry)

    def search(self, configured: Iterable[Found], scan: Scan, now: float) -> Search:
        if self.word == "<processes>":
            hang(self.release)
        return super().search(configured, scan, now)


def _configured(tmp_path: Path) -> Config:
    for name in ("alive", "dead"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.log").touch()
    return Config(
        logs=(
            LogConfig(path=f"{tmp_path}/dead/*.log", job_id="d"),
            LogConfig(path=f"{tmp_path}/alive/*.log", job_id="a"),
        )
    )


def _hanging(watcher: LogWatcher) -> float | None:
    registry = CollectorRegistry()
    registry.register(IterationCollector(lambda: watcher.latest, time.time))
    return registry.get_sample_value("training_log_searches_hanging")


@pytest.mark.usefixtures("patient")
def test_a_search_that_hangs_stops_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config, discovery, out = _configured(tmp_path), DeadPaths("/dead/"), tmp_path / "out.log"
    with contextlib.closing(Node(config, discovery=discovery)) as node:
        try:
            node.poll()
            node.start(f"exec sleep 60 > {out}", writes=out)  # found while the other search hangs
            wait_for(lambda: node.poll() is not None and len(node.watcher._followed) == 2)
            for log in (out, tmp_path / "alive" / "alive.log", tmp_path / "dead" / "dead.log"):
                log.write_bytes(ITERATIONS)
                os.utime(log, (node.now + 3, node.now + 3))
            states = {one.log: one.last_iteration for one in node.poll().logs}
            assert states == {"out.log": 5, "alive.log": 5}
            assert node.watcher.latest.hanging == (f"the configured path {tmp_path}/dead/*.log",)
            assert _hanging(node.watcher) == 1
            assert discovery.begun == 1
            assert [one.levelname for one in caplog.records if "/dead/" in one.getMessage()] == ["WARNING"]
        finally:
            discovery.word = ""
            discovery.release.set()
        # What came late is taken over, and the searches after it come in time.
        wait_for(lambda: {one.log: one.last_iteration for one in node.poll().logs}.get("dead.log") == 5)
        wait_for(lambda: node.poll().hanging == ())
        assert _hanging(node.watcher) == 0


def test_a_search_that_is_always_slow_is_taken_over_late(tmp_path: Path) -> None:
    with contextlib.closing(Node(_configured(tmp_path), patience=0.0)) as node:
        node.watcher._patience = ENOUGH  # for reading
        wait_for(lambda: node.poll() is not None and len(node.watcher._followed) == 2)
        assert len(node.watcher.latest.hanging) == 3


@pytest.mark.usefixtures("patient")
def test_another_configuration_does_not_wait_for_a_search_that_hangs(tmp_path: Path) -> None:
    config, discovery = _configured(tmp_path), DeadPaths("/dead/")
    with contextlib.closing(Node(config, discovery=discovery)) as node:
        try:
            node.poll()
            assert len(node.watcher.latest.hanging) == 1
            node.watcher.configure(Config(logs=config.logs[1:]))
            assert node.poll().hanging == ()
            discovery.word = ""
            node.watcher.configure(config)
            wait_for(lambda: node.poll() is not None and len(node.watcher._followed) == 2)
        finally:
            discovery.release.set()


@pytest.mark.usefixtures("patient")
def test_a_search_of_processes_that_hangs_stops_no_configured_log(tmp_path: Path) -> None:
    config, discovery = _configured(tmp_path), DeadPaths("<processes>")
    with contextlib.closing(Node(config, discovery=discovery)) as node:
        try:
            node.start("exec sleep 60", job_id="a")
            node.poll()
            (tmp_path / "alive" / "alive.log").write_bytes(ITERATIONS)
            report = node.poll()
            assert {one.job_id: one.last_iteration for one in report.logs}["a"] == 5
            assert report.hanging == ("the output of processes",)
        finally:
            discovery.word = ""
            discovery.release.set()
        wait_for(lambda: node.poll().hanging == ())


def test_a_pattern_that_backtracks_for_ever_is_its_own_logs_trouble_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).touch()
    config = Config(
        logs=(
            LogConfig(path=f"{tmp_path}/a.log", pattern=r"(?P<iteration>(?:\d+)+)+!"),
            LogConfig(path=f"{tmp_path}/b.log"),
        )
    )
    with contextlib.closing(Node(config)) as node:
        node.poll()
        (tmp_path / "a.log").write_bytes(b"step 1 " + b"1" * 60 + b"\n")
        (tmp_path / "b.log").write_bytes(ITERATIONS)
        for name in ("a.log", "b.log"):
            os.utime(tmp_path / name, (node.now + 3, node.now + 3))
        states = {one.log: one for one in node.poll().logs}
        assert states["b.log"].last_iteration == 5
        assert states["b.log"].problem is None
        assert "avoid repetitions within repetitions" in (states["a.log"].problem or "")
        assert "file system" not in caplog.text
        registry = CollectorRegistry()
        registry.register(IterationCollector(lambda: node.watcher.latest, lambda: node.now))
        readable = {
            log: registry.get_sample_value("training_log_readable", {"job_id": log[0], "log": log})
            for log in states
        }
        assert readable == {"a.log": 0, "b.log": 1}


@pytest.mark.usefixtures("patient")
def test_a_pattern_that_hangs_beyond_the_patience_is_not_taken_for_a_dead_file_system(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = UserPattern._ask

    def ask_and_tell(pattern: UserPattern, text: str) -> dict[str, str | None] | None:
        HANGING.add(threading.get_ident())
        try:
            return ask(pattern, text)
        finally:
            HANGING.discard(threading.get_ident())

    monkeypatch.setattr(UserPattern, "_ask", ask_and_tell)
    log = tmp_path / "a.log"
    log.touch()
    config = Config(logs=(LogConfig(path=str(log), pattern=r"(?P<iteration>(?:\d+)+)+!"),))
    with contextlib.closing(Node(config)) as node:
        node.poll()
        log.write_bytes(b"step 1 " + b"1" * 60 + b"\n")
        os.utime(log, (node.now + 3, node.now + 3))
        assert "pattern" in (node.one().problem or "")
        wait_for(lambda: "is not used any more" in (node.one().problem or ""))
        assert "file system" not in caplog.text


def test_the_metrics(node: Node, tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    node.start(f"exec sleep 60 > {log}", writes=log)
    node.start("exec sleep 60", rank=1)
    node.poll()
    log.write_bytes(ITERATIONS + b"Traceback (most recent call last):\n")
    os.utime(log, (node.now + 3, node.now + 3))
    node.poll()
    with log.open("ab") as stream:
        stream.write(b"iter 6: loss 2.5, time 3.1ms\n")
    os.utime(log, (node.now + 3, node.now + 3))
    node.poll()
    registry = CollectorRegistry()
    registry.register(IterationCollector(lambda: node.watcher.latest, lambda: node.now + 7))
    text = generate_latest(registry).decode()
    for line in (
        f'training_log_info{{framework="nanogpt",job_id="job",log="out.log",path="{log}"}} 1.0',
        'training_log_last_iteration{job_id="job",log="out.log"} 6.0',
        'training_log_iteration_age_seconds{job_id="job",log="out.log"} 7.0',
        'training_log_iterations_total{job_id="job",log="out.log"} 6.0',
        'training_log_iteration_interval_seconds_count{job_id="job",log="out.log"} 1.0',
        'training_log_hang_limit_seconds{job_id="job",log="out.log"} 1800.0',
        'training_log_phase{job_id="job",log="out.log",phase="training"} 1.0',
        'training_log_phase{job_id="job",log="out.log",phase="finished"} 0.0',
        'training_log_trouble_records_total{job_id="job",kind="traceback",log="out.log"} 1.0',
        'training_log_readable{job_id="job",log="out.log"} 1.0',
        'training_rank_output_unfollowed{job_id="job",kind="null",rank="1"} 1.0',
    ):
        assert line in text.splitlines()
    assert 'training_log_iteration_interval_seconds{job_id="job",log="out.log",quantile="0.5"} 3.' in text


def test_python_writes_what_is_read(node: Node, tmp_path: Path) -> None:
    """A real writer in real time: from the write to the metric no more than a poll."""
    log = tmp_path / "out.log"
    code = (
        "import sys,time\nfor i in range(3): print(f'step {i}: loss 1.0', flush=True); sys.stdin.readline()"
    )
    child = node.start(f'exec {sys.executable} -c "{code}" > {log}')
    wait_for(lambda: log.exists() and b"step 0" in log.read_bytes())
    assert node.one().last_iteration == 0
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.flush()
    wait_for(lambda: b"step 1" in log.read_bytes())
    assert node.one(0.5).last_iteration == 1
