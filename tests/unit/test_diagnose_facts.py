"""Verdicts from facts beside stacks: /proc, counters, RAS, logs, groups, what could not be captured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from snapshotter.capture.privacy import allowed_environment
from snapshotter.stacks import rankset
from snapshotter.stacks.groups import ParallelSizes
from snapshotter.stacks.model import (
    Counters,
    Frame,
    JobCapture,
    KernelThread,
    NcclFact,
    NodeAnswer,
    Process,
    Sample,
    Thread,
)
from snapshotter.stacks.premerge import digest_trees, premerge
from snapshotter.stacks.report import analyse, analyse_digest, to_json
from snapshotter.stacks.verdict import Verdict
from tests.programs.dump_stacks import STACKS

PER_NODE = 4


def stack(name: str) -> tuple[Frame, ...]:
    return tuple(Frame(f["name"], f["filename"], f["line"]) for f in reversed(STACKS[name]))


def sample(name: str | tuple[Frame, ...], at: float = 0.0, **facts: Any) -> Sample:
    frames = stack(name) if isinstance(name, str) else name
    facts.setdefault("state", "S")
    return Sample(at, "ok", threads=(Thread(1, "MainThread", 100, True, False, frames),), **facts)


def twice(
    name: str, later: str | None = None, *, cpu: float = 0.0, io: int = 0, switches: int = 0, **facts: Any
):  # type: ignore[no-untyped-def]
    """Two samples five seconds apart, in which the counters gained so much."""

    def one(at: float, which: str, part: int) -> Sample:
        counters = Counters(
            cpu_seconds=10 + cpu * part, voluntary_switches=50 + switches * part, rchar=io * part
        )
        main = KernelThread(100, "python", facts.get("state", "S"), counters=counters)
        return sample(which, at, counters=counters, kernel_threads=(main,), **facts)

    return one(1000.0, name, 0), one(1005.0, later or name, 1)


def trainer(rank: int, *samples: Sample, **fields: Any) -> Process:
    fields.setdefault("outcome", "ok")
    return Process(
        100,
        f"node-{rank // PER_NODE}",
        "trainer",
        rank,
        local_rank=rank % PER_NODE,
        world_size=8,
        samples=samples,
        **fields,
    )


def job(processes: list[Process], **answers: Any) -> JobCapture:
    nodes = sorted({process.node for process in processes} | set(answers))
    return JobCapture(
        "job",
        tuple(
            NodeAnswer(
                **{
                    "node": node,
                    "outcome": "ok",
                    "started_at": 0,
                    "finished_at": 0,
                    "processes": tuple(p for p in processes if p.node == node),
                    **answers.get(node, {}),
                }
            )
            for node in nodes
        ),
    )


def waiting(*odd: Process, wait: str = "all_reduce") -> list[Process]:
    """Eight ranks; all but the odd ones wait."""
    ranks = {process.rank: process for process in odd}
    return [ranks.get(rank) or trainer(rank, *twice(wait)) for rank in range(8)]


def verdict(capture: JobCapture, **options: Any) -> Verdict:
    return analyse(capture, at=0.0, **options).verdict


def culprits(found: Verdict) -> tuple[bool | None, str, str, str]:
    return found.hung, found.scope, found.cause, rankset.fold(found.culprit_ranks)


def test_disk_sleep_is_storage_and_names_node_and_file_system() -> None:
    blocked = {
        "state": "D",
        "wchan": "rpc_wait_bit_killable",
        "kernel_stack": ("rpc_wait_bit_killable", "nfs_file_read"),
    }
    ranks = [trainer(rank, *twice("read", **blocked)) for rank in range(4, 8)]
    found = verdict(job(waiting(*ranks)))
    assert culprits(found) == (True, "local", "storage_io", "4-7")
    assert found.culprit_nodes == ("node-1",)
    assert found.headline == (
        "Ranks 4-7, all of node node-1, load data in pread (blob.py:12), in uninterruptible sleep (NFS); "
        "4 other ranks wait for them in all_reduce."
    )
    assert found.group == "node node-1"


def test_disk_sleep_of_a_process_that_was_left_alone() -> None:
    stuck = trainer(
        5,
        Sample(0.0, "uninterruptible", state="D", kernel_stack=("filemap_fault",)),
        outcome="uninterruptible",
    )
    found = verdict(job(waiting(stuck)))
    assert culprits(found) == (True, "local", "storage_io", "5")
    assert rankset.fold(found.not_captured) == "5"


def test_disk_sleep_of_a_worker_is_its_ranks_trouble() -> None:
    worker = Process(300, "node-0", "dataloader", 2, "ok", worker=1, samples=twice("worker_busy", state="D"))
    found = verdict(job([*waiting(trainer(2, *twice("loader"))), worker]))
    assert culprits(found) == (True, "local", "storage_io", "2")
    assert "DataLoader worker 1 (pid 300)" in found.headline


def test_the_gpu_driver_is_no_storage() -> None:
    stuck = trainer(
        1, *twice("linear", state="D", wchan="os_acquire_rwlock_write", kernel_stack=("nvidia_ioctl",))
    )
    assert culprits(verdict(job(waiting(stuck)))) == (True, "local", "compute", "1")


def test_a_glimpse_of_disk_sleep_is_none() -> None:
    first, second = twice("all_reduce")
    glimpsed = trainer(3, replace(first, state="D"), second)
    assert culprits(verdict(job(waiting(glimpsed)))) == (True, "global", "communication", "")


@pytest.mark.parametrize("state", ["T", "t"])
@pytest.mark.parametrize("where", ["all_reduce", "linear"])
def test_a_stopped_process(state: str, where: str) -> None:
    found = verdict(job(waiting(trainer(6, *twice(where, state=state)))))
    assert culprits(found) == (True, "local", "process_stopped", "6")
    assert "stopped" in found.headline


def test_all_stopped_names_nobody() -> None:
    found = verdict(job([trainer(rank, *twice("all_reduce", state="T")) for rank in range(8)]))
    assert culprits(found) == (True, "global", "process_stopped", "")


def test_a_rank_without_process_on_a_node_that_answered() -> None:
    ranks = [process for process in waiting() if process.rank != 5]
    found = verdict(job(ranks, **{"node-1": {"expected_ranks": (5,)}}))
    assert culprits(found) == (True, "local", "process_exit", "5")
    assert found.culprit_nodes == ("node-1",)
    assert rankset.fold(found.not_captured) == "5"


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ("unreachable", "its node did not answer"),
        ("timeout", "reading it took too long"),
        ("denied", "reading it was not permitted"),
        ("error", "reading it failed"),
    ],
)
def test_ranks_of_a_node_without_an_answer_may_live(outcome: str, reason: str) -> None:
    ranks = [process for process in waiting() if process.rank != 5]
    away = {"outcome": outcome, "error": "why", "expected_ranks": (5,)}
    for others in ({}, {"node-1": {"expected_ranks": (5,)}}):  # as where it ran before says, too
        found = verdict(job(ranks, **{"node-9": away}, **others))
        assert (found.cause, rankset.fold(found.not_captured)) == ("unknown", "5")
        assert reason in found.headline
        assert not any("has no such process" in one.text for one in found.evidence)


@pytest.mark.parametrize(
    "ended",
    [
        trainer(2, Sample(0.0, "gone"), outcome="gone"),
        trainer(2, Sample(0.0, "error", state="Z"), outcome="error"),
        trainer(2, sample("all_reduce"), Sample(5.0, "gone")),
    ],
)
def test_a_process_that_ended(ended: Process) -> None:
    assert culprits(verdict(job(waiting(ended))))[:3] == (True, "local", "process_exit")
    assert rankset.fold(verdict(job(waiting(ended))).culprit_ranks) == "2"


def test_a_job_that_ends_meanwhile_is_no_hang() -> None:
    found = verdict(job([trainer(rank, sample("all_reduce"), Sample(5.0, "gone")) for rank in range(8)]))
    assert found.hung is None
    assert not found.culprit_ranks


def test_a_node_that_did_not_answer() -> None:
    nodes = job([process for process in waiting() if process.rank is not None and process.rank < 4]).nodes
    silent = NodeAnswer("node-1", "unreachable", 0, 0, error="connection refused")
    found = verdict(JobCapture("job", (*nodes, silent), world_size=8))
    assert rankset.fold(found.culprit_ranks) == "4-7"
    assert rankset.fold(found.not_captured) == "4-7"
    assert found.cause == "unknown"


def test_ranks_that_may_not_be_read_are_neither_healthy_nor_guilty() -> None:
    denied = [trainer(rank, Sample(0.0, "denied", state="S"), outcome="denied") for rank in (6, 7)]
    found = verdict(job(waiting(trainer(1, *twice("lock")), *denied)))
    assert culprits(found) == (True, "local", "application", "1")
    assert rankset.fold(found.not_captured) == "6-7"
    assert not found.waiting_ranks & rankset.of([6, 7])
    assert any(not e.supports and "not permitted" in e.text for e in found.evidence)


def test_nothing_could_be_read() -> None:
    found = verdict(job([trainer(rank, Sample(0.0, "denied"), outcome="denied") for rank in range(8)]))
    assert (found.hung, found.scope, found.confidence) == (None, "undetermined", 0.0)
    assert "not permitted" in found.headline


def test_no_process_at_all() -> None:
    found = verdict(JobCapture("job", (NodeAnswer("n", "unreachable", 0, 0),)))
    assert (found.hung, found.scope, found.cause) == (None, "undetermined", "unknown")
    gone = NodeAnswer("n", "ok", 0, 0, error="no process of job j is left on n")
    found = verdict(JobCapture("j", (gone,)))
    assert (found.hung, found.scope, found.cause) == (None, "undetermined", "process_exit")
    assert found.headline.startswith("No process of the job is left")
    assert [one.text for one in found.evidence] == [gone.error]
    found = verdict(JobCapture("j", (gone, NodeAnswer("m", "unreachable", 0, 0))))
    assert found.cause == "unknown"  # there may be some on the node that did not answer


@pytest.mark.parametrize(
    ("wchan", "words"),
    [
        ("hrtimer_nanosleep", "a timer"),
        ("do_wait", "a child process"),
        ("locks_lock_inode_wait", "a file lock"),
        ("unix_stream_read_generic", "a socket"),
        ("futex_do_wait", "a lock"),
    ],
)
def test_the_kernel_says_what_unknown_code_waits_for(wchan: str, words: str) -> None:
    found = verdict(job(waiting(trainer(1, *twice("plain_lock", wchan=wchan)))))
    assert culprits(found) == (True, "local", "application", "1")
    assert any(words in e.text and wchan in e.text for e in found.evidence if e.kind == "kernel")


# --- two samples and counters


def test_a_busy_loop_hangs_though_its_line_changes() -> None:
    first, second = twice("busy", cpu=4.9, state="R")
    moved = second.threads[0].frames
    moved = (replace(moved[0], line=moved[0].line + 1), *moved[1:])
    second = replace(second, threads=(replace(second.threads[0], frames=moved),))
    report = analyse(job(waiting(trainer(3, first, second))), at=0.0)
    assert culprits(report.verdict) == (True, "local", "application", "3")
    assert next(p for p in report.process_infos if p.rank == 3).motion == "spinning"
    assert any("used a processor all the time" in e.text for e in report.verdict.evidence)


def test_a_retry_loop_that_does_nothing_hangs() -> None:
    first, second = twice("sleep", cpu=0.001)
    moved = second.threads[0].frames
    moved = (replace(moved[0], line=moved[0].line + 2), *moved[1:])
    second = replace(second, threads=(replace(second.threads[0], frames=moved),))
    assert culprits(verdict(job(waiting(trainer(3, first, second))))) == (True, "local", "application", "3")


def test_bytes_that_flow_are_progress_though_the_stack_stands() -> None:
    found = verdict(job(waiting(trainer(0, *twice("save", io=40 << 20)), wait="barrier")))
    assert culprits(found) == (False, "none", "checkpoint", "")
    assert any("MB" in e.text for e in found.evidence)


def test_waiters_that_keep_waking_belong_to_a_job_that_moves() -> None:
    straggler = trainer(1, *twice("sleep", cpu=0.05, switches=25))
    others = [trainer(rank, *twice("all_reduce", cpu=0.06, switches=30)) for rank in range(8) if rank != 1]
    assert culprits(verdict(job([straggler, *others]))) == (False, "none", "none", "")


def test_waiters_that_exchange_data_belong_to_a_job_that_moves() -> None:
    """A straggler sleeps whenever it is looked at; what the others send and receive meanwhile tells."""

    def ranks(io: int) -> list[Process]:
        return [trainer(rank, *twice("sleep" if rank == 3 else "backward", io=io)) for rank in range(8)]

    assert culprits(verdict(job(ranks(300_000)))) == (False, "none", "none", "")
    assert culprits(verdict(job(ranks(3_000)))) == (True, "local", "application", "3")


def growing(name: str, by: int) -> list[Sample]:
    """A busy thread of a process whose peak of memory grew by so many bytes."""
    first, second = twice(name, cpu=4.9, state="R")
    return [
        replace(one, counters=replace(one.counters, peak_resident_bytes=(1 << 30) + grown))
        for one, grown in ((first, 0), (second, by))
    ]


def test_memory_that_fills_is_progress_though_the_stack_stands() -> None:
    assert verdict(job(waiting(trainer(3, *growing("lock", 40 << 20))))).hung is False
    assert verdict(job(waiting(trainer(3, *growing("lock", 4096))))).hung is True


def test_native_code_everywhere_is_slow_as_far_as_can_be_told() -> None:
    found = verdict(job([trainer(rank, *growing("linear", 0)) for rank in range(8)]))
    assert culprits(found) == (None, "undetermined", "compute", "")
    assert "slow as far as can be told" in found.headline
    # A few of them computing while the others wait are suspect all the same.
    assert culprits(verdict(job(waiting(trainer(3, *growing("linear", 0)))))) == (
        True,
        "local",
        "compute",
        "3",
    )


def test_a_stopped_worker_is_named_not_its_rank() -> None:
    worker = Process(77, "node-0", "dataloader", 3, "ok", worker=1, samples=twice("worker_busy", state="T"))
    found = verdict(job([*waiting(trainer(3, *twice("loader"))), worker]))
    assert culprits(found) == (True, "local", "process_stopped", "3")
    assert "waits for its DataLoader worker 1 (pid 77), which is stopped (state T)" in found.headline


def test_a_result_is_waited_for_where_it_is_made() -> None:
    """The main thread waits for a future; of its threads one saves, and one of a pool has nothing to do."""
    lib = "/usr/lib/python3.12"
    result = (
        Frame("wait", f"{lib}/threading.py", 355),
        Frame("result", f"{lib}/concurrent/futures/_base.py", 451),
    )
    idle = (
        Frame("get", f"{lib}/queue.py", 171),
        Frame(
            "drain", "/opt/venv/lib/python3.12/site-packages/torch/distributed/checkpoint/filesystem.py", 80
        ),
    )
    threads = (
        Thread(1, "MainThread", 100, False, False, (*result, Frame("main", "/home/ml/run.py", 9))),
        Thread(2, "ckpt", 101, False, False, idle),
        Thread(3, "pool_0", 102, True, False, stack("read")),
    )
    found = verdict(job(waiting(trainer(3, Sample(0.0, "ok", threads=threads, state="S")))))
    assert culprits(found)[1:] == ("local", "data", "3")


def test_a_few_that_wait_in_another_way_than_nearly_all() -> None:
    ranks = [trainer(rank, sample("synchronize" if rank == 5 else "fsdp2")) for rank in range(8)]
    assert culprits(verdict(job(ranks)))[1:] == ("local", "communication", "5")


def test_a_few_that_came_to_the_same_unknown_code_another_way() -> None:
    def within(caller: str) -> Sample:
        path = "/home/ml/sim/fabric.py"
        return sample(
            (Frame("spin", path, 9), Frame(caller, path, 50), Frame("main", "/home/ml/sim/run.py", 3))
        )

    ranks = [trainer(rank, within("halo" if rank == 2 else "ring")) for rank in range(8)]
    found = verdict(job(ranks))
    assert culprits(found)[1:] == ("local", "application", "2")
    assert "by way of halo" in found.headline


def test_spinning_waiters_prove_nothing() -> None:
    ranks = [trainer(rank, *twice("synchronize", cpu=5.0, state="R")) for rank in range(8)]
    assert culprits(verdict(job(ranks))) == (True, "global", "communication", "")


def test_a_waiting_loader_polls_and_does_not_move() -> None:
    first, second = twice("loader")
    shorter = second.threads[0].frames[1:]
    second = replace(second, threads=(replace(second.threads[0], frames=shorter),))
    found = verdict(job(waiting(trainer(4, first, second))))
    assert culprits(found) == (True, "local", "data", "4")


def test_native_code_of_a_module_computes_only_on_a_processor() -> None:
    for cpu in (5.0, 0.6):  # alone on its processor, and crowded
        computing = trainer(2, *twice("native_in_module", cpu=cpu, state="R"))
        assert culprits(verdict(job(waiting(computing)))) == (True, "local", "compute", "2")
    locked = trainer(2, *twice("native_in_module", cpu=0.0, state="S"))
    assert culprits(verdict(job(waiting(locked)))) == (True, "local", "application", "2")


def test_unknown_code_that_burns_a_processor_is_native_without_the_interpreters_lock() -> None:
    first, second = twice("sleep", cpu=4.9, state="R")
    own = (Frame("whiten", "/home/ml/proj/stats.py", 12), Frame("<module>", "/home/ml/proj/run.py", 3))

    def looks(gil: bool) -> str:
        samples = [
            replace(one, threads=(replace(one.threads[0], frames=own, owns_gil=gil),))
            for one in (first, second)
        ]
        return verdict(job(waiting(trainer(3, *samples)))).cause

    assert (looks(gil=False), looks(gil=True)) == ("compute", "application")


def test_two_still_samples_are_surer_than_one() -> None:
    one = [trainer(rank, sample("lock" if rank == 1 else "all_reduce")) for rank in range(8)]
    both = waiting(trainer(1, *twice("lock")))
    assert verdict(job(both)).confidence > verdict(job(one)).confidence


def test_a_stopped_rank_outweighs_a_few_that_still_move() -> None:
    moving = trainer(0, *twice("linear", "conv", cpu=3.0))
    found = verdict(job(waiting(moving, trainer(6, *twice("all_reduce", state="T")))))
    assert culprits(found) == (True, "local", "process_stopped", "6")


# --- NCCL and logs


def test_ras_names_a_rank_where_stacks_cannot() -> None:
    fact = NcclFact(
        "behind", 3, "rank 3 has launched 41 AllReduce operations where others launched 42", alike=1, size=8
    )
    found = verdict(job(waiting(), **{"node-0": {"nccl_facts": (fact,)}, "node-1": {"nccl_facts": (fact,)}}))
    assert culprits(found) == (True, "local", "communication", "3")
    assert [e.text for e in found.evidence].count(fact.text) == 1


def test_ras_does_not_blame_the_majority_or_a_rank_it_cannot_tell() -> None:
    facts = (
        *(NcclFact("behind", rank, f"rank {rank} is behind", alike=6, size=8) for rank in range(6)),
        NcclFact("dead", None, "a process is dead"),
        NcclFact("dead", 10**9, "a rank that cannot be"),
    )
    assert culprits(verdict(job(waiting(), **{"node-0": {"nccl_facts": facts}}))) == (
        True,
        "global",
        "communication",
        "",
    )


def test_ras_against_the_stacks_is_evidence_against() -> None:
    fact = NcclFact("behind", 3, "rank 3 is behind", alike=1, size=8)
    found = verdict(job(waiting(trainer(1, *twice("lock"))), **{"node-0": {"nccl_facts": (fact,)}}))
    assert culprits(found) == (True, "local", "application", "1")
    assert any(not e.supports and e.text == "rank 3 is behind" for e in found.evidence)


def watchdog(rank: int, sequence: int) -> str:
    return (
        f"[rank{rank}]:[E1130 01:22:33.1 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={sequence}, OpType=ALLREDUCE, NumelIn=1) ran for 600000 milliseconds"
    )


def test_the_rank_that_did_not_time_out_is_behind() -> None:
    lines = tuple(watchdog(rank, 42) for rank in range(8) if rank != 2)
    found = verdict(job(waiting(), **{"node-0": {"job_log": lines}}))
    assert culprits(found) == (True, "local", "communication", "2")


def test_the_rank_that_enqueued_less_is_behind() -> None:
    lines = tuple(
        f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Timeout at NCCL work: {41 if rank == 6 else 42}, "
        f"last enqueued NCCL work: {41 if rank == 6 else 42}, last completed NCCL work: 40."
        for rank in range(8)
    )
    assert culprits(verdict(job(waiting(), **{"node-0": {"job_log": lines}}))) == (
        True,
        "local",
        "communication",
        "6",
    )


def timed_out(rank: int, work: str, group: str = "") -> str:
    return (
        f"[rank{rank}]:[E1130 01:22:33.1 ProcessGroupNCCL.cpp:616] [{group or f'Rank {rank}'}] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum=52323, {work}, Timeout(ms)=600000) ran for 600010 ms"
    )


BUCKET, NORM = "OpType=ALLREDUCE, NumelIn=18485760", "OpType=ALLREDUCE, NumelIn=1"


@pytest.mark.parametrize(
    ("odd", "usual", "told"),
    [
        (BUCKET, NORM, "Collective 52323 was ALLREDUCE of 18,485,760 elements on rank 2, and ALLREDUCE of 1 elements"),
        ("OpType=BROADCAST, NumelIn=4", NORM, "was BROADCAST of 4 elements on rank 2, and ALLREDUCE of 1 elements"),
        ("OpType=ALLTOALL_BASE, NumelIn=9", NORM, "was ALLTOALL_BASE on rank 2, and ALLREDUCE of 1 elements"),
    ],
)  # fmt: skip
def test_the_rank_whose_collective_of_that_number_is_another_one(odd: str, usual: str, told: str) -> None:
    lines = tuple(timed_out(rank, odd if rank == 2 else usual) for rank in range(8))
    found = verdict(job(waiting(), **{"node-0": {"job_log": lines}}))
    assert culprits(found) == (True, "local", "communication", "2")
    assert any(told in evidence.text for evidence in found.evidence)


@pytest.mark.parametrize(
    "lines",
    [
        # Ranks may have different parts in these.
        [timed_out(rank, f"OpType=ALLTOALL_BASE, NumelIn={100 + rank // 7}") for rank in range(8)],
        # Half and half blames nobody.
        [timed_out(rank, BUCKET if rank % 2 else NORM) for rank in range(8)],
        # Other process groups count their own collectives.
        [timed_out(rank, BUCKET if rank == 2 else NORM, "Rank 0" if rank == 2 else "") for rank in range(8)],
        [
            timed_out(r, BUCKET if r == 2 else NORM, f"PG ID {int(r == 2)} PG GUID 9 Rank {r}")
            for r in range(8)
        ],
        [timed_out(r, BUCKET if r == 2 else NORM, f"PG {'tp' if r == 2 else 0} Rank {r}") for r in range(8)],
    ],
    ids=["parts", "halves", "rank-of-a-group", "group-1", "named-group"],
)
def test_collectives_that_may_well_differ_blame_nobody(lines: list[str]) -> None:
    found = verdict(job(waiting(), **{"node-0": {"job_log": tuple(lines)}}))
    assert culprits(found) == (True, "global", "communication", "")


@pytest.mark.parametrize(
    "line",
    [
        "[rank5]: Traceback (most recent call last):",
        "[default1]:Traceback (most recent call last):",  # local rank 1 of node-1
        "5: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "[1,5]<stderr>: Segmentation fault (core dumped)",
    ],
)
def test_an_error_on_one_rank(line: str) -> None:
    found = verdict(job(waiting(), **{"node-1": {"job_log": (line,)}}))
    assert culprits(found) == (True, "local", "application", "5")


def test_errors_everywhere_blame_nobody() -> None:
    lines = tuple(f"[rank{rank}]: RuntimeError: Connection closed by peer" for rank in range(8))
    assert culprits(verdict(job(waiting(), **{"node-0": {"job_log": lines}}))) == (
        True,
        "global",
        "communication",
        "",
    )


def test_kernel_log_of_the_culprits_node_supports() -> None:
    answers = {
        "node-0": {"kernel_log": ("nfs: server a not responding",)},
        "node-1": {"kernel_log": ("NVRM: Xid 79",)},
    }
    found = verdict(job(waiting(trainer(5, *twice("linear"))), **answers))
    lines = {e.text: e.supports for e in found.evidence if e.kind == "kernel_log"}
    assert lines == {"node-0: nfs: server a not responding": False, "node-1: NVRM: Xid 79": True}


# --- groups


def test_smallest_group_that_explains() -> None:
    stage = [trainer(rank, *twice("loader")) for rank in (2, 3)]
    found = verdict(job(waiting(*stage)), sizes=ParallelSizes(tensor=2, pipeline=2))
    assert found.group == "tensor-parallel group 1"
    assert "all of tensor-parallel group 1" in found.headline


def test_sizes_from_the_command_line() -> None:
    line = "python pretrain.py --pipeline-model-parallel-size 4 --tensor-model-parallel-size=1"
    ranks = [
        replace(p, command_line=line) for p in waiting(*[trainer(rank, *twice("loader")) for rank in (4, 5)])
    ]
    assert verdict(job(ranks)).group == "pipeline stage 2"


@pytest.mark.parametrize(
    ("said", "group"),
    [
        ({"PP_SIZE": "4"}, "pipeline stage 2"),
        ({"PIPELINE_MODEL_PARALLEL_SIZE": "4", "HF_TOKEN": "x"}, "pipeline stage 2"),
        ({"TENSOR_PARALLEL_SIZE": "2"}, "tensor-parallel group 2"),
        ({"TENSOR_PARALLEL_SIZE": "9" * 5000}, None),
    ],
)
def test_sizes_from_what_a_capture_takes_of_the_environment(said: dict[str, str], group: str | None) -> None:
    taken = {"command_line": "python train.py", "environment": allowed_environment(said)}
    ranks = [
        replace(p, **taken)  # type: ignore[arg-type]
        for p in waiting(*[trainer(rank, *twice("loader")) for rank in (4, 5)])
    ]
    assert verdict(job(ranks)).group == group


def test_same_gpu_of_every_node() -> None:
    ranks = [trainer(rank, *twice("linear")) for rank in (1, 5)]
    assert verdict(job(waiting(*ranks))).group == "GPU 1 of every node"


def test_scattered_culprits_are_no_group() -> None:
    ranks = [trainer(rank, *twice("linear")) for rank in (1, 6)]
    assert verdict(job(waiting(*ranks))).group is None


# --- threads, child processes and merging


def child(pid: int, name: str, io: int = 0, **fields: Any) -> Process:
    """A program in another language: counters, and no stacks."""
    samples = [replace(one, outcome="not_python", threads=()) for one in twice("sleep", io=io)]
    return Process(pid, "node-0", "other", 3, "not_python", name=name, samples=tuple(samples), **fields)


def test_a_child_process_is_named_and_its_bytes_are_progress() -> None:
    lib = "/usr/lib/python3.12"
    run = (
        Frame("wait", f"{lib}/subprocess.py", 1264),
        Frame("run", f"{lib}/subprocess.py", 550),
        Frame("probe", "/home/ml/health.py", 20),
    )
    waits = [replace(one, threads=(replace(one.threads[0], frames=run),)) for one in twice("sleep")]
    tracker = sample((Frame("main", f"{lib}/multiprocessing/resource_tracker.py", 200),))
    helpers = [
        child(70, "nvidia-smi"),
        Process(71, "node-0", "other", 3, "ok", name="python", samples=(tracker,)),
    ]
    found = verdict(job([*waiting(trainer(3, *waits)), *helpers]))
    assert culprits(found) == (True, "local", "application", "3")
    assert "Rank 3 (on node-0) waits for its child process nvidia-smi (pid 70) in probe" in found.headline

    copies = verdict(job([*waiting(trainer(3, *waits)), child(70, "rclone", io=50 << 20)]))
    assert culprits(copies) == (False, "none", "none", "")


def test_main_thread_that_joins_is_followed_into_the_thread_that_works() -> None:
    join = (Frame("join", "/usr/lib/python3.12/threading.py", 1149), Frame("main", "/home/ml/run.py", 9))

    def joined(name: str) -> Sample:
        threads = (
            Thread(1, "MainThread", 100, False, False, join),
            Thread(2, "trainer-0", 101, True, False, stack(name)),
        )
        return Sample(0.0, "ok", threads=threads, state="S")

    ranks = [trainer(rank, joined("lock" if rank == 3 else "all_reduce")) for rank in range(8)]
    assert culprits(verdict(job(ranks))) == (True, "local", "application", "3")


SITE = "/opt/venv/lib/python3.12/site-packages/torch"
APPLY = Frame("apply", f"{SITE}/autograd/function.py", 310)
ENGINE = {
    "own": (
        Frame("sort_tokens", "/home/ml/ops/routed.py", 140),
        Frame("backward", "/home/ml/ops/routed.py", 88),
        APPLY,
    ),
    "all_to_all": (Frame("all_to_all_single", f"{SITE}/distributed/distributed_c10d.py", 4200), APPLY),
    "reduce_scatter": (
        Frame("reduce_scatter_tensor", f"{SITE}/distributed/distributed_c10d.py", 4100),
        APPLY,
    ),
    "recomputes": (
        Frame("forward", "/home/ml/models/block.py", 40),
        Frame("_call_impl", f"{SITE}/nn/modules/module.py", 1762),
        Frame("backward", f"{SITE}/utils/checkpoint.py", 300),
        APPLY,
    ),
}


def in_backward(engine: str, name: str | None = "pt_autograd_0", at: float = 0.0) -> Sample:
    """A trainer on a GPU: the main thread waits for autograd's engine, whose thread runs Python code."""
    threads = (
        Thread(2, name, 101, True, False, ENGINE[engine]),
        Thread(1, "MainThread", 100, False, False, stack("backward")),
    )
    return Sample(at, "ok", threads=threads, state="S")


@pytest.mark.parametrize("name", ["pt_autograd_0", None])
@pytest.mark.parametrize(
    ("theirs", "others", "expected"),
    [
        ("own", "all_to_all", (True, "local", "application", "3")),
        ("all_to_all", "reduce_scatter", (True, "local", "communication", "3")),
        ("reduce_scatter", "reduce_scatter", (True, "global", "communication", "")),
        # Where everybody recomputes, operators may wait for the device: no global hang in the job's code.
        ("recomputes", "recomputes", (True, "global", "communication", "")),
    ],
)
def test_backward_is_followed_into_the_engines_thread(
    name: str | None, theirs: str, others: str, expected: tuple[bool, str, str, str]
) -> None:
    ranks = [trainer(rank, in_backward(theirs if rank == 3 else others, name)) for rank in range(8)]
    assert culprits(verdict(job(ranks))) == expected


def test_an_engine_that_gets_on_is_progress() -> None:
    ranks = [trainer(r, in_backward("own"), in_backward("all_to_all", at=5.0)) for r in range(8)]
    assert verdict(job(ranks)).hung is False


def test_nodes_that_merged_themselves_give_the_same_report() -> None:
    capture = job(waiting(trainer(1, *twice("lock"))), **{"node-1": {"job_log": (watchdog(3, 4),)}})
    merged = analyse_digest(digest_trees([premerge(node) for node in capture.nodes]), job_id="job", at=0.0)
    backwards = analyse_digest(
        digest_trees([premerge(n) for n in reversed(capture.nodes)]), job_id="job", at=0.0
    )
    whole = analyse(capture, at=0.0)
    assert to_json(merged) == to_json(whole)
    assert merged.trees == whole.trees
    assert backwards.trees == whole.trees
    assert backwards.verdict.culprit_ranks == whole.verdict.culprit_ranks


def test_motion_of_every_thread() -> None:
    def one(at: float, part: int) -> Sample:
        shift = (Frame("beat", "/job/beat.py", 20 + part),)
        threads = (
            Thread(1, "MainThread", 100, True, False, stack("lock")),
            Thread(2, "heartbeat", 101, False, False, shift),
            Thread(3, "spinner", 102, True, False, stack("busy")),
            Thread(4, None, 103, False, False, stack("tqdm")),
        )
        kernel = tuple(
            KernelThread(
                tid, "python", "S", counters=Counters(cpu_seconds=part * (4.9 if tid == 102 else 0.0))
            )
            for tid in (100, 101, 102, 103)
        )
        return Sample(at, "ok", threads=threads, state="S", kernel_threads=kernel)

    found = to_json(analyse(job(waiting(trainer(1, one(0.0, 0), one(5.0, 1)))), at=0.0))
    (info,) = (info for info in found["process_infos"] if info["Rank"] == 1)
    assert info["Motion"] == "frozen"
    assert info["ThreadMotions"] == [
        ["heartbeat", "progressing"],
        ["spinner", "spinning"],
        ["unknown", "frozen"],
    ]
