from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshotter.capture.wire import AnswerReader, NotAnAnswer, Order, check, decode_order, reply
from snapshotter.encoding import encode
from snapshotter.gathered import Gathered
from snapshotter.stacks.model import (
    Counters,
    Frame,
    KernelThread,
    NcclAnswer,
    NodeAnswer,
    Process,
    Sample,
    Thread,
)

STACK = (Frame("wait", "/a/b.py", 7, "b.py"), Frame("<module>", "/a/b.py", 1))


def process(pid: int, rank: int | None = 0) -> Process:
    thread = Thread(1, "MainThread", pid, True, False, STACK)
    sample = Sample(
        1.5,
        "ok",
        threads=(thread, replace(thread, thread_id=2)),
        state="S",
        kernel_stack=("a", "b"),
        counters=Counters(cpu_seconds=2.5),
        kernel_threads=(KernelThread(pid, "python", "S"),),
        pause_seconds=0.01,
    )
    return Process(
        pid,
        "n1",
        "trainer",
        rank,
        "ok",
        environment={"RANK": "0"},
        samples=(sample, replace(sample, taken_at=2.5)),
    )


ANSWER = NodeAnswer(
    "n1",
    "ok",
    1.0,
    2.0,
    job_id="job",
    processes=(process(10), process(11, 1), process(12, None)),
    expected_ranks=(3, 4),
    nccl=NcclAnswer("raw", "json"),
    kernel_log=("line",),
)


def test_an_answer_comes_back_as_it_was() -> None:
    for order in (Order(), Order(with_tree=True)):
        got = AnswerReader().read(reply(ANSWER, order))
        assert got == Gathered.of(ANSWER)
        assert got.whole() == ANSWER
        assert got.answer == replace(ANSWER, processes=())


def test_an_agent_that_knows_no_trees_and_a_snapshotter_that_asks_for_none() -> None:
    assert reply(ANSWER, decode_order(b'{"job_id": "job"}')) == encode(ANSWER)
    assert AnswerReader().read(encode(ANSWER)) == AnswerReader().read(reply(ANSWER, Order(with_tree=True)))


def test_equal_tables_are_one_object_across_nodes() -> None:
    reader = AnswerReader()
    first, second = (reader.read(reply(one, Order(with_tree=True))).tree for one in (ANSWER, ANSWER))
    assert first.frames is second.frames
    assert first.stacks is second.stacks
    assert first.groups is second.groups


def twisted(**changes: Any) -> bytes:
    """A reply whose tree has other fields than those of its answer."""
    data = msgspec.json.decode(reply(ANSWER, Order(with_tree=True)))
    tree = data["tree"]
    for path, value in changes.items():
        *way, last = (int(one) if one.isdigit() else one for one in path.split("__"))
        holder = tree
        for key in way:
            holder = holder[key]
        holder[last] = value
    return msgspec.json.encode(data)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (twisted(processes__0__facts__rank=5), "other processes"),
        (twisted(processes__0__facts__node="n2"), "other processes"),
        (twisted(processes__0__facts__pid=99), "other processes"),
        (twisted(processes=[]), "other processes"),
        (twisted(stacks__0=[0, 9]), "number 9 of 2 frames"),
        (twisted(stacks__0=[-1]), "number -1 of 2 frames"),
        (twisted(groups__0__stack=7), "number 7 of 1 stacks"),
        (twisted(groups__0__processes=[0, 3]), "number 3 of 3 processes"),
        (twisted(groups__0__processes=[-1]), "number -1 of 3 processes"),
        (twisted(processes__0__stack=-1), "number -1 of 1 stacks"),
        (twisted(processes__0__later=2), "number 2 of 1 stacks"),
        (twisted(processes__0__others=[["t", 2]]), "number 2 of 1 stacks"),
        (twisted(stacks__0=[0] * 1_000_000, groups__0__processes=[0] * 1000), "1003000000 frames"),
        (twisted(stacks__0=[0] * 100_000, processes__0__others=[["t", 0]] * 1000), "100200000 frames"),
        (twisted(frames=[[]]), "Expected"),
        (twisted(processes="none"), "Expected"),
        (twisted(schema_version=99), "later version"),
    ],
)
def test_a_tree_that_is_not_of_its_answer_is_refused_and_the_answer_counts(
    reply: bytes, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert AnswerReader().read(reply) == Gathered.of(ANSWER)
    (line,) = caplog.messages
    assert line.startswith("the tree of 'n1' is refused: ")
    assert problem in line


def test_fields_of_later_versions_are_ignored_and_missing_ones_have_their_defaults() -> None:
    data = msgspec.json.decode(encode(ANSWER))
    data["later"] = {"x": 1}
    del data["kernel_log"], data["processes"][0]["samples"][0]["threads"]
    answer = AnswerReader().read(msgspec.json.encode(data)).whole()
    assert answer.kernel_log == ()
    assert answer.processes[0].samples[0].threads == ()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"node": "n1"}',
        encode(ANSWER)[:-10],
        reply(ANSWER, Order(with_tree=True))[:-10],
        b'{"answer": {}, "tree": {}}',
        encode(ANSWER).replace(b'"ok"', b'"fine"'),
        encode(ANSWER).replace(b'"line":7', b'"line":"7"'),
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(NotAnAnswer):
        AnswerReader().read(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_one_way(data: bytes) -> None:
    with pytest.raises(NotAnAnswer):
        AnswerReader().read(data)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (replace(ANSWER, node="n2"), "calls itself 'n2'"),
        (replace(ANSWER, node=""), "names no node"),
        (replace(ANSWER, job_id="other"), "speaks of job 'other'"),
        (replace(ANSWER, schema_version=2), "later version"),
        (replace(ANSWER, finished_at=0.5), "ended before it began"),
        (replace(ANSWER, processes=(process(10), process(10, 1))), "a process twice"),
        (replace(ANSWER, processes=(replace(process(10), node="n2"),)), "process of another node, 'n2'"),
        (replace(ANSWER, processes=(process(10, 10**12),)), "rank 1000000000000"),
        (replace(ANSWER, processes=(process(10, -1),)), "rank -1"),
        (replace(ANSWER, processes=(process(-5),)), "pid -5"),
        (replace(ANSWER, expected_ranks=(10**12,)), "impossible ranks"),
    ],
)
def test_answers_that_cannot_be_the_nodes_are_refused(answer: NodeAnswer, problem: str) -> None:
    with pytest.raises(NotAnAnswer, match=problem):
        check(Gathered.of(answer), node="n1", job_id="job")


def test_a_good_answer_passes_for_any_node_and_job() -> None:
    check(Gathered.of(ANSWER), node="n1", job_id="job")
    check(Gathered.of(ANSWER), node=None, job_id="")


def test_orders() -> None:
    order = Order(job_id="job", reason="why", interval=1.0, native_frames=True)
    assert decode_order(encode(order)) == order
    assert decode_order(b"") == Order()
    assert decode_order(b'{"later": 1}') == Order()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'{"interval": 61}', "interval"),
        (b'{"interval": -1}', "interval"),
        (b'{"deadline": 0}', "deadline"),
        (b'{"job_id": 5}', "job_id"),
        (b'{"job_id": "' + b"x" * 2000 + b'"}', "job_id"),
        (b"nonsense", "malformed"),
        (b"[]", "object"),
    ],
)
def test_bad_orders_are_refused_by_name(data: bytes, problem: str) -> None:
    with pytest.raises(NotAnAnswer, match=problem):
        decode_order(data)
