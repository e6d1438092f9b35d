"""Stacks that people pasted into public threads, made into jobs, against what was to blame."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from snapshotter.stacks import rankset
from snapshotter.stacks.model import Frame, JobCapture, NodeAnswer, Process, Role, Sample, Thread
from snapshotter.stacks.premerge import digest_trees, premerge
from snapshotter.stacks.report import Report, analyse, analyse_digest, to_json
from tests.programs.reported_stacks import JOBS, ONE, Job, threads

NATIVE = [name for name in JOBS if name.startswith("native_")]


def sample(text: str, at: float) -> Sample:
    found = [
        Thread(n, name, 100 + n, False, False, tuple(Frame(f, file, line, None, so) for f, file, line, so in frames))
        for n, (name, frames) in enumerate(threads(text))
    ]  # fmt: skip
    return Sample(at, "ok", threads=tuple(found), state="S")


def processes(job: Job, ranks: int, samples: int) -> Iterator[Process]:
    odd = job.who(ranks) if job.odd else set()
    for rank in range(ranks):
        roles: list[tuple[Role, str]] = [("trainer", job.odd if rank in odd else job.others)]
        if job.worker:
            roles.append(("dataloader", job.worker if rank in odd else job.idle))
        for role, text in roles:
            taken = tuple(sample(text, 10.0 * number) for number in range(samples))
            yield Process(100, f"node-{rank // 8}", role, rank, "ok", samples=taken, worker=0)


def capture(job: Job, ranks: int, samples: int = 1) -> JobCapture:
    found = list(processes(job, ranks, samples))
    nodes = sorted({process.node for process in found})
    answers = (NodeAnswer(n, "ok", 0, 0, processes=tuple(p for p in found if p.node == n)) for n in nodes)
    return JobCapture("job", tuple(answers))


def report(name: str, ranks: int = 8, samples: int = 1) -> Report:
    return analyse(capture(JOBS[name], ranks, samples), at=0.0)


@pytest.mark.parametrize("ranks", [8, 64])
@pytest.mark.parametrize("name", JOBS)
def test_blames_who_was_to_blame(name: str, ranks: int) -> None:
    job = JOBS[name]
    found = report(name, ranks).verdict
    wanted = job.who(ranks) if job.odd and job.blamed else set()
    assert rankset.fold(found.culprit_ranks) == rankset.fold(rankset.of(sorted(wanted))), found.headline
    assert found.hung is True
    assert found.scope == ("local" if wanted else "global")
    assert found.cause in job.causes.split(), found.headline


@pytest.mark.parametrize(
    "name", ["native_loader", "actor_thread", "actor_session", "other_way", "one_builds"]
)
def test_two_samples_and_merged_nodes_say_the_same(name: str) -> None:
    found = capture(JOBS[name], 16, samples=2)
    merged = analyse_digest(digest_trees(premerge(node) for node in found.nodes), job_id="job", at=0.0)
    whole = analyse(found, at=0.0)
    assert to_json(merged) == to_json(whole)
    assert {p.motion for p in whole.process_infos if p.role == "trainer"} == {"frozen"}
    once = analyse(capture(JOBS[name], 16), at=0.0).verdict
    assert (whole.verdict.culprit_ranks, whole.verdict.cause) == (once.culprit_ranks, once.cause)


@pytest.mark.parametrize("name", NATIVE)
def test_c_frames_stay_in_the_tree_and_out_of_the_sentences(name: str) -> None:
    found = report(name)
    tree = found.tree()
    assert tree is not None
    assert any(node.path.startswith("lib") for _, node in tree.walk())
    told = [found.verdict.headline, *(evidence.text for evidence in found.verdict.evidence)]
    assert not [text for text in told if ".so" in text or "0x7" in text]


def test_a_c_frame_that_changes_is_no_progress() -> None:
    job = JOBS["native_python_loop"]
    later = Job(job.others.replace("pthread_cond_wait", "sched_yield"), job.causes, job.odd)
    first, second = (list(processes(one, 8, 1)) for one in (job, later))
    both = [
        Process(100, a.node, a.role, a.rank, "ok", samples=(a.samples[0], sample(text, 10.0)))
        for a, text in zip(first, (job.odd if b.rank == ONE else later.others for b in second), strict=True)
    ]
    found = analyse(JobCapture("job", (NodeAnswer("node-0", "ok", 0, 0, processes=tuple(both)),)), at=0.0)
    assert {p.motion for p in found.process_infos} == {"frozen"}
    assert found.verdict.hung is True


def test_a_thread_that_trains_is_the_one_that_moves() -> None:
    job = JOBS["actor_thread"]
    moved = Job(
        job.others.replace("loop.py:95", "loop.py:96"), "", job.odd.replace("loop.py:60", "loop.py:61")
    )
    texts = [(job.odd, moved.odd) if rank == ONE else (job.others, moved.others) for rank in range(8)]
    found = [
        Process(100, "node-0", "trainer", rank, "ok", samples=(sample(a, 0.0), sample(b, 10.0)))
        for rank, (a, b) in enumerate(texts)
    ]
    verdict = analyse(
        JobCapture("job", (NodeAnswer("node-0", "ok", 0, 0, processes=tuple(found)),)), at=0.0
    ).verdict
    assert verdict.hung is False


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "stateful_loader",
            "waits for its DataLoader worker 0 (pid 100), which loads data in read (response.py:100)",
        ),
        ("one_builds", "Rank 0: compiles in _run_ninja_build (cpp_extension.py:1900)"),
        (
            "one_builds",
            "7 ranks wait for a lock in wait (file_baton.py:42) alike: taken to wait",
        ),
        ("stale_lock", "All 8 ranks wait for a lock in wait (file_baton.py:42); none of them holds it."),
        ("other_way", "Rank 5: all_gather by way of forward_batch_generation (eagle_worker_v2.py:1246)."),
        (
            "two_ways",
            "Ranks 0-2 wait in all_gather_into_tensor (distributed_c10d.py:4049) by way of forward_batch",
        ),
        (
            "two_ways",
            "Ranks 3-7 wait in all_gather_into_tensor (distributed_c10d.py:4049) by way of forward_batch",
        ),
    ],
)
def test_says_why(name: str, text: str) -> None:
    found = report(name).verdict
    assert any(text in told for told in (found.headline, *(evidence.text for evidence in found.evidence)))
