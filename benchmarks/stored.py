"""A service on a loopback port with imaginary captures in its store, for benchmarks and tests of pages."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cheroot.wsgi import Server

from snapshotter import app, extracts
from snapshotter.analysis import analyser
from snapshotter.app import Running
from snapshotter.bundle import writer
from snapshotter.bundle.reader import open_folder
from snapshotter.bundle.schema import AlertInfo, CaptureRequest, new_capture_id
from snapshotter.config import AnalysisConfig, Config
from snapshotter.gathered import Gathered
from snapshotter.stacks import report
from snapshotter.stacks.model import JobCapture
from snapshotter.tasks import Capture
from snapshotter.web.auth import Auth


@dataclass(frozen=True, slots=True)
class Site:
    """A running service. `put` stores a capture as if it had just been taken, and gives its id."""

    url: str
    running: Running

    def put(self, capture: JobCapture, *, age: float = 0.0, with_extracts: bool = True) -> str:
        services = self.running.services
        now = time.time() - age
        labels = {"alertname": "TrainingHang", "job_id": capture.job_id, "severity": "page"}
        alert = AlertInfo(
            labels=labels, starts_at=now - 30, generator_url="http://prometheus.example/graph?g0.expr=x"
        )
        request = CaptureRequest(
            new_capture_id(now), capture.job_id, "alert", "TrainingHang", "alertmanager", now, alert=alert
        )
        analysed = report.to_json(report.analyse(capture, at=now + 7))
        manifest, files = writer.build(
            request,
            tuple(map(Gathered.of, capture.nodes)),
            analysed,
            started_at=now + 0.3,
            finished_at=now + 6.8,
        )
        if with_extracts:
            files |= extracts.build(manifest, analysed, files)
        services.store.put(manifest.capture_id, files)
        services.index.adopt(manifest, services.store.size(manifest.capture_id))
        return manifest.capture_id

    def adopt(self, folder: Path) -> str:
        """Stores a bundle that lies in a folder, and gives its id."""
        services, manifest = self.running.services, open_folder(folder).manifest()
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        services.store.put(manifest.capture_id, files)
        services.index.adopt(manifest, services.store.size(manifest.capture_id))
        return manifest.capture_id


@contextlib.contextmanager
def serve(folder: Path, capture: Capture = lambda request, progress: ()) -> Iterator[Site]:
    """A service with its data in `folder`; `capture` is what its pages' form leads to."""
    server = Server(("127.0.0.1", 0), None, numthreads=8)
    server.prepare()  # what asks already waits for the application
    url = f"http://127.0.0.1:{server.bind_addr[1]}"
    running = app.start(
        Config,
        folder,
        capture=capture,
        analyse=analyser(AnalysisConfig()),
        auth=Auth(None),
        external_url=url,
        reload=lambda: None,
    )
    server.wsgi_app = app.create_app(running.services)
    thread = threading.Thread(target=server.serve, name="pages")
    thread.start()
    try:
        yield Site(url, running)
    finally:
        server.stop()
        thread.join(10)
        running.stop()
