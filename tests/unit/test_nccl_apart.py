"""Big answers read in a process of their own: the same report, and a reason where that process fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from exporter.nccl import apart
from exporter.nccl.model import RasReport
from exporter.nccl.parse import Unread, parse
from exporter.nccl.ras import Address, Reply, understand
from tests.running import wait_for

FOLDER = Path(__file__).parent.parent / "fixtures" / "nccl" / "transcripts"


@pytest.mark.parametrize("name", ["big-lag-json-2.30.7.reply", "killed-t75-json-2.28.9.reply"])
def test_read_apart_is_read_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = (FOLDER / name).read_bytes()
    monkeypatch.setattr(apart, "parse", lambda raw: pytest.fail("it is read here"))
    assert apart.read(raw, big=0) == parse(raw)


def test_text_and_nonsense_are_read_apart_as_well() -> None:
    for raw in (b"", b"\xff\x00" * 1000, (FOLDER / "killed-t75-2.30.7.reply").read_bytes()):
        assert apart.read(raw, big=-1) == parse(raw)


def test_small_answers_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_command", lambda: pytest.fail("a process is started"))
    assert apart.read(b"SERVER PROTOCOL 2\n").understood == 1


@pytest.mark.parametrize(
    ("program", "seconds", "why"),
    [
        ("raise SystemExit(3)", 60.0, "ended before the end"),
        ("import os; os.kill(os.getpid(), 9)", 60.0, "ended before the end"),
        ("import sys; sys.stdin.read(); sys.stdout.buffer.write(b'\\0\\0\\0\\1\\xc1')", 60.0, "failed"),
        ("import time; time.sleep(600)", 1.0, "was not done after 1 s"),
        ("import sys, time; sys.stdin.buffer.read(); time.sleep(600)", 1.0, "was not done after 1 s"),
    ],
)
def test_a_process_that_fails_is_a_reason(
    program: str, seconds: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "_command", lambda: [sys.executable, "-c", program])
    reply = Reply(b"x" * (1 << 20), Address("127.0.0.1", 1), 0.5)
    answer = understand(reply, read=lambda raw: apart.read(raw, seconds=seconds))
    assert answer.reason == "unread"
    assert why in answer.detail
    assert answer.report == RasReport(format="json")


def test_no_process_to_be_had_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_command", lambda: ["/nowhere/python"])
    with pytest.raises(Unread, match="No such file"):
        apart.read(b"x", big=0)


def test_the_process_ends_with_the_exporter() -> None:
    program = (
        "import sys, time; from exporter.nccl import apart; apart._end_with_parent();"
        "print('ready', flush=True); time.sleep(600)"
    )
    starter = (
        "import subprocess, sys, os\n"
        f"child = subprocess.Popen([sys.executable, '-c', {program!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(child.pid, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", starter], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
        wait_for(lambda: not _lives(pid), say=lambda: "it outlives the exporter")


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
