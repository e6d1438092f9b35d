from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshotter.capture.wire import AnswerReader, NotAnAnswer, Order, check, decode_order, encode
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
        threads=(thread, thread),
        state="S",
        kernel_stack=("a", "b"),
        counters=Counters(cpu_seconds=2.5),
        kernel_threads=(KernelThread(pid, "python", "S"),),
        pause_seconds=0.01,
    )
    return Process(pid, "n1", "trainer", rank, "ok", environment={"RANK": "0"}, samples=(sample, sample))


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
    assert AnswerReader().decode(encode(ANSWER)) == ANSWER


def test_equal_stacks_are_one_object_across_answers() -> None:
    reader = AnswerReader()
    stacks = [
        thread.frames
        for answer in (reader.decode(encode(ANSWER)), reader.decode(encode(ANSWER)))
        for one in answer.processes
        for sample in one.samples
        for thread in sample.threads
    ]
    assert len(stacks) == 24
    assert len({id(stack) for stack in stacks}) == 1


def test_fields_of_later_versions_are_ignored_and_missing_ones_have_their_defaults() -> None:
    data = msgspec.json.decode(encode(ANSWER))
    data["later"] = {"x": 1}
    del data["kernel_log"], data["processes"][0]["samples"][0]["threads"]
    answer = AnswerReader().decode(msgspec.json.encode(data))
    assert answer.kernel_log == ()
    assert answer.processes[0].samples[0].threads == ()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"node": "n1"}',
        encode(ANSWER)[:-10],
        encode(ANSWER).replace(b'"ok"', b'"fine"'),
        encode(ANSWER).replace(b'"line":7', b'"line":"7"'),
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(NotAnAnswer):
        AnswerReader().decode(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_one_way(data: bytes) -> None:
    with pytest.raises(NotAnAnswer):
        AnswerReader().decode(data)


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
        check(answer, node="n1", job_id="job")


def test_a_good_answer_passes_for_any_node_and_job() -> None:
    check(ANSWER, node="n1", job_id="job")
    check(ANSWER, node=None, job_id="")


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
