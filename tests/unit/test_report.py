"""The report's JSON is a contract: names, folding, order."""

from __future__ import annotations

import json

from snapshotter.stacks import rankset
from snapshotter.stacks.classes import MAX_SOURCES
from snapshotter.stacks.model import Frame, JobCapture, NodeAnswer, Process, Sample, Thread
from snapshotter.stacks.report import analyse, to_json

WAIT = Frame("wait", "/usr/lib/python3.12/threading.py", 655, "threading.py")
TRAIN = Frame("train", "/job/train.py", 9, "train.py")
READ = Frame("read", "/job/shard.py", 344, "job/shard.py")
REDUCE = Frame("all_reduce", "/x/site-packages/torch/distributed/distributed_c10d.py", 2896, "c10d.py")


def process(
    rank: int | None, *stacks: tuple[str, tuple[Frame, ...]], node: str = "gpu33", **fields: object
) -> Process:
    threads = tuple(Thread(n, name, n, True, False, frames) for n, (name, frames) in enumerate(stacks, 1))
    values: dict[str, object] = {
        "role": "trainer",
        "outcome": "ok",
        "name": "python",
        "gpu": "0",
        "pod": "worker-0",
    }
    values |= {"samples": (Sample(0.0, "ok", threads=threads, state="S"),)} | fields
    return Process(pid=100, node=node, rank=rank, **values)  # type: ignore[arg-type]


def capture(*processes: Process) -> JobCapture:
    return JobCapture("llm-7b", (NodeAnswer("gpu33", "ok", 0, 0, processes=processes),))


def small() -> JobCapture:
    helper = ("tqdm_monitor", (WAIT,))
    return capture(
        *(process(rank, ("MainThread", (REDUCE, TRAIN)), helper) for rank in (0, 1, 3)),
        process(2, ("MainThread", (READ, TRAIN)), helper),
        process(2, ("MainThread", (WAIT,)), role="dataloader", worker=1),
        process(None, ("MainThread", (WAIT,)), role="launcher"),
        process(
            4, role="trainer", outcome="denied", samples=(Sample(0.0, "denied", "not permitted", state="S"),)
        ),
    )


def test_fields_of_the_report() -> None:
    found = to_json(analyse(small(), at=1796000000.0))
    assert json.loads(json.dumps(found)) == found
    assert list(found) == [
        "schema_version",
        "summary",
        "verdict",
        "equivalence_classes",
        "function_stats",
        "process_infos",
    ]
    assert found["schema_version"] == 1
    assert found["summary"] == {
        "analysis_time": "2026-11-30T00:53:20+00:00",
        "job_id": "llm-7b",
        "node_name": "gpu33",
        "total_processes": 7,
        "successful_processes": 6,
        "failed_processes": 1,
        "total_function_calls": 14,
        "unique_functions": 4,
    }
    verdict = found["verdict"]
    assert verdict["culprit_ranks"] == "2"
    assert verdict["waiting_ranks"] == "0-1/3"
    assert verdict["not_captured"] == "4"
    assert verdict["culprit_nodes"] == ["gpu33"]
    assert set(verdict) >= {"hung", "scope", "cause", "confidence", "headline", "evidence"}
    assert all(set(evidence) == {"kind", "supports", "text"} for evidence in verdict["evidence"])


def test_functions_most_frequent_first() -> None:
    stats = to_json(analyse(small(), at=0.0))["function_stats"]
    assert [(stat["function"], stat["count"]) for stat in stats] == [
        ("wait /usr/lib/python3.12/threading.py:655", 6),
        ("train /job/train.py:9", 4),
        ("all_reduce /x/site-packages/torch/distributed/distributed_c10d.py:2896", 3),
        ("read /job/shard.py:344", 1),
    ]
    assert stats[2]["sources"] == ["gpu33-rank0", "gpu33-rank1", "gpu33-rank3"]
    assert stats[2]["ranks"] == "0-1/3"
    assert set(stats[0]["sources"]) == {
        *(f"gpu33-rank{rank}" for rank in range(4)),
        "gpu33-rank2.dataloader-1",
        "gpu33-launcher-100",
    }


def test_classes_rarest_first_with_frames_innermost_first() -> None:
    classes = to_json(analyse(small(), at=0.0))["equivalence_classes"]
    assert [(c["count"], c["role"], c["thread"], c["ranks"]) for c in classes] == [
        (1, "trainer", "MainThread", "2"),
        (1, "dataloader", "MainThread", "2"),
        (1, "launcher", "MainThread", ""),
        (3, "trainer", "MainThread", "0-1/3"),
        (4, "trainer", "tqdm_monitor", "0-3"),
    ]
    assert classes[0]["stack"][0] == {
        "name": "read",
        "filename": "/job/shard.py",
        "short_filename": "job/shard.py",
        "module": None,
        "line": 344,
    }


def test_process_infos() -> None:
    infos = to_json(analyse(small(), at=0.0))["process_infos"]
    assert len(infos) == 7
    denied = next(info for info in infos if info["Rank"] == 4)
    assert denied["Outcome"] == "denied"
    assert denied["Error"] == "not permitted"
    worker = next(info for info in infos if info["Role"] == "dataloader")
    wanted = {
        "Rank": 2,
        "GpuID": "0",
        "PodName": "worker-0",
        "ProcessName": "python",
        "Node": "gpu33",
        "Pid": 100,
    }
    assert worker.items() >= {**wanted, "Worker": 1, "State": "S", "Outcome": "ok"}.items()


def test_trees_by_role_with_the_third_set() -> None:
    report = analyse(small(), at=0.0)
    trainer = report.tree("trainer")
    assert trainer is not None
    assert rankset.fold(trainer.captured) == "0-3"
    assert [(part.reason, rankset.fold(part.ranks)) for part in trainer.not_captured] == [("denied", "4")]
    labels = [trainer.label(node) for _, node in trainer.walk()]
    assert "MainThread@read@/job/shard.py:344@2|0-1/3" in labels
    assert [tree.role for tree in report.trees] == ["trainer", "dataloader"]


def test_ranks_that_nobody_saw_are_missing() -> None:
    found = capture(*(process(rank, ("MainThread", (REDUCE,)), world_size=6) for rank in range(4)))
    report = analyse(found, at=0.0)
    assert rankset.fold(report.verdict.not_captured) == "4-5"
    tree = report.tree()
    assert tree is not None
    assert [(part.reason, rankset.fold(part.ranks)) for part in tree.not_captured] == [("missing", "4-5")]


def test_a_part_of_a_job_is_not_taken_for_the_whole() -> None:
    found = capture(*(process(rank, ("MainThread", (REDUCE,))) for rank in (1000, 1001)))
    assert analyse(found, at=0.0).verdict.not_captured == rankset.EMPTY


def test_two_processes_that_claim_one_rank() -> None:
    broken = process(1, outcome="timeout", samples=(Sample(0.0, "timeout"),))
    good = process(1, ("MainThread", (READ,)))
    others = [process(rank, ("MainThread", (REDUCE,))) for rank in (0, 2)]
    verdict = analyse(capture(*others, broken, good), at=0.0).verdict
    assert rankset.fold(verdict.culprit_ranks) == "1"
    assert verdict.not_captured == rankset.EMPTY


def test_long_source_lists_are_cut_and_ranks_are_not() -> None:
    many = [process(rank, ("MainThread", (REDUCE,))) for rank in range(MAX_SOURCES + 10)]
    (stat,) = analyse(capture(*many), at=0.0).function_stats
    assert len(stat.sources) == MAX_SOURCES
    assert stat.ranks.bit_count() == stat.count == MAX_SOURCES + 10


def test_empty_capture() -> None:
    found = to_json(analyse(JobCapture("job", ()), at=0.0))
    assert found["verdict"]["hung"] is None
    assert found["equivalence_classes"] == found["function_stats"] == found["process_infos"] == []


def test_threads_without_name_or_frames() -> None:
    odd = Thread(1, None, None, True, False, ())
    processes = [process(rank, samples=(Sample(0.0, "ok", threads=(odd,)),)) for rank in range(2)]
    report = analyse(capture(*processes), at=0.0)
    assert report.verdict.cause == "unknown"
    (only,) = report.equivalence_classes
    assert (only.thread, only.stack) == ("unknown", ())
