"""A real PostgreSQL for the tests of this folder, and snapshotters that share it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.postgresql import Server

PROGRAM = Path(__file__).parent.parent / "programs" / "snapshotter_service.py"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(
        prefix="hangscope-pg-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        one = Server(Path(folder))
        yield one
        one.stop()


@pytest.fixture
def database_url(postgresql: Server) -> str:
    """An empty database."""
    return postgresql.database()


class Snapshotter:
    """A snapshotter process with a data folder of its own, sharing index, queue and bundles."""

    def __init__(self, folder: Path, name: str, url: str, *arguments: str) -> None:
        self.captured = folder / f"captured-{name}"
        self.captured.touch()
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(PROGRAM),
                str(folder / name),
                str(self.captured),
                f"--index={url}",
                f"--bundles={folder / 'bundles'}",
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )

    def port(self) -> int:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it did not start"
        self.address = f"http://127.0.0.1:{int(line)}"
        return int(line)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path, timeout=60) as answer:
            return json.load(answer)

    def alert(self, job_id: str) -> int:
        labels = {"alertname": "TrainingHang", "job_id": job_id}
        alert = {"status": "firing", "labels": labels, "startsAt": "2026-11-30T01:00:00Z"}
        body = json.dumps({"version": "4", "alerts": [alert]}).encode()
        with urllib.request.urlopen(f"{self.address}/api/v1/alerts", body, timeout=60) as answer:
            return int(answer.status)

    def captures(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/api/v1/captures?limit=500")["captures"]
        return found

    def all_done(self) -> bool:
        return {one["state"] for one in self.captures()} == {"done"}

    def jobs(self) -> list[str]:
        return [line.split()[1] for line in self.captured.read_text().splitlines()]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


Start = Callable[..., Snapshotter]


@pytest.fixture
def start_snapshotters(tmp_path: Path, database_url: str) -> Iterator[Start]:
    """Starts snapshotters by name that share index, queue and bundles; killed at the end."""
    started: list[Snapshotter] = []

    def make(*names: str, arguments: tuple[str, ...] = ()) -> list[Snapshotter]:
        new = [Snapshotter(tmp_path, name, database_url, *arguments) for name in names]
        started.extend(new)
        for one in new:
            one.port()
        return new

    yield make
    for one in started:
        one.end()
