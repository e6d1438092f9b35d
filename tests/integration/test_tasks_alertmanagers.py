"""Two real Alertmanagers that know nothing of each other send everything to two snapshotters: one capture."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.running import wait_for

if TYPE_CHECKING:
    from conftest import Start

CONFIG = """
route:
  receiver: snapshotter
  group_by: [{group_by}]
  group_wait: 0s
  group_interval: 1s
  repeat_interval: 1s
receivers:
  - name: snapshotter
    webhook_configs:
      - url: {url}/api/v1/alerts
        send_resolved: true
"""


class Alertmanager:
    """A real Alertmanager without peers."""

    def __init__(self, folder: Path, snapshotter: str, group_by: str) -> None:
        program = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
        assert program, "Alertmanager is not installed (Debian: prometheus-alertmanager)"
        folder.mkdir()
        config = folder / "alertmanager.yml"
        config.write_text(CONFIG.format(url=snapshotter, group_by=group_by))
        self._log = (folder / "log").open("w")
        self.process = subprocess.Popen(
            [
                program,
                f"--config.file={config}",
                f"--storage.path={folder / 'data'}",
                "--web.listen-address=127.0.0.1:0",
                "--cluster.listen-address=",
            ],
            stdout=self._log,
            stderr=self._log,
        )
        listening = re.compile(r'"Listening on" address=(127\.0\.0\.1:\d+)')
        log = folder / "log"
        wait_for(
            lambda: self.process.poll() is not None or listening.search(log.read_text()), say=log.read_text
        )
        found = listening.search(log.read_text())
        assert found is not None, log.read_text()
        self.url = f"http://{found[1]}"

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def post(self, *logs: str, started: datetime, ended: datetime | None = None) -> None:
        """What Prometheus sends: the alerts of one job, one for each log."""
        alerts = [
            {
                "labels": {
                    "alertname": "TrainingHang",
                    "job_id": "llama",
                    "log": log,
                    "severity": "critical",
                },
                "startsAt": started.isoformat(),
                "endsAt": (ended or started + timedelta(hours=1)).isoformat(),
            }
            for log in logs
        ]
        body = json.dumps(alerts).encode()
        headers = {"Content-Type": "application/json"}
        urllib.request.urlopen(
            urllib.request.Request(f"{self.url}/api/v2/alerts", body, headers), timeout=60
        ).close()

    def notified(self) -> int:
        """How many notifications went out and were answered with success."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        sent, failed = (
            sum(
                float(n)
                for n in re.findall(rf'^{name}{{[^}}]*integration="webhook"[^}}]*}} (\S+)', text, re.M)
            )
            for name in ("alertmanager_notifications_total", "alertmanager_notifications_failed_total")
        )
        return int(sent - failed)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self._log.close()


@pytest.fixture
def pair(
    tmp_path: Path, start_snapshotters: Start, request: pytest.FixtureRequest
) -> Iterator[tuple[list[Alertmanager], Start]]:
    snapshotters = start_snapshotters("one", "two")
    made = [
        Alertmanager(tmp_path / f"alertmanager-{number}", one.address, group_by)
        for number, (one, group_by) in enumerate(zip(snapshotters, ("job_id", "job_id, log"), strict=True))
    ]
    yield made, snapshotters
    for alertmanager in made:
        alertmanager.end()


def test_a_pair_that_groups_differently_and_repeats_itself_leads_to_one_capture(
    pair: tuple[list[Alertmanager], Start],
) -> None:
    alertmanagers, (one, two) = pair
    for alertmanager in alertmanagers:
        wait_for(alertmanager.ready)
    started = datetime.now(UTC)
    for alertmanager in alertmanagers:
        alertmanager.post("rank0.log", started=started)
    wait_for(lambda: all(one.notified() >= 2 for one in alertmanagers))
    for alertmanager in alertmanagers:
        alertmanager.post("rank0.log", "rank1.log", started=started)
    sent = [one.notified() for one in alertmanagers]
    wait_for(
        lambda: all(one.notified() >= before + 3 for one, before in zip(alertmanagers, sent, strict=True))
    )
    wait_for(one.all_done)
    (capture,) = two.captures()
    assert (capture["job_id"], capture["trigger"], capture["number"]) == ("llama", "alert", 1)
    (job,) = one.get("/api/v1/jobs")["jobs"]
    assert job["incident"]["captures"] == 1

    ended = datetime.now(UTC)
    for alertmanager in alertmanagers:
        alertmanager.post("rank0.log", "rank1.log", started=started, ended=ended)
    wait_for(lambda: one.get("/api/v1/jobs")["jobs"][0]["incident"] is None)
    assert one.captures() == two.captures() == [capture]
    assert one.jobs() + two.jobs() == ["llama"]
