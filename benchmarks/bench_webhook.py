"""1,000 notifications a second for 30 s: how long the webhook takes to answer, and whether any is lost.

The snapshotter runs in a process of its own with SQLite on the disk; its capture is made up. Notifications
come at fixed moments (open loop: a slow answer does not slow the sender down) over kept connections, about 50
jobs that begin to hang one after another; each is sent again and again, as Alertmanagers do. The peer of the
same run is the same server and framework answering 202 without reading or storing anything.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from flask import Flask

from exporter import webconfig
from snapshotter import app
from snapshotter.bundle.schema import CaptureRequest
from snapshotter.config import Config
from snapshotter.stacks.model import NodeAnswer
from snapshotter.web.auth import Auth

VERDICT = {
    "hung": True,
    "scope": "local",
    "cause": "application",
    "culprit_ranks": "0",
    "culprit_nodes": ["gpu-1"],
    "confidence": 0.5,
    "headline": "Rank 0 is stuck.",
}
JOBS = 50


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=1000, help="notifications a second (%(default)s)")
    parser.add_argument("--seconds", type=int, default=30, help="(%(default)s)")
    parser.add_argument("--serve", choices=("snapshotter", "peer"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    peer, _ = measure("peer", options.rate, options.seconds)
    real, captures = measure("snapshotter", options.rate, options.seconds)
    sent = options.rate * options.seconds
    answered = sum(real.statuses.values())
    print(f"peer:        {peer.describe()}")
    print(f"snapshotter: {real.describe()}")
    print(f"p99 ratio to the peer: {real.quantile(0.99) / peer.quantile(0.99):.2f}")
    print(f"sent {sent}, answered {answered}, by status {dict(real.statuses)}")
    print(f"jobs {JOBS}, captures {captures}")
    good = real.quantile(0.99) <= 0.1 and real.statuses.keys() <= {200, 202} and answered == sent
    return 0 if good and captures == JOBS else 1


class Results:
    """Answer times in seconds, from the moment a notification was due; and statuses."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.statuses: Counter[int] = Counter()

    def quantile(self, q: float) -> float:
        return sorted(self.times)[min(int(q * len(self.times)), len(self.times) - 1)]

    def describe(self) -> str:
        parts = (
            f"{name} {self.quantile(q) * 1000:.1f} ms"
            for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1))
        )
        return ", ".join(parts)


def measure(kind: str, rate: int, seconds: int) -> tuple[Results, int]:
    """Run one server and send to it; the answer times, and the captures it took."""
    with subprocess.Popen(
        [sys.executable, __file__, "--serve", kind], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        port = int(process.stdout.readline())
        results = Results()
        lock = threading.Lock()
        senders = 8
        start = time.monotonic() + 0.5
        threads = [
            threading.Thread(
                target=send, args=(port, range(n, rate * seconds, senders), rate, start, results, lock)
            )
            for n in range(senders)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        process.stdin.close()
        return results, int(process.stdout.readline())


def send(port: int, numbers: range, rate: int, start: float, results: Results, lock: threading.Lock) -> None:
    """Send the notifications of these numbers, each at its moment."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Content-Type": "application/json"}
    for number in numbers:
        due = start + number / rate
        time.sleep(max(0.0, due - time.monotonic()))
        body = notification(number, numbers[-1])
        try:
            connection.request("POST", "/api/v1/alerts", body, headers)
            answer = connection.getresponse()
        except OSError:  # the server closed the kept connection just then; Alertmanager tries again too
            connection.close()
            connection.request("POST", "/api/v1/alerts", body, headers)
            answer = connection.getresponse()
        answer.read()
        took = time.monotonic() - due
        with lock:
            results.times.append(took)
            results.statuses[answer.status] += 1
    connection.close()


def notification(number: int, last: int) -> bytes:
    """One of the jobs that hang already, one more every so often; four alerts each, as four logs give."""
    hanging = 1 + number * (JOBS - 1) // max(last, 1)
    job = (
        f"job-{min(number % max(hanging, 1), JOBS - 1)}"
        if number < last - 2 * JOBS
        else f"job-{number % JOBS}"
    )
    alerts = [
        {
            "status": "firing",
            "labels": {
                "alertname": "TrainingHang",
                "job_id": job,
                "log": f"rank{rank}",
                "severity": "critical",
            },
            "annotations": {
                "summary": "Training job has stopped iterating.",
                "report_url": "http://x/" + "y" * 80,
            },
            "startsAt": "2026-11-30T01:22:33.123456789Z",
            "endsAt": "0001-01-01T00:00:00Z",
            "fingerprint": f"{rank:016x}",
        }
        for rank in range(4)
    ]
    return json.dumps({"version": "4", "groupKey": job, "receiver": "snapshotter", "alerts": alerts}).encode()


def serve(kind: str) -> None:
    """The server process: prints its port, ends with its standard input, then prints the captures taken."""
    if kind == "peer":
        listen(peer(), lambda: 0)
        return
    taken: set[str] = set()

    def capture(request: CaptureRequest, progress: Callable[[str], None]) -> tuple[NodeAnswer, ...]:
        taken.add(request.capture_id)
        time.sleep(0.5)
        return (NodeAnswer("gpu-1", "ok", 1.0, 2.0, job_id=request.job_id),)

    with tempfile.TemporaryDirectory(prefix="hangscope-bench-") as folder:
        running = app.start(
            Config,
            Path(folder),
            capture=capture,
            analyse=lambda capture, at: {"schema_version": 1, "verdict": VERDICT},
            auth=Auth(None),
            external_url="http://localhost",
            reload=lambda: None,
        )

        def finish() -> int:
            deadline = time.monotonic() + 60
            index = running.services.index
            while {one.state for one in index.list(limit=500)} != {"done"} and time.monotonic() < deadline:
                time.sleep(0.1)
            return len(index.list(limit=500))

        listen(app.create_app(running.services), finish)
        running.stop()


def peer() -> Flask:
    made = Flask("peer", static_folder=None)

    @made.post("/api/v1/alerts")
    def alerts() -> tuple[dict[str, list[str]], int]:
        return {"captures": []}, 202

    return made


def listen(wsgi: Flask, finish: Callable[[], int]) -> None:
    server = webconfig.server(wsgi, "127.0.0.1:0", webconfig.WebConfig(), None, threads=16)
    webconfig.bind(server)
    threading.Thread(target=server.serve, daemon=True).start()
    print(server.bind_addr[1], flush=True)
    sys.stdin.read()
    print(finish(), flush=True)
    server.stop()


if __name__ == "__main__":
    sys.exit(main())
