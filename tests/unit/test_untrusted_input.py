"""Input of others, damaged in every way: parsers answer as they promise, in bounded time, and never otherwise.

Damage is done to real inputs: bytes flipped, cut out, repeated and swapped for what tends to hurt; and in JSON, any
value replaced by one of another type or size.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporter import procparse
from exporter.logs.interpreter import Interpreter
from exporter.logs.linereader import RecordSplitter
from exporter.nccl.parse import parse as parse_ras
from exporter.nccl.parse import to_json as ras_to_json
from exporter.yamlconfig import ConfigError
from exporter.yamlconfig import parse as parse_yaml
from snapshotter import alertmanager, config
from snapshotter.capture.dump import UnreadableDump, looks_whole, parse_dump
from snapshotter.capture.wire import AnswerReader, NotAnAnswer, Order, check, decode_order, reply
from snapshotter.dumps import DumpReader
from snapshotter.errors import SnapshotterError
from snapshotter.stacks.model import NodeAnswer

FIXTURES = Path(__file__).parents[1] / "fixtures"
LIMIT_SECONDS = 5.0  # of one input of some kilobytes, on a loaded machine

WEBHOOK = {
    "version": "4",
    "groupKey": '{}:{job_id="llama"}',
    "status": "firing",
    "receiver": "hangscope",
    "truncatedAlerts": 0,
    "groupLabels": {"job_id": "llama"},
    "commonLabels": {"alertname": "TrainingHang"},
    "alerts": [
        {
            "status": "firing",
            "labels": {"alertname": "TrainingHang", "job_id": "llama"},
            "annotations": {"summary": "hangs"},
            "startsAt": "2026-11-30T01:22:33.123Z",
            "endsAt": "0001-01-01T00:00:00Z",
            "fingerprint": "a1b2c3",
        }
    ],
}
DUMP = [
    {
        "pid": 7,
        "thread_id": 140000,
        "thread_name": "MainThread",
        "os_thread_id": 7,
        "active": True,
        "owns_gil": False,
        "frames": [
            {"name": "wait", "filename": "/usr/lib/python3.12/threading.py", "line": 655, "locals": None},
            {"name": "<module>", "filename": "train.py", "line": 1, "short_filename": None, "module": None},
        ],
    }
]
ORDER = {"job_id": "llama", "capture_id": "c1", "reason": "hang", "requested_by": "me", "deadline": 60.0}
ANSWER = {
    "schema_version": 1,
    "node": "n1",
    "outcome": "ok",
    "job_id": "llama",
    "started_at": 1.0,
    "finished_at": 2.0,
    "expected_ranks": [0, 1],
    "processes": [{"node": "n1", "pid": 7, "rank": 0, "role": "trainer", "outcome": "ok", "samples": []}],
}
REPLY = json.loads(reply(msgspec.convert(ANSWER, NodeAnswer), Order(with_tree=True)))
RAS = [path.read_bytes()[:6000] for path in sorted((FIXTURES / "nccl" / "transcripts").iterdir())[::3]]
LOGS = [path.read_bytes()[:4000] for path in sorted((FIXTURES / "logs" / "training").iterdir())[::4]]

HOSTILE = st.sampled_from(
    [
        *(None, True, -1, 0, 2**63, 2**64, -(2**70), 10**400, 1e308, float("nan"), float("inf")),
        *(
            "",
            "\0",
            "\ud800",
            "é" * 300,
            "9" * 5000,
            "٣",
            "<script>",
            "../../etc/passwd",
            "a\nb=c",
            "{}",
            "0001",
        ),
        *([], {}, [[]], {"": ""}, [None] * 50, {"name": 1}),
    ]
)
NASTY = st.sampled_from(
    [
        *(
            b"",
            b"\0",
            b"\xff\xfe",
            b"\r",
            b"\n",
            b"\r\n",
            b"[",
            b"{" * 200,
            b'"',
            b"\\",
            b"9" * 400,
            b"-",
            b"%",
        ),
        *(
            b"=",
            b":",
            b"(",
            b")",
            b"\x1b[2K",
            b"\xed\xa0\x80",
            b"\xd9\xa3",
            b"e999",
            b"NaN",
            b" " * 300,
            b"it/s",
        ),
    ]
)


@st.composite
def damaged(draw: st.DrawFn, sources: list[bytes]) -> bytes:
    """One of the sources with up to six injuries."""
    data = bytearray(draw(st.sampled_from(sources)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        upto = min(len(data), at + draw(st.sampled_from([0, 1, 2, 10, 100, 5000])))
        kind = draw(st.sampled_from(["put", "repeat", "swap"]))
        if kind == "put":
            data[at:upto] = draw(NASTY)
        elif kind == "repeat":
            data[at:at] = bytes(data[at:upto]) * 3
        else:
            data[at:upto] = bytes(reversed(data[at:upto]))
    return bytes(data[:50_000])


@st.composite
def twisted(draw: st.DrawFn, source: Any) -> bytes:
    """The JSON of the source with up to three values replaced, removed or repeated."""
    root = [copy.deepcopy(source)]
    for _ in range(draw(st.integers(1, 3))):
        holder: Any = root
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            key = draw(st.sampled_from(keys))
            deeper = isinstance(holder[key], dict | list) and len(holder[key]) > 0
            if not deeper or draw(st.booleans()):
                break
            holder = holder[key]
        kind = draw(st.sampled_from(["replace", "replace", "remove", "deepen", "repeat"]))
        if kind == "replace" or holder is root:
            holder[key] = copy.deepcopy(draw(HOSTILE))
        elif kind == "deepen":
            for _ in range(draw(st.sampled_from([1, 50, 900]))):
                holder[key] = [holder[key]]
            break
        elif kind == "repeat" and isinstance(holder, list):
            holder.extend([holder[key]] * 20)
        else:
            del holder[key]
        if not isinstance(root[0], dict | list) or not root[0]:
            break
    return json.dumps(root[0]).encode("utf-8", "surrogatepass")


def tried(parse: Callable[[bytes], object], data: bytes, *promised: type[Exception]) -> None:
    """Parse; any other error than the promised ones fails the test, as does taking long."""
    started = time.thread_time()
    try:
        parse(data)
    except promised as error:
        assert str(error), "an error that says nothing"
        assert len(str(error)) < 5_000, "an error as long as its input"
    assert time.thread_time() - started < LIMIT_SECONDS


few = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def notified(data: bytes) -> None:
    reading = alertmanager.read(alertmanager.parse(data), ("TrainingHang",))
    for job in reading.jobs:
        job.job_id.encode()  # can be stored


@few
@given(twisted(WEBHOOK) | damaged([json.dumps(WEBHOOK).encode()]))
def test_webhook(data: bytes) -> None:
    tried(notified, data, SnapshotterError)


def dumped(data: bytes) -> None:
    looks_whole(parse_dump(data))


@few
@given(twisted(DUMP) | damaged([json.dumps(DUMP).encode()]))
def test_py_spys_json(data: bytes) -> None:
    tried(dumped, data, UnreadableDump)
    tried(DumpReader().read, data, ValueError)


@few
@given(twisted(ORDER) | damaged([json.dumps(ORDER).encode()]))
def test_order_to_an_agent(data: bytes) -> None:
    tried(decode_order, data, NotAnAnswer)


def answered(data: bytes) -> None:
    check(AnswerReader().read(data), node="n1", job_id="llama")


@few
@given(twisted(ANSWER) | damaged([json.dumps(ANSWER).encode()]) | twisted(REPLY))
def test_answer_of_an_agent(data: bytes) -> None:
    tried(answered, data, NotAnAnswer)


def understood(data: bytes) -> None:
    json.dumps(ras_to_json(parse_ras(data)), allow_nan=False)


@few
@given(damaged(RAS))
def test_ras_answer(data: bytes) -> None:
    tried(understood, data)


ENVIRON = b"RANK=3\0WORLD_SIZE=8\0MASTER_ADDR=a=b\0LOCAL_RANK=3\0"
CMDLINE = b"python\0-u\0train.py\0--lr=1e-4\0"


@few
@given(damaged([ENVIRON, CMDLINE]))
def test_what_a_process_may_write_itself(data: bytes) -> None:
    tried(procparse.environ, data)
    tried(procparse.cmdline, data)


KERNEL: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "stat": (
        procparse.stat,
        b"7 (py (x) th\n) S 1 7 7 0 -1 4194304 0 0 0 0 5 6 0 0 20 0 9 0 99 1 1 1 " + b"0 " * 28,
    ),
    "status": (procparse.status, b"Name:\tpy\nState:\tS (sleeping)\nTgid:\t7\nPPid:\t1\nUid:\t0\t0\t0\t0\n"),
    "io": (
        procparse.io,
        b"rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\ncancelled_write_bytes: 0\n",
    ),
    "cgroup": (procparse.cgroup, b"0::/kubepods.slice/pod1\n12:cpu,cpuacct:/x\n"),
    "stack": (procparse.kernel_stack, b"[<0>] futex_wait+0x1/0x2\n[<0>] do_syscall_64+0x1/0x2\n"),
    "pressure": (procparse.pressure, b"some avg10=1.50 avg60=0.00 avg300=0.00 total=123\n"),
}


@pytest.mark.parametrize("name", KERNEL)
def test_files_of_the_kernel(name: str) -> None:
    parse, sample = KERNEL[name]
    parse(sample)
    tried(parse, sample.rsplit(maxsplit=1)[0], ValueError)
    tried(parse, sample.replace(b"3", b"9" * 400), ValueError)

    @few
    @given(damaged([sample]))
    def run(data: bytes) -> None:
        tried(parse, data, ValueError)

    run()


def followed(data: bytes) -> None:
    interpreter, splitter = Interpreter(), RecordSplitter()
    for record in (*splitter.feed(data[: len(data) // 2]), *splitter.feed(data[len(data) // 2 :] + b"\n")):
        interpreter.feed(record)


@few
@given(damaged(LOGS))
def test_training_log(data: bytes) -> None:
    tried(followed, data)


@pytest.mark.parametrize(
    "record",
    [
        b"9" * 200_000,
        b"iteration " * 20_000,
        b"[" * 200_000,
        b"it/s " * 40_000 + b"\r",
        b"1/2 " * 50_000,
        b"a=1, " * 40_000,
        b"{'loss': " * 20_000,
        b'{"step": 1, ' * 15_000,
        b"\x1b[2K" * 50_000,
        b"step: " + b" " * 200_000 + b"x",
        b"|" * 100_000 + b"5/10 [00:01<00:01, 1.0it/s]",
    ],
    ids=lambda record: record[:12].decode("latin-1").strip(),
)
def test_long_records_take_no_long_time(record: bytes) -> None:
    """A log is written by anyone; a pattern that goes back and forth would stop the reading of all others."""
    tried(followed, record)


@few
@given(damaged([b"storage:\n  keep: 30d\nagents:\n  nodes: [a, b=c:1]\nworkers: 4\n"]))
def test_configuration(data: bytes) -> None:
    tried(
        lambda given: parse_yaml(given.decode("utf-8", "replace"), config.Config, "f.yaml"), data, ConfigError
    )
