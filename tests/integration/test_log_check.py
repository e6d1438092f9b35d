"""`check-log` as a user runs it."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

from exporter.logs.check import run

TRAINING = Path(__file__).parents[1] / "fixtures" / "logs" / "training"


def _run(*paths: Path, as_json: bool = True, records: bool = False, explain: bool = False) -> tuple[int, str]:
    out = io.StringIO()
    return run(paths, as_json=as_json, records=records, explain=explain, out=out), out.getvalue()


def test_one_object_for_a_file() -> None:
    status, text = _run(TRAINING / "megatron-lm.log")
    assert status == 0
    assert json.loads(text) == {
        "file": str(TRAINING / "megatron-lm.log"),
        "framework": "megatron-lm",
        "iterations": 20,
        "first_iteration": 100,
        "last_iteration": 2000,
        "total_iterations": 2000,
        "last_record": 51,
        "finished": True,
        "phase": "finished",
    }


def test_records() -> None:
    _, text = _run(TRAINING / "hf-trainer-no-tqdm.log", records=True)
    assert json.loads(text)["records"] == [
        [4, None, None, 0.5],
        [5, None, None, 1.0],
        [10, None, None, 1.5],
        [11, None, None, 2.0],
    ]


def test_the_reason_for_what_does_not_count() -> None:
    _, text = _run(TRAINING / "megatron-lm.log", explain=True)
    reasons = {record: why for record, why, _ in json.loads(text)["near_misses"]}
    assert "checkpoint" in reasons[40]
    assert "evaluation" in reasons[38]


def test_for_people() -> None:
    status, text = _run(TRAINING / "megatron-lm.log", as_json=False, explain=True)
    assert status == 0
    assert "100 to 2000 of 2000, in 20 records" in text
    assert "record 40 does not count:" in text


def test_a_log_without_iterations_says_what_to_do() -> None:
    _, text = _run(TRAINING / "wandb-silent.log", as_json=False)
    assert "`pattern`" in text


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a/one.log", "two.log", "two.log.1.gz"):
        (tmp_path / name).write_bytes(b"step 5: loss 2.5\n")
    status, text = _run(tmp_path)
    assert status == 0
    assert [Path(json.loads(line)["file"]).name for line in text.splitlines()] == ["one.log", "two.log"]


def test_a_folder_without_a_log_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.log.gz").touch()
    status, text = _run(tmp_path, as_json=False)
    assert (status, text) == (
        1,
        f"error: {tmp_path}: no log is in this folder; compressed files are not read\n",
    )


def test_what_cannot_be_read_is_said_and_the_rest_goes_on(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty.log").touch()
    status, text = _run(tmp_path / "missing.log", tmp_path / "pipe", tmp_path / "empty.log")
    missing, pipe, empty = map(json.loads, text.splitlines())
    assert status == 1
    assert missing["error"].endswith("missing.log: No such file or directory")
    assert "is a FIFO" in pipe["error"]
    assert (empty["iterations"], empty["last_record"], empty["finished"]) == (0, None, False)
