"""What happens to ranks over time, and what does not count as one: deaths, orphans, lies, nonsense."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from exporter import expected, ranks
from exporter.procfs import ProcFS
from exporter.ranks import RankFinder, Scan, TrainingProcess

PYTHON = "/usr/bin/python3.11"
TRAIN = [PYTHON, "train.py"]
BOOT = 1_700_000_000.0


class Node:
    """A /proc that changes, a clock that moves, and the finder that looks at both."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self.now = BOOT + 3600
        self.finder = RankFinder(ProcFS(tree.root), node="node-x", now=lambda: self.now)

    def agent(self, pid: int = 100, size: int = 2, run: str = "job") -> None:
        argv = [PYTHON, "/usr/bin/torchrun", f"--nproc_per_node={size}", f"--rdzv_id={run}", "train.py"]
        self.tree.process(pid, argv=argv, comm="pt_elastic")

    def rank(
        self, pid: int, rank: Any, *, ppid: int = 100, world: Any = 2, run: str = "job", **more: Any
    ) -> None:
        environ = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": world,
            "TORCHELASTIC_RUN_ID": run,
        } | more.pop("environ", {})
        self.tree.process(pid, **({"ppid": ppid, "argv": TRAIN, "environ": environ} | more))

    def scan(self, later: float = 1.0) -> Scan:
        self.now += later
        return self.finder.scan()


@pytest.fixture
def node(proc_tree: Any) -> Node:
    return Node(proc_tree)


def roles(scan: Scan) -> dict[int, str]:
    return {one.id.pid: one.role for one in scan.processes}


def by_pid(scan: Scan, pid: int) -> TrainingProcess:
    return next(one for one in scan.processes if one.id.pid == pid)


def test_dead_rank_is_missed_while_its_launcher_lives(node: Node) -> None:
    node.agent()
    node.rank(200, 0)
    node.rank(210, 1)
    node.scan()
    node.tree.end(210)
    (job,) = node.scan().jobs
    assert (job.expected, job.running, job.missing_ranks) == (2, 1, (1,))
    node.tree.end(200)
    (job,) = node.scan().jobs
    assert (job.expected, job.running, job.missing_ranks) == (2, 0, (0, 1))
    node.tree.end(100)
    assert node.scan().jobs == ()


def test_dead_rank_is_missed_while_another_rank_lives(node: Node) -> None:
    for rank in range(2):
        node.rank(200 + rank, rank, ppid=1, environ={"LOCAL_WORLD_SIZE": ""})
    node.scan()
    node.tree.end(201)
    (job,) = node.scan().jobs
    assert (job.expected, job.running) == (2, 1)


def test_restarted_ranks_are_expected_once(node: Node) -> None:
    node.agent()
    node.rank(200, 0)
    node.rank(210, 1)
    node.scan()
    node.tree.end(200)
    node.tree.end(210)
    node.scan()
    node.rank(300, 1)
    node.rank(310, 0)
    (job,) = node.scan().jobs
    assert (job.expected, job.running, job.missing_ranks) == (2, 2, ())


def test_launcher_alone_says_how_many_it_starts(node: Node) -> None:
    node.agent(size=8)
    (job,) = node.scan().jobs
    assert (job.job_id, job.expected, job.running) == ("job", 8, 0)


def test_launcher_of_unknown_job_is_a_near_miss(node: Node) -> None:
    node.tree.process(100, argv=[PYTHON, "/usr/bin/torchrun", "--standalone", "train.py"], comm="pt_elastic")
    scan = node.scan()
    assert scan.processes == ()
    assert "none lives" in scan.near_misses[0].reason


def test_zombie_rank_does_not_run(node: Node) -> None:
    node.agent()
    node.rank(200, 0)
    node.rank(210, 1)
    node.scan()
    node.rank(210, 1, state="Z", start=210)
    (job,) = node.scan().jobs
    assert (job.expected, job.running) == (2, 1)


def test_orphaned_worker_stays_with_its_rank_and_is_no_trainer(node: Node) -> None:
    node.agent()
    node.rank(200, 0)
    node.rank(210, 0, ppid=200)  # forked, not named: an older torch
    assert roles(node.scan()) == {100: "launcher", 200: "trainer", 210: "dataloader"}
    node.tree.end(200)
    node.rank(210, 0, ppid=1)
    scan = node.scan()
    assert roles(scan) == {100: "launcher", 210: "dataloader"}
    assert scan.jobs[0].running == 0


def test_forked_child_is_a_worker_only_once_it_lasts(node: Node) -> None:
    """Between fork and exec a child has its parent's name and command line, whatever it will be."""
    node.agent()
    node.rank(200, 0)
    node.rank(210, 0, ppid=200, start=360_000 - 500)  # five seconds ago
    assert roles(node.scan())[210] == "other"
    assert roles(node.scan(later=20))[210] == "dataloader"


def test_child_in_its_parents_memory_is_no_worker(node: Node) -> None:
    node.agent()
    node.rank(200, 0)
    node.rank(210, 0, ppid=200)
    for pid, pages in ((200, "5000 900"), (210, "5000 900")):
        node.tree.file(f"{pid}/statm", f"{pages} 300 1 0 600 0\n")
    assert roles(node.scan())[210] == "other"
    node.tree.file("210/statm", "5000 700 300 1 0 600 0\n")
    assert roles(node.scan(later=400))[210] == "dataloader"


def test_orphaned_worker_seen_first_is_known_by_its_name(node: Node) -> None:
    node.agent()
    node.rank(210, 1, ppid=1, comm="pt_data_worker")
    scan = node.scan()
    assert (by_pid(scan, 210).role, by_pid(scan, 210).rank) == ("dataloader", 1)
    assert scan.jobs[0].running == 0


def test_pid_used_again_is_another_process(node: Node) -> None:
    node.agent()
    node.rank(200, 0, start=200)
    first = by_pid(node.scan(), 200)
    node.tree.process(200, argv=["/usr/bin/sleep", "9"], start=900)
    assert 200 not in roles(node.scan())
    node.rank(200, 0, start=901)
    second = by_pid(node.scan(later=400), 200)
    assert first.id != second.id


def test_shell_with_rank_is_no_rank_until_it_becomes_python(node: Node) -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
    node.tree.process(200, argv=["/bin/bash", "run.sh"], environ=environ, start=200)
    scan = node.scan()
    assert (scan.processes, scan.near_misses) == ((), ())
    node.tree.process(200, argv=TRAIN, environ=environ, start=200)  # exec keeps pid and start time
    assert roles(node.scan(later=400)) == {200: "trainer"}


def test_program_linked_with_python_is_a_rank(node: Node) -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "h"}
    for pid, library in ((200, "/opt/libpython3.11.so.1.0"), (210, "/opt/libtorch_cpu.so")):
        node.tree.process(pid, argv=["/opt/trainer"], environ=environ)
        node.tree.file(f"{pid}/maps", f"7f00-7f01 r-xp 0 08:01 1 {library}\n")
    scan = node.scan()
    assert roles(scan) == {200: "trainer"}
    assert [(one.pid, "no Python" in one.reason) for one in scan.near_misses] == [(210, True)]


@pytest.mark.parametrize(
    ("rank", "world", "reason"),
    [
        ("-1", "2", "not a number"),
        ("1000000000000", "2", "not a number"),
        ("3; rm", "4", "not a number"),
        ("", "4", "not a number"),
        ("٣", "4", "not a number"),
        ("1_0", "40", "not a number"),
        ("7", "4", "no place in a world of 4"),
    ],
)
def test_absurd_rank_is_a_near_miss(node: Node, rank: str, world: str, reason: str) -> None:
    node.rank(200, rank, ppid=1, world=world)
    scan = node.scan()
    assert scan.processes == ()
    assert reason in scan.near_misses[0].reason


def test_environment_with_invalid_bytes_is_read(node: Node) -> None:
    data = b"RANK=0\0RANK=5\0WORLD_SIZE=2\0TORCHELASTIC_RUN_ID=j\xff\xfeb\n\0=\0\0NOEQUALS\0A==b=c\0\xff=\xff"
    node.tree.process(200, argv=TRAIN, environ=data)
    (one,) = node.scan().processes
    assert (one.rank, one.job_id) == (0, "j��b")


def test_two_ranks_with_one_number_are_a_conflict(node: Node) -> None:
    node.rank(200, 0, ppid=1)
    node.rank(210, 0, ppid=1)
    scan = node.scan()
    assert roles(scan) == {200: "trainer", 210: "trainer"}
    assert (scan.jobs[0].running, scan.jobs[0].conflicts) == (1, 1)


def test_process_that_lies_beside_a_launched_rank_is_refused(node: Node) -> None:
    node.agent()
    node.rank(200, 0)
    node.rank(300, 0, ppid=1)
    scan = node.scan()
    assert roles(scan) == {100: "launcher", 200: "trainer"}
    assert [(one.pid, "which process 200 has" in one.reason) for one in scan.near_misses] == [(300, True)]
    assert scan.jobs[0].conflicts == 1


def test_jobs_and_processes_are_capped_the_oldest_first(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "MOST_JOBS", 3)
    for number in range(5):
        node.rank(200 + number, 0, ppid=1, run=f"lie-{number}")
    scan = node.scan()
    assert [job.job_id for job in scan.jobs] == ["lie-0", "lie-1", "lie-2"]
    assert scan.dropped == 2


def test_local_world_size_beyond_the_world_is_not_believed(node: Node) -> None:
    node.rank(200, 0, ppid=1, world=2, environ={"LOCAL_WORLD_SIZE": "999999999"})
    assert node.scan().jobs[0].expected == 1


def test_long_and_unprintable_job_id_is_cut(node: Node) -> None:
    node.rank(200, 0, ppid=1, run="a\nb" + "x" * 500)
    (one,) = node.scan().processes
    assert one.job_id.startswith("a_bx")
    assert len(one.job_id) == 128


def test_unreadable_environment_is_a_near_miss_with_the_remedy(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    from exporter.procfs import Unreadable

    monkeypatch.setattr(ProcFS, "environ", lambda *_: Unreadable.DENIED)
    node.rank(200, 0)
    (miss,) = node.scan().near_misses
    assert "CAP_SYS_PTRACE" in miss.reason


def test_process_in_a_page_fault_is_left_alone_until_it_is_over(node: Node) -> None:
    node.rank(200, 0, ppid=1, state="D", wchan="folio_wait_bit_common")
    node.tree.file("200/stack", "[<0>] folio_wait_bit_common+0x1/0x2\n[<0>] filemap_fault+0x1/0x2\n")
    node.tree.file("200/task/200/stack", "[<0>] folio_wait_bit_common+0x1/0x2\n[<0>] filemap_fault+0x1/0x2\n")
    scan = node.scan()
    assert scan.processes == ()
    assert "page fault" in scan.near_misses[0].reason
    node.rank(200, 0, ppid=1)
    assert roles(node.scan(later=400)) == {200: "trainer"}


def test_page_fault_of_another_thread_counts(node: Node) -> None:
    node.rank(200, 0, ppid=1, threads=["reader"], thread_states="D", wchan="handle_mm_fault")
    assert "page fault" in node.scan().near_misses[0].reason


def test_frozen_process_outside_a_page_fault_is_found(node: Node) -> None:
    node.rank(200, 0, ppid=1, state="D", wchan="rpc_wait_bit_killable")
    assert roles(node.scan()) == {200: "trainer"}


def test_known_process_stays_known_when_it_faults(node: Node) -> None:
    node.rank(200, 0, ppid=1)
    node.scan()
    node.rank(200, 0, ppid=1, state="D")
    node.tree.file("200/environ", "")
    assert roles(node.scan()) == {200: "trainer"}


def test_rank_that_joins_a_group_late_is_found_with_its_siblings(node: Node) -> None:
    argv = [PYTHON, "main.py"]
    node.tree.process(100, argv=argv)
    for number in range(2):
        node.tree.process(200 + number * 10, ppid=100, argv=argv)
    assert node.scan().processes == ()
    for number in range(2):
        node.tree.process(200 + number * 10, ppid=100, argv=argv, threads=["pt_gloo_runloop"])
    scan = node.scan(later=400)
    assert {pid: by_pid(scan, pid).rank for pid in (200, 210)} == {200: 0, 210: 1}
    node.tree.end(200)
    assert by_pid(node.scan(), 210).rank == 1  # keeps its number


def test_writer_of_checkpoint_files_is_known_by_them(node: Node) -> None:
    child = [
        PYTHON,
        "-c",
        "from multiprocessing.spawn import spawn_main; spawn_main()",
        "--multiprocessing-fork",
    ]
    node.rank(200, 0, ppid=1)
    node.rank(210, 0, ppid=200, argv=child, written=["/lustre/run/checkpoints/iter_100/__0_1.distcp"])
    assert roles(node.scan())[210] == "checkpoint"


def test_training_below_a_python_wrapper_is_the_trainer(node: Node) -> None:
    node.agent(size=1)
    wrapper = [PYTHON, "-m", "profiler", "train.py"]
    node.rank(200, 0, world=1, argv=wrapper)
    node.rank(210, 0, world=1, ppid=200, threads=["pt_gloo_runloop"])
    node.rank(220, 0, world=1, ppid=210, comm="pt_data_worker")
    assert {pid: role for pid, role in roles(node.scan()).items() if pid != 100} == {
        210: "trainer",
        220: "dataloader",
    }


def test_configured_job_id_overrules_all(proc_tree: Any) -> None:
    node = Node(proc_tree)
    node.finder = RankFinder(ProcFS(proc_tree.root), node="node-x", job_id="mine", now=lambda: node.now)
    node.agent()
    node.rank(200, 0)
    assert {one.job_id for one in node.scan().processes} == {"mine"}


def test_gpu_by_driver_then_by_visible_devices(proc_tree: Any) -> None:
    node = Node(proc_tree)
    gpus: dict[int, str] = {}
    node.finder = RankFinder(ProcFS(proc_tree.root), node="n", gpus=lambda: dict(gpus), now=lambda: node.now)
    node.rank(200, 1, ppid=1, environ={"CUDA_VISIBLE_DEVICES": "4, 6"})
    node.rank(210, 1, ppid=200, comm="pt_data_worker")
    scan = node.scan()
    assert (by_pid(scan, 200).gpu, by_pid(scan, 210).gpu) == ("6", "6")
    gpus[200] = "7"
    scan = node.scan()
    assert (by_pid(scan, 200).gpu, by_pid(scan, 210).gpu) == ("7", "7")


def test_scans_are_paced_by_their_cost(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    spent: Iterator[float] = iter([0.0, 9.0, 9.005, 9.005, 9.006])
    monkeypatch.setattr(ranks.time, "thread_time", lambda: next(spent))
    node.rank(200, 0, ppid=1)
    node.finder.poll()
    node.now += 1.0  # the first scan, in which every process is new, says nothing of the next ones' cost
    node.finder.poll()
    first = node.finder.latest.taken_at
    assert first == node.now
    node.now += 9.9  # 5 ms of CPU are followed by 10 s of pause
    node.finder.poll()
    assert node.finder.latest.taken_at == first
    node.now += 0.2
    node.finder.poll()
    assert node.finder.latest.taken_at > first


def test_expected_is_the_sum_over_agents_of_a_job(node: Node) -> None:
    for agent in (100, 500):
        node.agent(agent)
        for rank in range(2):
            number = rank + (2 if agent == 500 else 0)
            node.rank(agent + 1 + rank, number, ppid=agent, world=4, environ={"LOCAL_WORLD_SIZE": "2"})
    (job,) = node.scan().jobs
    assert isinstance(job, expected.Job)
    assert (job.expected, job.running, job.world_size) == (4, 4, 4)


@pytest.mark.parametrize(
    "argv",
    [
        [PYTHON, "/home/me/wandb_demo/train.py", "--logger=wandb"],
        [PYTHON, "-u", "tensorboard_test.py", "debugpy"],
        [PYTHON, "-m", "debugpy", "--listen", "5678", "train.py"],
        [PYTHON, "-X", "dev", "-m", "train", "torchrun"],
        ["python", "train.py"],
    ],
)
def test_words_of_a_command_line_make_no_helper_of_a_rank(node: Node, argv: list[str]) -> None:
    node.rank(200, 0, ppid=1, argv=argv)
    assert roles(node.scan()) == {200: "trainer"}


def test_tree_without_threads_and_links_is_enough(node: Node) -> None:
    node.rank(200, 0, ppid=1, argv=["python3", "train.py"], state="D")
    for name in ("task", "exe", "wchan", "status", "io", "cgroup", "maps"):
        path = node.tree.root / "200" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert roles(node.scan()) == {200: "trainer"}


def test_loopback_masters_of_two_containers_are_two_jobs(node: Node) -> None:
    for pid, container in ((200, "a" * 64), (300, "b" * 64)):
        environ = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
        node.rank(pid, 0, ppid=1, environ=environ, cgroup=f"/docker/{container}")
    scan = node.scan()
    assert [job.job_id for job in scan.jobs] == ["aaaaaaaaaaaa:29500", "bbbbbbbbbbbb:29500"]
    assert by_pid(scan, 200).container == "a" * 64


def test_a_new_configuration_forgets_no_rank_and_opens_no_file_twice(node: Node) -> None:
    def opened() -> int:
        links = []
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # that of the listing, or another thread closed it
                links.append(os.readlink(f"/proc/self/fd/{name}"))
        return sum(link.startswith(str(node.tree.root)) for link in links)

    for rank in range(2):
        node.rank(200 + rank, rank, ppid=1, environ={"LOCAL_WORLD_SIZE": ""})
    node.scan()
    node.tree.end(201)
    node.scan()
    before = opened()
    node.finder.configure(None)
    (job,) = node.finder.latest.jobs
    assert (job.job_id, job.expected, job.running) == ("job", 2, 1)
    for job_id in ("all", "other", None, "all"):
        node.finder.configure(job_id)
        assert {one.job_id for one in node.finder.latest.processes} == {job_id or "job"}
        assert {one.job_id for one in node.scan().jobs} == {job_id or "job"}
    assert (before > 0, opened()) == (True, before)
