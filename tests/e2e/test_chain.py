"""The whole chain on real programs: a torchrun job goes wrong, and a page names the culprit.

One chain (exporter, snapshotter, Debian's Prometheus and Alertmanager) serves all scenarios, with the demo's
settings; each scenario is a job of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from demo import job
from demo.__main__ import ask_during_checkpoint, settings
from demo.scenarios import SCENARIOS, Scenario, find
from demo.watch import Verdict, Watch
from snapshotter.render.verdict import CAUSES
from standalone import processes
from standalone.chain import Chain, get_json

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

PATIENCE_SECONDS = 240.0
HANGS = [one for one in SCENARIOS if one.hung]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    processes.adopt_orphans()
    chain = Chain(settings(tmp_path_factory.mktemp("chain")))
    try:
        chain.start(patience=PATIENCE_SECONDS)
        yield chain
    finally:
        chain.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser
        browser.close()


def new_page(browser: Browser) -> Page:
    page = browser.new_page()
    page.set_default_timeout(1000 * PATIENCE_SECONDS)
    return page


class Lines:
    """What the demo would have printed, for the failure message."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, text: str) -> None:
        self.lines.append(text)

    def __str__(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture
def jobs(chain: Chain) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The jobs of a test; ended with it."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    below = [pid for one in started for pid in processes.descendants(one.pid)]
    for pid in (*(one.pid for one in started), *below):
        with contextlib.suppress(ProcessLookupError):  # it may have ended with the one before
            os.kill(pid, signal.SIGKILL)
    for one in started:
        one.wait()


def run(chain: Chain, scenario: Scenario, jobs: list[subprocess.Popen[bytes]]) -> tuple[str, Verdict]:
    """Run the scenario's job to the verdict; returns the job's id and the verdict. The job goes on."""
    job_id = f"e2e-{scenario.name}"
    lines = Lines()
    watch = Watch(chain, job_id, say=lines)
    jobs.append(job.start(scenario.name, job_id=job_id, folder=chain.settings.folder / "job", fault_at=20))
    deadline = time.monotonic() + PATIENCE_SECONDS
    if scenario.hung:
        verdict = watch.wait_for_verdict(deadline)
    else:
        verdict = ask_during_checkpoint(chain, watch, job_id, deadline)
    print(lines)
    assert verdict is not None, f"no verdict in time:\n{lines}"
    return job_id, verdict


def diagnosed(chain: Chain, job_id: str) -> dict[str, Any]:
    """The TrainingHangDiagnosed alert of the job, as Alertmanager holds it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for alert in get_json(f"{chain.alertmanager_url}/api/v2/alerts"):
            labels = alert["labels"]
            if labels["alertname"] == "TrainingHangDiagnosed" and labels["job_id"] == job_id:
                return dict(alert)
        time.sleep(0.2)
    raise AssertionError(f"TrainingHangDiagnosed did not reach Alertmanager for {job_id}")


@pytest.mark.parametrize("scenario", HANGS, ids=lambda scenario: scenario.name)
def test_a_hang_becomes_a_named_culprit(
    chain: Chain, browser: Browser, jobs: list[subprocess.Popen[bytes]], scenario: Scenario
) -> None:
    job_id, found = run(chain, scenario, jobs)
    verdict = found.report["verdict"]
    assert (verdict["hung"], verdict["scope"], verdict["cause"], verdict["culprit_ranks"]) == (
        scenario.hung,
        scenario.scope,
        scenario.cause,
        scenario.culprit_ranks,
    ), json.dumps(verdict, indent=2)

    # The page says it, and so does the fixed address that alerts carry.
    page = new_page(browser)
    page.goto(found.url)
    text = page.inner_text("body")
    assert verdict["headline"] in text
    assert CAUSES[verdict["cause"]] in text
    page.goto(f"{chain.snapshotter_url}/jobs/{job_id}/latest")
    assert verdict["headline"] in page.inner_text("body")
    page.close()

    # Whoever is paged reads culprits and address without opening anything.
    annotations = diagnosed(chain, job_id)["annotations"]
    assert annotations.get("culprit_ranks", "") == scenario.culprit_ranks
    assert annotations["report_url"].startswith(chain.snapshotter_url)
    assert annotations["cause"] == scenario.cause


def test_a_slow_checkpoint_is_no_hang(
    chain: Chain, browser: Browser, jobs: list[subprocess.Popen[bytes]]
) -> None:
    scenario = find("slow-checkpoint")
    job_id, found = run(chain, scenario, jobs)
    verdict = found.report["verdict"]
    assert (verdict["hung"], verdict["scope"], verdict["cause"], verdict["culprit_ranks"]) == (
        False,
        "none",
        "checkpoint",
        "",
    ), json.dumps(verdict, indent=2)
    page = new_page(browser)
    page.goto(found.url)
    assert verdict["headline"] in page.inner_text("body")
    page.close()

    # It goes on training afterwards, and nobody was paged at any time.
    deadline = time.monotonic() + PATIENCE_SECONDS
    log = chain.settings.folder / "job" / f"{job_id}.log"
    while "successfully saved checkpoint" not in log.read_text():
        assert time.monotonic() < deadline, "the checkpoint did not end"
        time.sleep(0.2)
    last = 0.0
    while last <= job_iteration_at_fault(log):
        assert time.monotonic() < deadline, "no iteration after the checkpoint reached Prometheus"
        found_values = chain.query(f'training_log_last_iteration{{job_id="{job_id}"}}')
        last = max((float(one["value"][1]) for one in found_values), default=0.0)
        time.sleep(0.2)
    assert (
        chain.query(
            f'count_over_time(ALERTS{{alertname=~"TrainingHang.*",job_id="{job_id}",alertstate="firing"}}[1h])'
        )
        == []
    )


def job_iteration_at_fault(log: Path) -> int:
    """The iteration at which the checkpoint was begun, by the job's own log."""
    line = next(line for line in log.read_text().splitlines() if line.startswith("saving checkpoint"))
    return int(line.split("iteration")[1].split()[0])
