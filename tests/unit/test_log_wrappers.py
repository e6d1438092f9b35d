"""What carried a record here is peeled off before it is read."""

from __future__ import annotations

import json

import pytest

from exporter.logs.interpreter import Interpreter
from exporter.logs.linereader import RecordSplitter
from exporter.logs.wrappers import HEAD, Unwrapper, plain

ITERATION = "step 120 loss 2.31 lr 1e-4"
STAMP = "2026-06-12T10:00:03.352740243Z"


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[rank3]: ", 3),
        ("[default0]:", 0),
        ("[trainer12]:[rank12]: ", 12),
        ("3: ", 3),
        (" 12: ", 12),
        ("[1,3]<stdout>:", 3),
        ("[1,3]<stderr> ", 3),
        ("[prterun-node-1@1,3]<stdout>: ", 3),
        ("Fri Jun 12 10:00:00 2026[1,3]<stdout>:", 3),
        ("node-03: ", None),
        ("test-gpu-01.example: ", None),
        ("(TaskRunner pid=48211) ", None),
        ("\x1b[36m(WorkerDict pid=48300, ip=10.0.0.2)\x1b[0m ", None),
        ("[pod/imagenet-worker-2/pytorch] ", None),
        ("worker-1  | ", None),
        ("MESSAGE=", None),
        ("Jun 12 10:00:00 gpu-node-3 python[4121]: ", None),
        ("<13>1 2026-06-12T10:00:00Z host python 4121 - - ", None),
        (f"{STAMP} ", None),
        (f"{STAMP} stdout F ", None),
        ("2026-06-12 10:00:00,123 - INFO - root - ", None),
        ("06/12/2026 10:00:00 - INFO - __main__ - [RANK 2] ", 2),
        ("[2026-06-12 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] ", 0),
        ("I0612 10:00:00.000000 140110937163584 trainer.py:214] ", None),
        ("[INFO|trainer.py:2134] 2026-06-12 10:01:10,001 >> ", None),
        ("INFO:root:", None),
        ("\x1b[32m2026-06-12 10:00:00\x1b[0m | \x1b[1mINFO    \x1b[0m | ", None),
        ("0: node-03: [default5]: 2026-06-12 10:00:00 ", 5),
    ],
)
def test_prefixes(prefix: str, rank: int | None) -> None:
    observation = Interpreter().feed(f"{prefix}{ITERATION}\n".encode())
    assert observation is not None
    assert observation.reading is not None
    assert observation.reading.iteration == 120
    assert observation.reading.topic is None
    assert observation.rank == rank


def test_parts_of_a_cri_record_are_joined_by_stream() -> None:
    unwrapper = Unwrapper()
    assert unwrapper.feed(f"{STAMP} stdout P step 1\n".encode()) is None
    assert unwrapper.feed(f"{STAMP} stderr P some ".encode() + b"\n") is None
    assert unwrapper.feed(f"{STAMP} stdout P 20 loss\n".encode()) is None
    whole = unwrapper.feed(f"{STAMP} stdout F  2.31\n".encode())
    assert whole is not None
    assert whole.text == "step 120 loss 2.31"
    other = unwrapper.feed(f"{STAMP} stderr F warning\n".encode())
    assert other is not None
    assert other.text == "some warning"


def test_parts_of_a_docker_record_are_joined() -> None:
    unwrapper = Unwrapper()
    first = json.dumps({"log": "step 1", "stream": "stdout", "time": STAMP})
    assert unwrapper.feed(first.encode() + b"\n") is None
    whole = unwrapper.feed(
        json.dumps({"log": "20 loss 2.31\n", "stream": "stdout", "time": STAMP}).encode() + b"\n"
    )
    assert whole is not None
    assert whole.text == "step 120 loss 2.31"


def test_of_a_bar_redrawn_within_one_line_the_last_counts() -> None:
    log = "\r" + "\r".join(f"train: {n}%|#  | {n}/100 [00:0{n}<00:09,  1.0it/s]" for n in range(1, 6)) + "\n"
    observation = Interpreter().feed(json.dumps({"log": log, "stream": "stderr"}).encode() + b"\n")
    assert observation is not None
    assert observation.reading is not None
    assert observation.reading.iteration == 5


def test_colours_titles_and_control_bytes_are_stripped() -> None:
    assert (
        plain("\x1b]0;train: iter 91\x07\x1b[31mstep:\x00 120\x1b[0m \x08loss 2").text == "step: 120 loss 2"
    )


def test_a_cursor_that_goes_up_marks_a_bar_below_another() -> None:
    assert plain(" 50%|#  | 5/10 [00:01<00:01, 3.0it/s]\x1b[A").nested


def test_only_the_beginning_of_a_record_is_looked_at() -> None:
    assert len(plain("x" * 100_000).text) <= HEAD


@pytest.mark.parametrize(
    "record", [b'{"log": 5}\n', b'{"log"\n', b'{"MESSAGE": [1, 2]}\n', b"\xff\xfe\x00\n", b'{"a": \xff}\n']
)
def test_broken_wrappings_are_records_like_others(record: bytes) -> None:
    assert Unwrapper().feed(record) is not None


def test_a_journal_in_json() -> None:
    observation = Interpreter().feed(json.dumps({"_PID": "4121", "MESSAGE": ITERATION}).encode() + b"\n")
    assert observation is not None
    assert observation.reading is not None
    assert observation.reading.iteration == 120


def test_a_journal_in_json_with_colours() -> None:
    coloured = f"\x1b[32m{ITERATION}\x1b[0m".encode()
    observation = Interpreter().feed(json.dumps({"_PID": "4121", "MESSAGE": list(coloured)}).encode() + b"\n")
    assert observation is not None
    assert observation.reading is not None
    assert observation.reading.iteration == 120


def test_a_journals_export_of_messages_with_a_length_before_them() -> None:
    """Any length: its bytes may be letters, digits, a newline or a carriage return."""
    message = "\x1b[32m{}\x1b[0m\nTraceback-free second line of {}\n"
    for width in range(400):
        data = message.format(ITERATION, "x" * width).encode()
        entry = b"__CURSOR=s=1;i=2\n_PID=4121\nMESSAGE\n" + len(data).to_bytes(8, "little") + data + b"\n"
        entry += b"_SOURCE_REALTIME_TIMESTAMP=1781260931104110\n\n"
        interpreter = Interpreter()
        found = [interpreter.feed(record) for record in RecordSplitter().feed(entry)]
        numbers = [one.reading.iteration for one in found if one is not None and one.reading is not None]
        assert numbers == [120], f"{len(data)} bytes"
