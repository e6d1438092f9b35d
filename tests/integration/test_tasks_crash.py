"""kill -9 of the snapshotter at every step of a capture, then a restart: exactly one whole bundle."""

from __future__ import annotations

import errno
import json
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from snapshotter.bundle import reader
from tests.running import DEADLINE_SECONDS, wait_for

PROGRAM = Path(__file__).parent.parent / "programs" / "snapshotter_service.py"


class Snapshotter:
    """A running process, and HTTP to it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.captured = folder / "captured"
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder / "data"), str(self.captured), *arguments],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline() or 0)  # 0: it died before it listened

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return json.load(answer)

    def alert(self, job_id: str, fingerprint: str = "a") -> int:
        labels = {"alertname": "TrainingHang", "job_id": job_id}
        alert = {
            "status": "firing",
            "labels": labels,
            "fingerprint": fingerprint,
            "startsAt": "2026-11-30T01:00:00Z",
        }
        body = json.dumps({"version": "4", "alerts": [alert]}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/api/v1/alerts", body)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)

    def captures(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/api/v1/captures?limit=500")["captures"]
        return found

    def refuses(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == errno.ECONNREFUSED

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> int:
        status = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


Start = Callable[..., Snapshotter]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts snapshotters on one folder; what still runs at the end is killed."""
    started: list[Snapshotter] = []

    def make(*arguments: str) -> Snapshotter:
        started.append(Snapshotter(tmp_path, *arguments))
        return started[-1]

    yield make
    for one in started:
        one.kill()


def all_done(snapshotter: Snapshotter) -> bool:
    return all(one["state"] == "done" for one in snapshotter.captures())


def bundles(folder: Path) -> list[Path]:
    found = sorted((folder / "data" / "bundles").iterdir())
    aside = folder / "data" / "bundles" / ".partial"
    assert not list(aside.iterdir()), "what was half-written is gone"
    return [path for path in found if path != aside]


@pytest.mark.parametrize(
    ("step", "captured"),
    [
        ("enqueueing", 1),
        ("claimed", 1),
        ("capturing", 2),
        ("analysing", 2),
        ("storing", 2),
        ("stored", 1),
        ("finished", 1),
    ],
)
def test_killed_at_a_step_and_started_again(tmp_path: Path, start: Start, step: str, captured: int) -> None:
    first = start("--die-at", step)
    try:
        assert first.alert("llama") == 202
    except OSError:
        pass  # it died before it answered, but after it had stored the request
    assert first.end() == -signal.SIGKILL

    second = start()
    wait_for(lambda: all_done(second))
    assert second.alert("llama") == 200, "a repetition of what was stored before the crash"
    (capture,) = second.captures()
    assert capture["verdict"]["culprit_ranks"] == "0"
    assert [path.name for path in bundles(tmp_path)] == [capture["capture_id"]]
    bundle = reader.open_folder(bundles(tmp_path)[0])
    assert [answer.job_id for answer in bundle.answers()] == ["llama"]
    assert len(second.captured.read_text().splitlines()) == captured
    assert second.get(f"/api/v1/captures/{capture['capture_id']}")["bytes"] > 0


def test_killed_between_the_answer_and_the_capture(tmp_path: Path, start: Start) -> None:
    first = start("--capture-seconds", "60")
    for job in range(6):  # more than there are workers: some wait, some are under way
        assert first.alert(f"job-{job}") == 202
    first.kill()
    second = start()
    wait_for(lambda: all_done(second))
    assert sorted(one["job_id"] for one in second.captures()) == [f"job-{job}" for job in range(6)]
    assert len(bundles(tmp_path)) == 6


def test_killed_again_and_again_nothing_is_lost_or_doubled(tmp_path: Path, start: Start) -> None:
    dice = random.Random(7)
    sent: set[str] = set()
    for life in range(4):
        snapshotter = start("--capture-seconds", "0.02")
        for number in range(8):
            snapshotter.alert(f"job-{life}-{number}")
            sent.add(f"job-{life}-{number}")
            snapshotter.alert(f"job-{life}-{number}")
        time.sleep(dice.uniform(0, 0.5))  # the moment of death is to be any
        snapshotter.kill()
    last = start()
    wait_for(lambda: all_done(last))
    captures = last.captures()
    assert Counter(one["job_id"] for one in captures) == Counter(sent)
    assert [path.name for path in bundles(tmp_path)] == sorted(one["capture_id"] for one in captures)
    for path in bundles(tmp_path):
        assert reader.open_folder(path).capture().nodes


def test_stopped_gently_it_ends_what_it_does_within_seconds(tmp_path: Path, start: Start) -> None:
    first = start("--until", str(tmp_path / "go-on"))
    first.alert("llama")
    wait_for(lambda: first.captures()[0]["state"] == "running")
    first.process.terminate()
    wait_for(first.refuses)
    (tmp_path / "go-on").write_text("now")
    assert first.end() == 0
    second = start()
    assert second.captures()[0]["state"] == "done"
    assert len(second.captured.read_text().splitlines()) == 1


def test_a_second_snapshotter_on_the_folder_is_refused(tmp_path: Path, start: Start) -> None:
    start()
    second = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path / "data"), str(tmp_path / "captured")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert second.returncode != 0
    assert "another snapshotter runs on the data folder" in second.stderr
