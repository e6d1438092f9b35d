"""1,000 notifications a second for 30 s: how long the webhook takes to answer, and whether any is lost.

The snapshotter runs in a process of its own with SQLite on the disk; its capture is made up. Notifications
come at fixed moments (open loop: a slow answer does not slow the sender down) over kept connections, about 50
jobs that begin to hang one after another; each is sent again and again, as Alertmanagers do. The peer of the
same run is the same server and Flask answering 202 without reading or storing anything.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import openloop
from flask import Flask
from openloop import Results

from benchmarks.results import row
from exporter import webconfig
from snapshotter import app, serving
from snapshotter.bundle.schema import CaptureRequest
from snapshotter.config import Config
from snapshotter.gathered import Gathered
from snapshotter.stacks.model import NodeAnswer
from snapshotter.web.auth import Auth
from snapshotter.web.places import THREADS

VERDICT = {
    "hung": True,
    "scope": "local",
    "cause": "application",
    "culprit_ranks": "0",
    "culprit_nodes": ["gpu-1"],
    "confidence": 0.5,
    "headline": "Rank 0 is stuck.",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=1000, help="notifications a second (%(default)s)")
    parser.add_argument("--seconds", type=int, default=30, help="(%(default)s)")
    parser.add_argument("--jobs", type=int, default=50, help="that begin to hang meanwhile (%(default)s)")
    parser.add_argument("--connections", type=int, default=8, help="(%(default)s)")
    parser.add_argument("--serve", choices=("snapshotter", "peer"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    load = (options.rate, options.seconds, options.jobs, options.connections)
    peer, _ = measure("peer", *load)
    real, captures = measure("snapshotter", *load)
    sent = options.rate * options.seconds
    answered = sum(real.statuses.values())
    print(f"peer:        {peer.describe()}")
    print(f"snapshotter: {real.describe()}")
    print(f"p99 ratio to the peer: {real.quantile(0.99) / peer.quantile(0.99):.2f}")
    print(f"sent {sent}, answered {answered}, by status {dict(real.statuses)}")
    print(f"jobs {options.jobs}, captures {captures}")
    row(
        f"{options.rate} notifications a second",
        real.describe(),
        peer=f"a server that only answers: {peer.describe()}",
        bound="p99 100 ms",
        good=real.quantile(0.99) <= 0.1,
    )
    row(
        "answered; captures of the hangs",
        f"{answered} of {sent}; {captures} of {options.jobs}",
        bound="all",
        good=answered == sent and captures == options.jobs,
    )
    good = real.quantile(0.99) <= 0.1 and real.statuses.keys() <= {200, 202} and answered == sent
    return 0 if good and captures == options.jobs else 1


def measure(kind: str, rate: int, seconds: int, jobs: int, connections: int) -> tuple[Results, int]:
    """Run one server and send to it; the answer times, and the captures it took."""
    with subprocess.Popen(
        [sys.executable, __file__, "--serve", kind], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        port = int(process.stdout.readline())
        requests = [http_request(f"job-{number}") for number in range(jobs)]
        count = rate * seconds
        results = openloop.run(
            ("127.0.0.1", port),
            lambda number: requests[job_of(number, count, jobs)],
            rate=rate,
            count=count,
            connections=connections,
        )
        process.stdin.close()
        return results, int(process.stdout.readline())


def job_of(number: int, count: int, jobs: int) -> int:
    """The jobs begin to hang one after another; those that do are told of in turn, in the end all."""
    hanging = min(jobs, 1 + number * jobs // max(count - 2 * jobs, 1))
    return number % hanging


def http_request(job: str) -> bytes:
    """A notification of four alerts, as four logs give."""
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
    body = json.dumps({"version": "4", "groupKey": job, "receiver": "snapshotter", "alerts": alerts}).encode()
    head = (
        "POST /api/v1/alerts HTTP/1.1\r\nHost: localhost\r\nUser-Agent: Alertmanager/0.27.0\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def serve(kind: str) -> None:
    """The server process: prints its port, ends with its standard input, then prints the captures taken."""
    if kind == "peer":
        listen(peer(), lambda: 0)
        return
    taken: set[str] = set()

    def capture(request: CaptureRequest, progress: Callable[[str], None]) -> tuple[Gathered, ...]:
        taken.add(request.capture_id)
        time.sleep(0.5)
        return (Gathered.of(NodeAnswer("gpu-1", "ok", 1.0, 2.0, job_id=request.job_id)),)

    with tempfile.TemporaryDirectory(prefix="hangscope-bench-") as folder:
        running = app.start(
            Config,
            Path(folder),
            capture=capture,
            analyse=lambda job_id, trees, at: {"schema_version": 1, "verdict": VERDICT},
            auth=Auth(None),
            external_url="http://localhost",
            reload=lambda: None,
        )

        def finish() -> int:
            deadline = time.monotonic() + 60
            index = running.services.index
            while {one.state for one in index.list(limit=10_000)} != {"done"} and time.monotonic() < deadline:
                time.sleep(0.1)
            return len(index.list(limit=10_000))

        listen(app.create_app(running.services), finish)
        running.stop()


def peer() -> Flask:
    made = Flask("peer", static_folder=None)

    @made.post("/api/v1/alerts")
    def alerts() -> tuple[dict[str, list[str]], int]:
        return {"captures": []}, 202

    return made


def listen(wsgi: Flask, finish: Callable[[], int]) -> None:
    server = webconfig.server(wsgi, "127.0.0.1:0", webconfig.WebConfig(), None, threads=THREADS)
    webconfig.bind(server)
    serving.settle_interpreter()
    threading.Thread(target=server.serve, daemon=True).start()
    print(server.bind_addr[1], flush=True)
    sys.stdin.read()
    print(finish(), flush=True)
    server.stop()


if __name__ == "__main__":
    sys.exit(main())
