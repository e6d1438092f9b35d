"""One, two and three snapshotters that share PostgreSQL and an object store: captures a minute, none lost or doubled.

Alerts of as many jobs as there are captures are posted to all of them in turn, each to two, as a pair of
Alertmanagers does. A capture takes `--capture-seconds`, as real ones wait between their samples; storing, queue and
index are real. The object store is moto's S3 server, one process of Python.

    python benchmarks/bench_snapshotters.py [--alerts 80] [--capture-seconds 2]

Exit status 1 where a capture is lost or taken twice.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.results import row
from tests.postgresql import Server

PROGRAM = Path(__file__).resolve().parent.parent / "tests" / "programs" / "snapshotter_service.py"
WORKERS = 4  # of each: the default
BUCKET = "captures"


class Snapshotter:
    def __init__(self, folder: Path, *, database: str, bundles: str, capture_seconds: float) -> None:
        folder.mkdir()
        self.captured = folder / "captured"
        self.captured.touch()
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(PROGRAM),
                str(folder / "data"),
                str(self.captured),
                f"--index={database}",
                f"--bundles={bundles}",
                f"--capture-seconds={capture_seconds}",
            ],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def ask(self, path: str, body: bytes | None = None) -> Any:
        with urllib.request.urlopen(self.url + path, body, timeout=60) as answer:
            return json.load(answer)

    def jobs(self) -> list[str]:
        return [line.split()[1] for line in self.captured.read_text().splitlines()]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def object_store(folder: Path) -> Iterator[None]:
    """An S3 server; the environment leads to it."""
    log = folder / "s3.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
            stdout=output,
            stderr=output,
        )
    try:
        until = time.monotonic() + 60
        while (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())) is None:
            if server.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the object store did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        os.environ |= {
            "AWS_ENDPOINT_URL": found[0],
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        with urllib.request.urlopen(urllib.request.Request(f"{found[0]}/{BUCKET}", method="PUT")):
            pass
        yield
    finally:
        server.kill()
        server.wait()


def measure(
    count: int, alerts: int, capture_seconds: float, folder: Path, database: str
) -> tuple[float, Counter[str]]:
    """Seconds until all captures are stored, and how often each job was captured."""
    with ExitStack() as stack:
        services = []
        for number in range(count):
            one = Snapshotter(
                folder / f"{count}-{number}",
                database=database,
                bundles=f"s3://{BUCKET}/{count}",
                capture_seconds=capture_seconds,
            )
            stack.callback(one.end)
            services.append(one)
        began = time.monotonic()
        for number in range(alerts):
            body = alert(f"job-{number}")
            for again in range(2):
                services[(number + again) % count].ask("/api/v1/alerts", body)
        until = began + 60 + 4 * alerts * capture_seconds / WORKERS
        while True:
            states = Counter(
                one["state"] for one in services[0].ask("/api/v1/captures?limit=500")["captures"]
            )
            if states["done"] >= alerts and set(states) == {"done"}:
                break
            if time.monotonic() > until or states["failed"]:
                raise SystemExit(f"captures did not end: {dict(states)}")
            time.sleep(0.2)
        taken = time.monotonic() - began
        return taken, Counter(job for one in services for job in one.jobs())


def alert(job_id: str) -> bytes:
    labels = {"alertname": "TrainingHang", "job_id": job_id}
    one = {"status": "firing", "labels": labels, "startsAt": "2026-01-01T00:00:00Z"}
    return json.dumps({"version": "4", "alerts": [one]}).encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--alerts", type=int, default=80, help="jobs that hang at once (%(default)s)")
    parser.add_argument("--capture-seconds", type=float, default=2.0, help="(%(default)s)")
    options = parser.parse_args()
    good = True
    with (
        tempfile.TemporaryDirectory() as name,
        tempfile.TemporaryDirectory(prefix="hangscope-pg-", dir="/tmp", ignore_cleanup_errors=True) as place,
        object_store(Path(name)),
    ):
        server = Server(Path(place))
        try:
            for count in (1, 2, 3):
                seconds, jobs = measure(
                    count, options.alerts, options.capture_seconds, Path(name), server.database()
                )
                lost = options.alerts - len(jobs)
                doubled = sum(times > 1 for times in jobs.values())
                kept = lost == doubled == 0
                good = good and kept
                rate = 60 * options.alerts / seconds
                most = count * WORKERS * 60 / options.capture_seconds
                what = f"{count} snapshotter{'s' if count > 1 else ''}, {options.alerts} hangs at once"
                print(
                    f"{what}: {rate:.0f} captures a minute (the workers could {most:.0f}), "
                    f"lost {lost}, doubled {doubled}",
                    flush=True,
                )
                row(
                    what,
                    f"{rate:.0f} captures a minute; {lost} lost, {doubled} doubled",
                    peer=f"{most:.0f} if {WORKERS} workers each only waited",
                    bound="none lost, none doubled",
                    good=kept,
                )
        finally:
            server.stop()
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
