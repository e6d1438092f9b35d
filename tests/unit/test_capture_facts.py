"""What surrounds the stacks: open files, expected ranks, page faults, whose C frames are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from exporter.procfs import ProcFS
from exporter.ranks import ProcessId, Scan, TrainingProcess
from snapshotter.capture.expected import missing_here
from snapshotter.capture.facts import in_page_fault, look, read_facts, reader
from snapshotter.capture.native import chosen
from snapshotter.capture.openfiles import Mount, mount_of, on_network, parse_mounts
from snapshotter.capture.sampling import Sampler
from snapshotter.capture.targets import of_pids
from snapshotter.stacks.digest import digest
from snapshotter.stacks.model import Frame, NodeAnswer, Process, Sample, Thread

PID = 4_194_304  # above the largest that this kernel gives

MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,noatime shared:1 - ext4 /dev/vda rw
40 27 0:50 / /mnt/data rw,relatime shared:2 master:3 - nfs4 filer:/export rw,vers=4.2
41 40 0:51 / /mnt/data/local rw - tmpfs tmpfs rw
42 27 0:52 / /mnt/with\040blank rw - lustre 10.0.0.1@o2ib:/fs rw
43 27 0:53 / /mnt/lxcfs rw - fuse.lxcfs lxcfs rw
44 27 0:54 / /mnt/bucket rw - fuse.gcsfuse bucket rw
broken line
"""


class Proc:
    """A /proc with one process of our making."""

    def __init__(self, root: Path) -> None:
        self.folder = root / str(PID)
        self.procfs = ProcFS(root, ticks=100)
        (self.folder / "fd").mkdir(parents=True)
        self.thread(PID, "S")

    def thread(self, tid: int, state: str, stack: str | None = None, wchan: str | None = None) -> None:
        # State is field 3 of stat: 14 and 15 are CPU times, 20 threads, 22 the start, 42 block delays.
        fields = {14: "150", 15: "50", 20: "1", 22: "4711", 42: "250"}
        stat = f"{tid} (python) {state} 1 " + " ".join(fields.get(number, "0") for number in range(5, 53))
        folders = [self.folder / "task" / str(tid)] + ([self.folder] if tid == PID else [])
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "stat").write_text(stat)
            if stack is not None:
                (folder / "stack").write_text("".join(f"[<0>] {one}+0x1/0x2\n" for one in stack.split()))
            if wchan is not None:
                (folder / "wchan").write_text(wchan)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_facts_of_a_process_without_most_files(proc: Proc) -> None:
    facts = read_facts(proc.procfs, PID, delays=False)
    assert facts is not None
    assert (facts.state, facts.start_ticks, facts.counters.cpu_seconds) == ("S", 4711, 2.0)
    assert (facts.wchan, facts.syscall, facts.kernel_stack) == (None, None, ())
    assert (facts.counters.io_wait_seconds, facts.counters.rchar) == (None, None)
    assert [(one.tid, one.name, one.state) for one in facts.threads] == [(PID, "python", "S")]
    assert read_facts(proc.procfs, 8, delays=False) is None
    assert look(proc.procfs, 8) is None


def test_block_delays_are_given_only_where_the_kernel_counts_them(proc: Proc) -> None:
    facts = read_facts(proc.procfs, PID, delays=True)
    assert facts is not None
    assert facts.counters.io_wait_seconds == 2.5


@pytest.mark.parametrize(
    ("state", "stack", "wchan", "syscall", "faults"),
    [
        ("D", "folio_wait_bit_common filemap_fault handle_mm_fault exc_page_fault", None, None, True),
        ("D", "nfs_wait_bit_killable nfs_file_read vfs_read", None, "0 0x3", False),
        ("D", "folio_wait_bit_common filemap_read vfs_read", None, "0 0x3", False),
        ("D", "folio_wait_bit_common strange_arch_entry", None, "-1 0x7f 0x7f", True),
        ("D", None, "handle_userfault", None, True),
        ("D", None, "nfs_wait_bit_killable", "0 0x3", False),
        ("D", None, None, None, True),  # nothing can be known: left alone
        ("S", "folio_wait_bit_common handle_mm_fault exc_page_fault", None, "-1 0x7f", False),
        ("R", None, None, "running", False),
    ],
)
def test_page_faults_are_known_by_stack_wchan_and_syscall(
    proc: Proc, state: str, stack: str | None, wchan: str | None, syscall: str | None, faults: bool
) -> None:
    proc.thread(PID, state, stack, wchan)
    if syscall is not None:
        (proc.folder / "syscall").write_text(syscall + "\n")
    facts = read_facts(proc.procfs, PID, delays=False)
    assert facts is not None
    assert in_page_fault(proc.procfs, PID, facts) is faults


def test_a_fault_of_any_thread_counts(proc: Proc) -> None:
    proc.thread(9, "D", "folio_wait_bit_common handle_mm_fault exc_page_fault")
    facts = read_facts(proc.procfs, PID, delays=False)
    assert facts is not None
    assert facts.state == "S"
    assert facts.blocked
    assert in_page_fault(proc.procfs, PID, facts)


def test_a_process_of_another_pid_namespace_is_told_from_one_that_is_gone(proc: Proc) -> None:
    """/proc shows it, as the node's /proc mounted into a container does, but py-spy cannot."""
    target = TrainingProcess(
        ProcessId(PID, 4711), 1, "job", "trainer", 0, 0, 1, "python", ("python",), "torchrun"
    )
    sample = Sampler(proc.procfs, reader(ProcFS()), at_once=1).sample(target)
    assert (sample.outcome, sample.state) == ("error", "S")
    assert sample.error is not None and "PID namespace" in sample.error


@pytest.mark.parametrize(
    ("rank", "place"), [("3", (3, 2, 8)), (str(1 << 20), (0, 2, 8)), ("9" * 5000, (0, 2, 8))]
)
def test_a_given_process_is_the_rank_that_it_says_it_is(
    proc: Proc, rank: str, place: tuple[int, int, int]
) -> None:
    (proc.folder / "environ").write_text(f"RANK={rank}\0LOCAL_RANK=2\0WORLD_SIZE=8\0")
    (proc.folder / "cmdline").write_text("python\0train.py\0")
    (found,) = of_pids(Scan(0.0, "here", ()), [PID], proc.procfs)
    assert (found.rank, found.local_rank, found.world_size) == place


def test_mounts() -> None:
    mounts = parse_mounts(MOUNTS)
    assert len(mounts) == 7
    assert mount_of("/mnt/data/a", mounts) == Mount("/mnt/data", "nfs4", "filer:/export")
    assert mount_of("/mnt/database/a", mounts) == Mount("/", "ext4", "/dev/vda")
    assert mount_of("/mnt/with blank/a", mounts) == Mount("/mnt/with blank", "lustre", "10.0.0.1@o2ib:/fs")
    assert [mount.point for mount in mounts if mount.network] == [
        "/mnt/data",
        "/mnt/with blank",
        "/mnt/bucket",
    ]


def test_open_files_on_network_file_systems(proc: Proc) -> None:
    (proc.folder / "mountinfo").write_text(MOUNTS)
    targets = ["/mnt/data/shard-1", "/mnt/data/local/x", "/tmp/log", "socket:[77]", "/mnt/data/shard-1"]
    for number, target in enumerate(targets):
        (proc.folder / "fd" / str(number)).symlink_to(target)
    (proc.folder / "cwd").symlink_to("/mnt/bucket/run")
    assert on_network(proc.procfs, PID) == (
        "/mnt/data/shard-1 (nfs4 filer:/export)",
        "/mnt/bucket/run (fuse.gcsfuse bucket)",
    )
    assert on_network(proc.procfs, 8) == ()


def trainer(rank: int, local_rank: int, environment: dict[str, str] | None = None) -> Process:
    return Process(
        pid=100 + rank,
        node="n",
        role="trainer",
        rank=rank,
        outcome="ok",
        local_rank=local_rank,
        environment={"TORCHELASTIC_RUN_ID": "job", "LOCAL_WORLD_SIZE": "4"}
        if environment is None
        else environment,
    )


def launcher(command_line: str) -> Process:
    return Process(pid=1, node="n", role="launcher", rank=None, outcome="ok", command_line=command_line)


@pytest.mark.parametrize(
    ("processes", "missing"),
    [
        ([], ()),
        ([trainer(8, 0), trainer(9, 1), trainer(10, 2), trainer(11, 3)], ()),
        ([trainer(9, 1), trainer(11, 3)], (8, 10)),
        ([trainer(9, 1, {"LOCAL_WORLD_SIZE": "4"})], ()),  # not torchrun: ranks may be dealt out in turn
        ([trainer(9, 1, {"TORCHELASTIC_RUN_ID": "j", "LOCAL_WORLD_SIZE": "x"})], ()),
        ([trainer(9, 1, {"TORCHELASTIC_RUN_ID": "j", "LOCAL_WORLD_SIZE": "999999999"})], ()),
        ([trainer(9, 1, {"TORCHELASTIC_RUN_ID": "j", "LOCAL_WORLD_SIZE": "9" * 5000})], ()),
        # … unless the whole job is here
        ([replace(trainer(2, 2, {"LOCAL_WORLD_SIZE": "4"}), world_size=4)], (0, 1, 3)),
        ([trainer(1, 2)], ()),  # impossible
        ([launcher("torchrun --nproc-per-node=2 train.py"), trainer(1, 1, {})], (0,)),
        ([launcher("torchrun --nproc_per_node 2 --nnodes 2 --node-rank 1 train.py")], (2, 3)),
        ([launcher("torchrun --nproc_per_node 2 --nnodes 2 train.py")], ()),
        ([launcher("torchrun --nproc_per_node=gpu train.py")], ()),
    ],
)
def test_ranks_that_should_be_here(processes: list[Process], missing: tuple[int, ...]) -> None:
    assert missing_here(processes) == missing


def test_remembered_ranks_are_missed_too() -> None:
    assert missing_here([trainer(0, 0, {})], remembered=[0, 1, 5]) == (1, 5)


def sampled(rank: int, function: str, state: str = "S") -> Process:
    thread = Thread(1, "MainThread", 100 + rank, False, False, (Frame(function, "/a.py", 1),))
    return replace(trainer(rank, rank), samples=(Sample(1.0, "ok", threads=(thread,), state=state),))


def ranks_chosen(*processes: Process) -> list[int | None]:
    merged = digest([NodeAnswer("n", "ok", 0.0, 0.0, processes=processes)])
    return [one.rank for one in chosen(merged.processes)]


def test_c_frames_are_read_of_outliers_and_one_of_the_rest() -> None:
    waiting = [sampled(rank, "all_reduce") for rank in range(8)]
    odd = sampled(8, "read")
    blocked = sampled(9, "write", "D")
    failed = replace(trainer(10, 2), samples=(Sample(1.0, "denied"),))
    assert ranks_chosen(*waiting, odd, blocked, failed) == [0, 8]
    assert ranks_chosen() == []
    assert len(ranks_chosen(*(sampled(rank, f"f{rank}") for rank in range(100)))) == 16
