"""A job whose nodes merged themselves, as it comes over the wire, gives the report of all its stacks."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshotter.bundle import reader
from snapshotter.capture.wire import AnswerReader, Order, reply
from snapshotter.dumps import load_dumps
from snapshotter.gathered import Gathered
from snapshotter.stacks.model import (
    Counters,
    Frame,
    JobCapture,
    KernelThread,
    NodeAnswer,
    Process,
    Sample,
    Thread,
)
from snapshotter.stacks.premerge import NodeTree, digest_trees, pack
from snapshotter.stacks.report import Report, analyse, analyse_digest, to_json
from tests.programs import make_dumps

BUNDLES = sorted(
    path for path in (Path(__file__).parents[1] / "fixtures" / "bundles").iterdir() if path.is_dir()
)


def over_the_wire(capture: JobCapture) -> list[Gathered]:
    wire = AnswerReader()
    return [wire.read(reply(answer, Order(with_tree=True))) for answer in capture.nodes]


def from_trees(trees: list[NodeTree], job_id: str) -> Report:
    return analyse_digest(digest_trees(trees), job_id=job_id, at=0.0)


def check(capture: JobCapture) -> None:
    """Merged by nodes, or by groups of nodes before the centre, in any order: the same report and trees."""
    gathered = over_the_wire(capture)
    assert tuple(one.whole() for one in gathered) == capture.nodes
    whole = analyse(capture, at=0.0)
    merged = from_trees([one.tree for one in gathered], capture.job_id)
    assert to_json(merged) == to_json(whole)
    assert merged.trees == whole.trees

    trees = [one.tree for one in over_the_wire(capture)]
    random.Random(1).shuffle(trees)
    half = len(trees) // 2
    parts = [pack(digest_trees(part)) for part in (trees[:half], trees[half:])]
    grouped = from_trees(parts, capture.job_id)
    assert grouped.trees == whole.trees
    assert grouped.verdict.culprit_ranks == whole.verdict.culprit_ranks


@pytest.mark.parametrize("folder", BUNDLES, ids=lambda path: path.name)
def test_of_stored_captures(folder: Path) -> None:
    check(reader.open_folder(folder).capture())


@pytest.mark.parametrize("scenario", [*make_dumps.scenarios(8)])
def test_of_every_scenario(scenario: str, tmp_path: Path) -> None:
    make_dumps.write(tmp_path, scenario, 8, workers=1, threads=2)
    check(by_node(load_dumps(tmp_path)[0]))


def by_node(capture: JobCapture) -> JobCapture:
    """The ranks of one folder parted into nodes of two, with pids of their own."""
    found: dict[str, list[Process]] = {}
    for pid, process in enumerate(capture.processes, 1):
        node = f"node-{(process.rank or 0) // 2}"
        found.setdefault(node, []).append(replace(process, node=node, pid=pid))
    nodes = [NodeAnswer(node, "ok", 0.0, 0.0, "job", processes=tuple(some)) for node, some in found.items()]
    return JobCapture("job", tuple(nodes))


frames = st.builds(
    Frame,
    name=st.sampled_from(["<module>", "train", "all_reduce", "read", "wait"]),
    filename=st.sampled_from(["/job/train.py", "/lib/torch/distributed/distributed_c10d.py"]),
    line=st.integers(1, 2),
)
stacks = st.lists(frames, max_size=4).map(tuple)
numbers = st.none() | st.integers(0, 3)
counters = st.builds(
    Counters, cpu_seconds=st.none() | st.floats(0, 9), rchar=numbers, voluntary_switches=numbers
)
threads = st.builds(
    Thread,
    thread_id=st.integers(1, 3),
    thread_name=st.sampled_from(["MainThread", "worker", None]),
    os_thread_id=numbers,
    active=st.booleans(),
    owns_gil=st.booleans(),
    frames=stacks,
)
kernel_threads = st.builds(
    KernelThread,
    tid=st.integers(1, 3),
    name=st.just("python"),
    state=st.sampled_from("RSD"),
    counters=counters,
)
samples = st.builds(
    Sample,
    taken_at=st.floats(0, 9),
    outcome=st.sampled_from(["ok", "ok", "ok", "denied", "gone"]),
    error=st.sampled_from([None, "why"]),
    threads=st.lists(threads, max_size=3).map(tuple),
    state=st.sampled_from([None, "R", "S", "D", "T", "Z"]),
    wchan=st.sampled_from([None, "nfs_wait"]),
    counters=counters,
    kernel_threads=st.lists(kernel_threads, max_size=2).map(tuple),
    pause_seconds=st.none() | st.floats(0, 1),
)


@st.composite
def captures(draw: st.DrawFn) -> JobCapture:
    nodes = []
    for number in range(draw(st.integers(0, 3))):
        node = f"node-{number}"
        processes = st.builds(
            Process,
            pid=st.integers(1, 1000),
            node=st.just(node),
            role=st.sampled_from(["trainer", "trainer", "dataloader", "launcher"]),
            rank=st.none() | st.integers(3 * number, 3 * number + 2),  # a rank lives on one node
            outcome=st.sampled_from(["ok", "ok", "denied"]),
            worker=numbers,
            world_size=st.none() | st.integers(0, 6),
            samples=st.lists(samples, max_size=2).map(tuple),
            native_threads=st.lists(threads, max_size=1).map(tuple),
        )
        found = draw(st.lists(processes, max_size=4, unique_by=lambda one: one.pid))
        expected = tuple(draw(st.lists(st.integers(0, 6), max_size=2)))
        nodes.append(NodeAnswer(node, "ok", 0.0, 1.0, "job", None, tuple(found), expected))
    return JobCapture("job", tuple(nodes))


@settings(max_examples=30)
@given(captures())
def test_of_any_capture(capture: JobCapture) -> None:
    check(capture)


def test_ranks_that_only_the_centre_misses_are_missed_and_the_answer_stays_as_it_was() -> None:
    answer = NodeAnswer("n", "ok", 0.0, 1.0, "job", expected_ranks=(1,))
    gathered = Gathered.of(answer).expecting({5, 1})
    assert gathered.answer.expected_ranks == (1, 5)
    assert gathered.whole() == answer
