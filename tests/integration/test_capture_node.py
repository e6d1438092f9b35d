"""Real processes of every kind, read by the real py-spy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.procfs import ProcFS
from exporter.ranks import ProcessId, RankFinder, Scan, TrainingProcess
from snapshotter.capture.facts import look, reader, thread_states
from snapshotter.capture.node import Progress, capture_node
from snapshotter.capture.pyspy import Dump, PySpy
from snapshotter.stacks.model import NodeAnswer, Process
from tests.running import wait_for

PROGRAMS = Path(__file__).parent.parent / "programs"
PROCFS = ProcFS()
ENOUGH = 240.0  # seconds in which a capture that is not held up ends on the busiest machine


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes, each in a group of its own, and ends them all."""
    running: list[subprocess.Popen[str]] = []

    def start(*command: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(word) for word in command], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        running.append(process)
        return process

    yield start
    for process in running:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # the test ended it
            pass
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def state(pid: int) -> str:
    now = look(PROCFS, pid)
    return "" if now is None else now.state


def rests(pid: int) -> bool:
    """Whether no thread of it runs."""
    return set(thread_states(PROCFS, pid)) == {"S"}


def has_children(pid: int) -> bool:
    """Of one that starts a child: while Python starts it may be in D too, but for a moment."""
    return any(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))


def busy(start: Callable[..., subprocess.Popen[str]]) -> int:
    process = start(sys.executable, PROGRAMS / "capture_busy.py")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process.pid


def pyspy(binary: Path | None = None, timeout: float = 120.0) -> PySpy:
    return reader(PROCFS, binary=binary, timeout=timeout)


def scan_of(*processes: TrainingProcess) -> Callable[[], Scan]:
    return lambda: Scan(time.time(), "node-a", processes)


def member(pid: int, rank: int | None, *, job_id: str = "job", role: str = "trainer") -> TrainingProcess:
    now = look(PROCFS, pid)
    assert now is not None
    return TrainingProcess(
        id=ProcessId(pid, now.start_ticks),
        parent_pid=os.getpid(),
        job_id=job_id,
        role=role,  # type: ignore[arg-type]
        rank=rank,
        local_rank=rank,
        world_size=8,
        name="python",
        command_line=("python", "train.py", "--api-key", "hush"),
        launcher="torchrun",
    )


def capture(
    pids: list[int], reader: PySpy | None = None, samples: int = 2, deadline: float = ENOUGH, **more: object
) -> NodeAnswer:
    return capture_node(
        scan_of(),
        PROCFS,
        reader or pyspy(),
        node="node-a",
        pids=pids,
        interval=0,
        samples=samples,
        deadline=deadline,
        **more,  # type: ignore[arg-type]
    )


def capture_scan(scan: Callable[[], Scan], samples: int = 2) -> NodeAnswer:
    return capture_node(
        scan, PROCFS, pyspy(), node="node-a", job_id="job", interval=0, samples=samples, deadline=ENOUGH
    )


def by_pid(answer: NodeAnswer) -> dict[int, Process]:
    return {process.pid: process for process in answer.processes}


def functions(process: Process) -> set[str]:
    return {frame.name for sample in process.samples for thread in sample.threads for frame in thread.frames}


def test_a_tree_is_taken_whole_with_every_thread_and_a_child_that_is_no_python(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    process = start(sys.executable, PROGRAMS / "capture_tree.py")
    assert process.stdout is not None
    python_child, plain_child = map(int, process.stdout.readline().split())
    wait_for(lambda: all(rests(pid) for pid in (process.pid, python_child, plain_child)))
    steps: list[Progress] = []

    answer = capture([process.pid], progress=steps.append)

    found = by_pid(answer)
    assert set(found) == {process.pid, python_child, plain_child}
    parent = found[process.pid]
    assert parent.outcome == "ok"
    assert {"train", "wait_for_data", "<module>"} <= functions(parent)
    assert {thread.thread_name for thread in parent.samples[0].threads} == {"MainThread", "loader"}
    assert {thread.tid for thread in parent.samples[0].kernel_threads} >= {process.pid}
    assert parent.samples[0].wchan
    assert parent.samples[0].counters.cpu_seconds is not None
    assert found[plain_child].outcome == "not_python"
    assert found[plain_child].samples[0].state == "S"
    assert found[python_child].outcome == "ok"
    assert [len(one.samples) for one in answer.processes] == [2, 2, 2]
    assert [(step.stage, step.done, step.total) for step in steps] == [
        (f"sample {number} of 2", done, 3) for number in (1, 2) for done in (1, 2, 3)
    ]


def test_a_process_in_disk_sleep_is_read_without_stopping_it(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    pid = start(sys.executable, PROGRAMS / "capture_disk_sleep.py", fifo).pid
    wait_for(lambda: has_children(pid) and state(pid) == "D")

    found = by_pid(capture([pid]))[pid]

    assert found.outcome == "ok"
    assert "<module>" in functions(found)
    assert found.samples[0].state == "D"
    assert found.samples[0].pause_seconds is None
    assert found.samples[0].kernel_stack
    assert state(pid) == "D"


def test_a_process_of_which_one_thread_is_in_disk_sleep_is_never_stopped(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    pid = start(sys.executable, PROGRAMS / "capture_disk_sleep.py", fifo, "thread").pid
    wait_for(lambda: has_children(pid) and "D" in thread_states(PROCFS, pid))
    failing = stand_in(tmp_path, f'echo "$@" >> {tmp_path}/calls\necho "Error: torn" >&2\nexit 1')

    found = by_pid(capture([pid], pyspy(failing), samples=1))[pid]

    assert (found.outcome, found.error) == ("error", "py-spy: torn")
    assert len(found.samples[0].kernel_threads) == 2
    assert "D" in {thread.state for thread in found.samples[0].kernel_threads}
    # The child that opens the FIFO is read too.
    calls = [call for call in (tmp_path / "calls").read_text().splitlines() if call.endswith(f"--pid {pid}")]
    assert len(calls) == 2
    assert all("--nonblocking" in call for call in calls)


def test_a_stopped_process_is_read_and_left_stopped(start: Callable[..., subprocess.Popen[str]]) -> None:
    pid = busy(start)
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: state(pid) == "T")

    found = by_pid(capture([pid]))[pid]

    assert found.samples[0].state == "T"
    assert found.outcome == "ok"
    assert state(pid) == "T"


def test_a_busy_process_gives_whole_stacks(start: Callable[..., subprocess.Popen[str]]) -> None:
    pid = busy(start)

    began = time.monotonic()
    found = by_pid(capture([pid], samples=20))[pid]
    seconds = time.monotonic() - began

    for sample in found.samples:
        assert sample.outcome == "ok", sample.error
        assert {thread.frames[-1].name for thread in sample.threads} == {"<module>", "Thread._bootstrap"}
        if sample.pause_seconds is not None:
            assert 0 < sample.pause_seconds < seconds


def test_a_process_that_is_not_there_any_more_is_gone(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("sleep", "600")
    ended = member(process.pid, 0)
    os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: state(process.pid) == "Z")

    zombie = capture_scan(scan_of(ended))
    process.wait()
    gone = capture_scan(scan_of(ended))

    for answer in (zombie, gone):
        assert [one.outcome for one in answer.processes] == ["gone"]
        assert answer.processes[0].error


def test_a_pid_that_was_used_again_is_another_process(start: Callable[..., subprocess.Popen[str]]) -> None:
    pid = start("sleep", "600").pid
    now = member(pid, 0)
    earlier = TrainingProcess(
        **{**{name: getattr(now, name) for name in now.__slots__}, "id": ProcessId(pid, 1)}
    )
    answer = capture_scan(scan_of(earlier))
    assert [one.outcome for one in answer.processes] == ["gone"]


def test_a_process_that_we_may_not_read_is_denied(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    pid = busy(start)
    powerless = stand_in(tmp_path, f'exec setpriv --reuid 65534 --clear-groups {pyspy_path()} "$@"')

    found = by_pid(capture([pid], pyspy(powerless)))[pid]

    assert found.outcome == "denied"
    assert found.error is not None and "CAP_SYS_PTRACE" in found.error
    assert found.samples[0].state in ("R", "S")  # what /proc says is there all the same


def test_a_pyspy_that_hangs_is_killed_with_its_group_and_the_target_runs_on(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    pid = busy(start)
    hung = stand_in(
        tmp_path,
        f'for last; do :; done\nkill -STOP "$last"\nsleep 1000 & echo $! > {tmp_path}/child\nwait',
    )

    began = time.monotonic()
    found = by_pid(capture([pid], pyspy(hung, timeout=3.0), samples=1))[pid]

    assert time.monotonic() - began < ENOUGH
    assert found.outcome == "timeout"
    assert state(pid) in "RS"
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: state(child) in ("", "Z"))


def test_many_pyspy_that_hang_do_not_take_longer_than_the_node_may(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    pids = [busy(start) for _ in range(5)]
    hung = stand_in(tmp_path, f"echo $$ >> {tmp_path}/started\nexec sleep 1000")

    began = time.monotonic()
    answer = capture(pids, pyspy(hung, timeout=30.0), deadline=2.0, at_once=2)

    assert time.monotonic() - began < 100  # ten that hang, two at once, would take 150
    assert len(answer.processes) == 5
    for process in answer.processes:
        assert [sample.outcome for sample in process.samples] == ["timeout", "timeout"]
        assert process.samples[0].state in ("R", "S")  # what /proc says is there all the same
    started = [int(line) for line in (tmp_path / "started").read_text().split()]
    assert started
    wait_for(lambda: {state(pid) for pid in started} <= {"", "Z"})


def test_a_pyspy_that_fails_is_an_error_and_not_the_end(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    pid = busy(start)
    broken = stand_in(tmp_path, "echo nonsense")
    found = by_pid(capture([pid], pyspy(broken)))[pid]
    assert found.outcome == "error"
    assert found.error is not None and "not the JSON we know" in found.error
    missing = by_pid(capture([pid], pyspy(tmp_path / "none")))[pid]
    assert missing.outcome == "error"
    assert missing.error is not None and "cannot be run" in missing.error


def test_a_target_that_dies_while_it_is_read_is_gone(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    pid = busy(start)
    murderer = stand_in(
        tmp_path,
        f'for last; do :; done\nkill -KILL "$last"\n'
        'until grep -q "^State:.Z" "/proc/$last/status"; do :; done\n'
        f'exec {pyspy_path()} "$@"',
    )
    found = by_pid(capture([pid], pyspy(murderer)))[pid]
    assert {sample.outcome for sample in found.samples} == {"gone"}


def test_a_job_without_a_process_is_an_answer(start: Callable[..., subprocess.Popen[str]]) -> None:
    other = member(busy(start), 0, job_id="another")
    answer = capture_node(scan_of(other), PROCFS, pyspy(), node="node-a", job_id="job")
    assert answer.processes == ()
    assert answer.error == "no process of job job is left on node-a; the jobs here are another"
    assert answer.job_id == "job"


def test_a_node_where_nothing_trains_says_so() -> None:
    answer = capture_node(lambda: Scan(1.0, "node-a", ()), PROCFS, pyspy(), node="node-a", job_id="job")
    assert answer.error == "no process of job job is left on node-a, nor of any other job"


def test_where_others_processes_cannot_be_looked_into_nobody_is_called_gone() -> None:
    scan = Scan(1.0, "node-a", (), denied=3)
    answer = capture_node(lambda: scan, PROCFS, pyspy(), node="node-a", job_id="job")
    assert answer.outcome == "denied"
    assert (
        answer.error is not None and "3 Python processes of other users cannot be looked into" in answer.error
    )


def test_the_job_is_taken_with_descendants_and_without_another_job_below_it(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    process = start(sys.executable, PROGRAMS / "capture_tree.py")
    assert process.stdout is not None
    python_child, plain_child = map(int, process.stdout.readline().split())
    scan = scan_of(member(process.pid, 3), member(python_child, 0, job_id="inner"))

    answer = capture_scan(scan, samples=1)

    found = by_pid(answer)
    assert set(found) == {process.pid, plain_child}
    assert (found[plain_child].rank, found[plain_child].role) == (3, "other")
    assert found[process.pid].command_line == "python train.py --api-key ***"


def test_progress_that_cannot_be_told_and_faults_of_ours_cost_nothing(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    first, second = busy(start), busy(start)

    def broken_progress(step: Progress) -> None:
        raise RuntimeError("nobody listens")

    class Faulty(PySpy):
        def dump(self, pid: int, *args: object, **more: object) -> Dump:
            if pid == first:
                raise RuntimeError("a fault")
            return super().dump(pid, *args, **more)  # type: ignore[arg-type]

    faulty = Faulty(lambda pid: look(PROCFS, pid), timeout=120.0)
    found = by_pid(capture([first, second], faulty, progress=broken_progress))
    assert (found[first].outcome, found[first].error) == ("error", "reading it failed: a fault")
    assert found[second].outcome == "ok"


def test_a_proc_that_cannot_be_read_is_an_answer(tmp_path: Path) -> None:
    procfs = ProcFS(tmp_path / "none")
    finder = RankFinder(procfs, node="node-a")
    answer = capture_node(finder.scan, procfs, pyspy(), node="node-a", job_id="job")
    assert (answer.outcome, answer.processes) == ("error", ())
    assert answer.error is not None and "cannot be read: No such file" in answer.error


def test_two_hundred_processes(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start(
        sys.executable,
        "-c",
        "import os, time\nfor _ in range(199):\n    if os.fork() == 0: break\ntime.sleep(600)",
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_for(lambda: len(children.read_text().split()) == 199)
    wait_for(lambda: all(map(rests, map(int, [process.pid, *children.read_text().split()]))))
    answer = capture([process.pid], samples=1)
    assert [one.outcome for one in answer.processes] == ["ok"] * 200


def stand_in(folder: Path, script: str) -> Path:
    path = folder / "stand-in"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def pyspy_path() -> Path:
    return Path(sys.executable).parent / "py-spy"
