"""A snapshotter over real HTTP whose capture is made up; it can be told at which step to die (SIGKILL).

Prints its port once it listens. Every capture appends its id to the file given, and lasts as long as it is told.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from glob import glob
from pathlib import Path
from typing import Any

from exporter import webconfig
from snapshotter import app
from snapshotter.bundle.index import Index
from snapshotter.bundle.schema import CaptureRequest
from snapshotter.bundle.store import FolderStore
from snapshotter.config import Config, IncidentConfig, StorageConfig
from snapshotter.gathered import Gathered
from snapshotter.stacks.model import NodeAnswer, Process
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("captured", type=Path)
    parser.add_argument("--die-at", default="")
    parser.add_argument("--capture-seconds", type=float, default=0.0)
    parser.add_argument("--until", help="a glob: captures last until such files are there and none is empty")
    parser.add_argument("--cool-down", type=float, default=600.0)
    parser.add_argument("--index")
    parser.add_argument("--queue")
    parser.add_argument("--bundles")
    options = parser.parse_args()
    sys.stdin.close()

    def capture(request: CaptureRequest, progress: Callable[[str], None]) -> tuple[Gathered, ...]:
        progress("asking gpu-1")
        with options.captured.open("a") as file:
            file.write(f"{request.capture_id} {request.job_id}\n")
        if options.die_at == "capturing":
            die()
        time.sleep(options.capture_seconds)
        while options.until is not None and not all_written(options.until):
            time.sleep(0.01)
        process = Process(1, "gpu-1", "trainer", 0, "ok")
        answer = NodeAnswer("gpu-1", "ok", 1.0, 2.0, job_id=request.job_id, processes=(process,))
        return (Gathered.of(answer),)

    def analyse(job_id: str, trees: object, at: float) -> dict[str, Any]:
        if options.die_at == "analysing":
            die()
        return {"schema_version": 1, "verdict": VERDICT}

    patch(options.die_at)
    config = Config(
        storage=StorageConfig(index=options.index, queue=options.queue, bundles=options.bundles),
        incidents=IncidentConfig(cool_down=options.cool_down),
    )
    running = app.start(
        lambda: config,
        options.folder,
        capture=capture,
        analyse=analyse,
        auth=Auth(None),
        external_url="http://localhost",
        reload=lambda: None,
    )
    server = webconfig.server(app.create_app(running.services), "127.0.0.1:0", webconfig.WebConfig(), None)
    webconfig.bind(server)
    print(server.bind_addr[1], flush=True)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        server.serve()
    except KeyboardInterrupt:
        pass
    finally:
        server.stop()
        running.stop()


def all_written(pattern: str) -> bool:
    paths = glob(pattern)
    return bool(paths) and all(os.path.getsize(path) for path in paths)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def patch(step: str) -> None:
    """Have the process die before or after a step of a capture's life."""
    if step == "enqueueing":
        app.Tasks._enqueue = lambda self, ids: die() if ids else None  # type: ignore[method-assign]
    elif step == "claimed":
        after(Index, "claim")
    elif step == "storing":
        before(Path, "rename")
    elif step == "stored":
        after(FolderStore, "put")
    elif step == "finished":
        after(Index, "finish")


def after(kind: type, name: str) -> None:
    real = getattr(kind, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        real(*args, **kwargs)
        die()

    setattr(kind, name, wrapped)


def before(kind: type, name: str) -> None:
    setattr(kind, name, lambda *args, **kwargs: die())


if __name__ == "__main__":
    main()
