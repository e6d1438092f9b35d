"""What training processes wait for: states sampled, counters summed, gaps counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from exporter import sampler as sampling
from exporter.collectors.process import ProcessCollector
from exporter.procfs import ProcFS, Unreadable
from exporter.ranks import ProcessId, Scan, TrainingProcess
from exporter.sampler import Group, ProcessSampler


class World:
    """Training processes in a fixture /proc, a scan of them, a clock."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self.now = 1000.0
        self.found: dict[int, TrainingProcess] = {}
        self.procfs = ProcFS(tree.root, cgroup_root=tree.root / "cgroup", ticks=100)
        self.sampler = ProcessSampler(self.procfs, self.scan, counters_every=10.0, now=lambda: self.now)

    def scan(self) -> Scan:
        return Scan(self.now, "node", tuple(self.found.values()))

    def put(self, pid: int, role: Any = "trainer", rank: int | None = 0, **more: Any) -> None:
        """Add a process, or change one: the files are written in place, as open ones must show it."""
        self.tree.process(pid, argv=["/usr/bin/python3", "t.py"], **more)
        start = more.get("start", pid)
        self.found[pid] = TrainingProcess(
            ProcessId(pid, start), 1, "job", role, rank, rank, 2, "python3", ("python3",), "torchrun"
        )

    def end(self, pid: int) -> None:
        self.tree.end(pid)
        del self.found[pid]

    def state(self, pid: int, letter: str, tid: int | None = None) -> None:
        path = self.tree.root / str(pid) / "task" / str(tid or pid) / "stat"
        head, _, rest = path.read_text().rpartition(") ")
        path.write_text(f"{head}) {letter}{rest[1:]}")

    def poll(self, times: int = 1, every: float = 1.0) -> None:
        for _ in range(times):
            self.now += every
            self.sampler.poll()

    def group(self, role: str = "trainer", rank: int | None = 0) -> Group:
        return next(one for one in self.sampler.latest.groups if (one.role, one.rank) == (role, rank))

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        families = ProcessCollector(lambda: self.sampler.latest).collect()
        return {
            tuple(sample.labels.values()): sample.value
            for family in families
            for sample in family.samples
            if sample.name == name
        }


@pytest.fixture
def world(proc_tree: Any) -> World:
    return World(proc_tree)


def test_time_in_uninterruptible_sleep_is_sampled(world: World) -> None:
    world.put(100)
    world.poll(2)
    world.state(100, "D")
    world.poll(3)
    assert (world.group().uninterruptible_seconds, world.group().uninterruptible_longest) == (3.0, 2.0)
    world.state(100, "S")
    world.poll(2)
    assert (world.group().uninterruptible_seconds, world.group().uninterruptible_longest) == (3.0, 0.0)


def test_thread_in_uninterruptible_sleep_counts_for_its_process_once(world: World) -> None:
    world.put(100, threads=["pt_autograd_0", "reader"])
    world.poll(2)
    world.state(100, "D", tid=101)
    world.state(100, "D", tid=102)
    world.poll(2)
    assert world.group().uninterruptible_seconds == 2.0


def test_every_thread_has_its_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "THREADS_PER_POLL", 2)
    world.put(100, threads=[f"t{number}" for number in range(7)])
    world.poll(1)
    world.state(100, "D", tid=107)
    world.poll(4)
    assert world.group().uninterruptible_seconds > 0


def test_stopped_process_is_seen(world: World) -> None:
    world.put(100)
    world.poll()
    world.state(100, "T")
    world.poll(4)
    assert (world.group().stopped_seconds, world.group().stopped_longest) == (4.0, 3.0)


def test_workers_are_summed_and_the_worst_is_visible(world: World) -> None:
    for pid in (200, 201, 202):
        world.put(pid, "dataloader", cpu=(50, 50))
    world.poll()
    world.state(201, "D")
    world.poll(5)
    world.state(202, "D")
    world.poll(2)
    group = world.group("dataloader")
    assert group.processes == 3
    assert group.totals.cpu_seconds == 3.0
    assert group.uninterruptible_seconds == 7 + 2
    assert group.uninterruptible_longest == 6.0


def test_sums_never_fall_when_workers_are_replaced(world: World) -> None:
    world.put(100)
    for pid in (200, 201):
        world.put(pid, "dataloader", cpu=(500, 0), io={"rchar": 1000})
    world.poll()
    world.end(200)
    world.end(201)
    world.poll(12)
    assert (world.group("dataloader").processes, world.group("dataloader").totals.cpu_seconds) == (0, 10.0)
    world.put(300, "dataloader", cpu=(100, 0), io={"rchar": 10})
    world.poll(12)
    group = world.group("dataloader")
    assert (group.totals.cpu_seconds, group.totals.rchar) == (11.0, 2010.0)
    for pid in (100, 300):
        world.end(pid)
    world.poll()
    assert world.sampler.latest.groups == ()


def test_vanished_process_is_no_gap(world: World) -> None:
    world.put(100)
    world.poll()
    world.tree.end(100)
    world.poll(12)
    assert world.sampler.latest.unreadable == ()


def test_pid_of_another_process_is_not_counted(world: World) -> None:
    world.put(100)
    world.tree.process(100, argv=["/bin/other"], start=999)
    world.poll()
    assert world.sampler.latest.groups == ()


def test_switches_are_those_of_the_main_thread(world: World) -> None:
    world.put(100, switches=(7, 3))
    world.poll()
    assert world.samples("training_process_context_switches_total") == {("job", "0", "trainer"): 10.0}
    assert world.samples("training_process_involuntary_context_switches_total") == {
        ("job", "0", "trainer"): 3.0
    }


@pytest.mark.parametrize("why", [Unreadable.DENIED, Unreadable.UNSUPPORTED])
def test_what_cannot_be_read_is_absent_and_counted(
    world: World, monkeypatch: pytest.MonkeyPatch, why: Unreadable
) -> None:
    monkeypatch.setattr(ProcFS, "io", lambda *_: why)
    world.put(100, cpu=(100, 0))
    world.put(101, rank=1)
    world.poll()
    assert world.samples("training_process_read_bytes_total") == {}
    assert world.samples("training_process_rchar_bytes_total") == {}
    assert world.samples("training_process_cpu_seconds_total")["job", "0", "trainer"] == 1.0
    assert world.samples("training_process_unreadable") == {("io", why.value): 2.0}


def test_io_wait_is_absent_where_the_kernel_does_not_account_it(world: World) -> None:
    world.put(100, delay=250)
    world.poll(2)
    assert world.samples("training_process_io_wait_seconds_total") == {}
    assert world.samples("training_delay_accounting_enabled") == {(): 0.0}


def test_io_wait_is_that_of_all_threads(world: World) -> None:
    world.tree.file("sys/kernel/task_delayacct", "1\n")
    world.put(100, delay=250, threads=["reader"])
    world.poll(2)
    assert world.samples("training_process_io_wait_seconds_total") == {("job", "0", "trainer"): 5.0}
    assert world.samples("training_delay_accounting_enabled") == {(): 1.0}


@pytest.mark.parametrize(("delay", "expected"), [(0, {}), (100, {("job", "0", "trainer"): 1.0})])
def test_kernel_without_the_switch_is_believed_once_it_accounts(
    world: World, delay: int, expected: dict[Any, float]
) -> None:
    (world.tree.root / "sys/kernel/task_delayacct").unlink()
    world.put(100, delay=delay)
    world.poll(2)
    assert world.samples("training_process_io_wait_seconds_total") == expected
    assert world.samples("training_delay_accounting_enabled") == {}


def test_main_thread_that_did_not_run_shows_where_it_sleeps(world: World) -> None:
    world.put(100, switches=(5, 5), wchan="rpc_wait_bit_killable", state="D")
    world.put(101, rank=1, switches=(1, 1), wchan="ep_poll")
    world.poll(2)
    assert world.samples("training_process_blocked_info") == {}
    world.tree.file(
        "101/status", (world.tree.root / "101/status").read_text().replace("switches:\t1", "switches:\t9")
    )
    world.poll(22)
    assert ("job", "0", "trainer", "D", "rpc_wait_bit_killable") in world.samples(
        "training_process_blocked_info"
    )


def test_counters_are_read_in_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original: Callable[..., Any] = sampling.counters.read
    monkeypatch.setattr(sampling.counters, "read", lambda fs, pid: read.append(pid) or original(fs, pid))
    for number in range(20):
        world.put(100 + number, rank=number)
    world.poll()
    assert len(read) == 20
    read.clear()
    world.poll(9)
    assert read == []
    world.poll(10)
    assert sorted(read) == [100 + number for number in range(20)]


def test_what_did_not_run_is_not_counted_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original: Callable[..., Any] = sampling.counters.read
    monkeypatch.setattr(sampling.counters, "read", lambda fs, pid: read.append(pid) or original(fs, pid))
    world.put(100, cpu=(100, 0), runs=5, wchan="ep_poll")
    world.put(101, rank=1, runs=5, threads=["reader"])  # its other thread may have run
    world.poll()
    assert sorted(read) == [100, 101]
    read.clear()
    world.poll(22)
    assert set(read) == {101}
    assert world.samples("training_process_blocked_info") == {
        ("job", "0", "trainer", "S", "ep_poll"): 1.0,
        ("job", "1", "trainer", "S", ""): 1.0,
    }
    read.clear()
    stat = world.tree.root / "100/stat"
    stat.write_text(stat.read_text().replace(" 100 0 0 0 20", " 300 0 0 0 20"))
    world.tree.file("100/task/100/schedstat", "6000 0 6\n")
    world.poll(11)
    assert 100 in read
    assert world.group().totals.cpu_seconds == 3.0


def test_threads_that_cost_much_have_their_turn_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "THREAD_SECONDS_PER_POLL", 0.0)
    world.put(100, threads=[f"t{number}" for number in range(120)])
    world.poll(1)
    world.state(100, "D", tid=220)
    world.poll(4)
    assert world.group().uninterruptible_seconds > 0


def test_pressure_of_node_and_of_the_jobs_worst_cgroup(world: World) -> None:
    def pressure(total: int) -> str:
        return (
            f"some avg10=1.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0 avg60=0 avg300=0 total=0\n"
        )

    world.tree.file("pressure/io", pressure(1_500_000))
    for pid, total in ((100, 1_000_000), (101, 3_000_000)):
        world.put(pid, rank=pid, cgroup=f"/job/{pid}")
        world.tree.file(f"cgroup/job/{pid}/io.pressure", pressure(total))
    world.put(102, rank=2, cgroup="/../../escape")
    world.poll()
    assert world.samples("training_node_pressure_seconds_total")["io", "some"] == 1.5
    assert world.samples("training_job_pressure_seconds_total") == {
        ("job", "io", "full"): 0.0,
        ("job", "io", "some"): 3.0,
    }


def test_more_processes_than_may_be_kept_open_are_watched_all_the_same(proc_tree: Any) -> None:
    world = World(proc_tree)
    world.procfs = ProcFS(proc_tree.root, ticks=100, keep_open=2)
    world.sampler = ProcessSampler(world.procfs, world.scan, now=lambda: world.now)
    for number in range(5):
        world.put(100 + number, rank=number, threads=["t"])
    world.poll(2)
    for number in range(5):
        world.state(100 + number, "D")
    world.poll(2)
    assert [one.uninterruptible_seconds for one in world.sampler.latest.groups] == [2.0] * 5


def test_clock_set_back_takes_nothing_away(world: World) -> None:
    world.put(100, state="D")
    world.poll(3)
    before = world.group().uninterruptible_seconds
    world.poll(1, every=-500.0)
    assert world.group().uninterruptible_seconds == before
