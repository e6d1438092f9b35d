"""A service with everything real but the capture: index, queue, store and analysis."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from playwright.sync_api import Browser, Page, expect, sync_playwright

from snapshotter import app
from snapshotter.analysis import analyser
from snapshotter.app import Running
from snapshotter.bundle.schema import CaptureRequest
from snapshotter.config import AnalysisConfig, Config
from snapshotter.gathered import Gathered
from snapshotter.stacks.model import Frame, NcclAnswer, NodeAnswer, Process, Sample, Thread
from snapshotter.web.auth import Auth, TokenFile
from tests import npm
from tests.running import wait_for
from tests.web.looking import DESKTOP

PATIENCE = 100_000  # milliseconds: a busy machine is no fault of the page


def rank(number: int, node: str, *functions: str) -> Process:
    """A trainer whose main thread is in `functions`, innermost first."""
    frames = tuple(Frame(name, "/train.py", 10 + depth) for depth, name in enumerate(functions))
    threads = (Thread(1, "MainThread", 100 + number, True, False, frames),)
    samples = tuple(Sample(1000.0 + n, "ok", threads=threads, state="S", wchan="futex") for n in (0, 5))
    return Process(
        pid=100 + number,
        node=node,
        role="trainer",
        rank=number,
        outcome="ok",
        gpu=str(number % 8),
        samples=samples,
    )


def default_answers(request: CaptureRequest) -> tuple[NodeAnswer, ...]:
    """Two nodes: rank 2 is stuck in its own code; the launcher could not be read."""
    first = (rank(0, "gpu-1", "all_reduce", "train"), rank(1, "gpu-1", "all_reduce", "train"))
    unread = Sample(1000.0, "denied", "ptrace is not permitted", state="S", wchan="do_wait")
    launcher = Process(90, "gpu-2", "launcher", None, "denied", samples=(unread,))
    second = (rank(2, "gpu-2", "decode_image", "train"), launcher)
    return (
        NodeAnswer("gpu-1", "ok", 1.0, 2.0, request.job_id, None, first, nccl=NcclAnswer("NCCL 2.26.3\n")),
        NodeAnswer("gpu-2", "ok", 1.0, 2.0, request.job_id, None, second),
    )


@dataclass
class Capturer:
    """Stands for the capture of a job; remembers what was asked for."""

    answers: Callable[[CaptureRequest], tuple[NodeAnswer, ...]] = default_answers
    asked: list[CaptureRequest] = field(default_factory=list)

    def __call__(self, request: CaptureRequest, progress: Callable[[str], None]) -> tuple[Gathered, ...]:
        self.asked.append(request)
        progress("2 of 2 nodes")
        return tuple(map(Gathered.of, self.answers(request)))


class Clock:
    """Real time plus what the test adds."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._stopped_at: float | None = None

    def stop(self) -> None:
        self._stopped_at = time.time()

    def __call__(self) -> float:
        return (time.time() if self._stopped_at is None else self._stopped_at) + self.ahead


@dataclass
class Service:
    """What a test holds in its hands."""

    running: Running
    client: FlaskClient
    capturer: Capturer
    clock: Clock
    folder: Path

    def alert(self, **labels: str) -> dict[str, Any]:
        """A notification with one firing alert."""
        return {"version": "4", "receiver": "hangscope", "alerts": [firing(**labels)]}

    def capture(self, job_id: str = "llama") -> str:
        """Ask for a capture by alert and wait until it is done; its id."""
        answer = self.client.post("/api/v1/alerts", json=self.alert(job_id=job_id))
        assert answer.status_code == 202, answer.text
        (capture_id,) = answer.json["captures"]
        return self.wait(capture_id)

    def wait(self, capture_id: str, *states: str) -> str:
        """Wait until the capture is in one of the states (by default: over)."""
        wait_for(lambda: self.state(capture_id) in (states or ("done", "failed")))
        return capture_id

    def state(self, capture_id: str) -> str:
        return str(self.client.get(f"/api/v1/captures/{capture_id}").json["state"])


def firing(**labels: str) -> dict[str, Any]:
    return {
        "status": "firing",
        "labels": {"alertname": "TrainingHang", "job_id": "llama"} | labels,
        "annotations": {},
        "startsAt": "2026-11-30T01:22:33Z",
        "endsAt": "0001-01-01T00:00:00Z",
    }


Start = Callable[..., Service]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts services; every one is stopped at the end."""
    running: list[Running] = []

    def make(
        *,
        config: Config | None = None,
        token: TokenFile | None = None,
        folder: Path | None = None,
        basic_auth: bool = False,
        reload: Callable[[], None] = lambda: None,
        analyse: Callable[..., dict[str, Any]] | None = None,
    ) -> Service:
        capturer, clock, given = Capturer(), Clock(), config or Config()
        where = folder or tmp_path / "data"
        one = app.start(
            lambda: given,
            where,
            capture=capturer,
            analyse=analyse or analyser(AnalysisConfig()),
            auth=Auth(token, basic_auth=lambda: basic_auth),
            external_url="http://hangscope.example/",
            reload=reload,
            now=clock,
        )
        running.append(one)
        client = app.create_app(one.services).test_client()
        return Service(one, client, capturer, clock, where)

    yield make
    for one in running:
        one.stop()


@pytest.fixture
def service(start: Start) -> Service:
    return start()


@pytest.fixture
def alert() -> Callable[..., dict[str, Any]]:
    return firing


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = shutil.which("chromium") or "/usr/bin/chromium"
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield one
        one.close()


@pytest.fixture(scope="session")
def page_tools() -> Path:
    """axe-core and speedscope, test tools from the npm registry."""
    return npm.installed(Path(__file__).parent / "tools", "--ignore-scripts")


@pytest.fixture(scope="session")
def axe(page_tools: Path) -> str:
    return (page_tools / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture
def visit(browser: Browser, site: Any) -> Iterator[Callable[..., Page]]:
    """Opens a page of the module's site in a fresh context; errors of scripts and of loading are errors here."""
    problems: list[str] = []
    contexts = []

    def open_page(
        address: str, size: tuple[int, int] = DESKTOP, *, expect_status: int = 200, **options: Any
    ) -> Page:
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        if expect_status == 200:
            page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
        answer = page.goto(address if ":" in address else site.url + address)
        assert answer is None or answer.status == expect_status or "://" in address, address
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not problems
