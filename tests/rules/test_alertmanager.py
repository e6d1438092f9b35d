"""The Alertmanager example, run by a real Alertmanager: who is told what."""

from __future__ import annotations

import json
import queue
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.running import DEADLINE_SECONDS, port_of_log, wait_for

EXAMPLE = Path(__file__).parents[2] / "rules" / "alertmanager-example.yaml"


@dataclass(frozen=True)
class Post:
    """What a receiver got."""

    path: str
    authorization: str | None
    body: dict[str, Any]


class Alertmanager:
    """A running Alertmanager and what its receivers got, in order."""

    def __init__(self, address: str, posts: queue.Queue[Post]) -> None:
        self._address = address
        self._posts = posts
        self.got: list[Post] = []

    def send(self, *alerts: dict[str, Any]) -> None:
        request = urllib.request.Request(
            f"{self._address}/api/v2/alerts",
            json.dumps(alerts).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60):
            pass

    def wait_for(self, path: str, job_id: str) -> Post:
        """The next post to a path that speaks of a job."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            try:
                self.got.append(self._posts.get(timeout=0.2))
            except queue.Empty:
                continue
            if self.got[-1].path == path and job_id in json.dumps(self.got[-1].body):
                return self.got[-1]
        raise AssertionError(self.got)


def alert(name: str, severity: str, job_id: str) -> dict[str, Any]:
    return {
        "labels": {"alertname": name, "severity": severity, "job_id": job_id},
        "annotations": {
            "summary": "Training job has stopped iterating.",
            "description": f"Job {job_id} has logged no iteration for 2m 15s.",
            "report_url": f"http://snapshotter/jobs/{job_id}/latest",
            "dashboard_url": f"http://grafana/d/hangscope-job?var-job_id={job_id}",
            "runbook_url": f"http://snapshotter/runbooks/{name}.md",
        },
    }


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[Alertmanager]:
    posts: queue.Queue[Post] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            posts.put(Post(self.path, self.headers["Authorization"], body))
            self.send_response(202)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    program = shutil.which("prometheus-alertmanager")
    assert program is not None, "prometheus-alertmanager is missing: apt-get install prometheus-alertmanager"
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}"
        (tmp_path / "token").write_text("s3cret\n")
        (tmp_path / "chat.url").write_text(f"{here}/chat\n")
        text = EXAMPLE.read_text()
        for pattern, value in (
            (r"http://127\.0\.0\.1:11029", here),
            (r"(?<=credentials_file: )\S+", str(tmp_path / "token")),
            (r"(?<=api_url_file: )\S+", str(tmp_path / "chat.url")),
            (r"group_wait: 10s", "group_wait: 2s"),
        ):
            text, count = re.subn(pattern, value, text)
            assert count == 1, pattern
        (tmp_path / "alertmanager.yml").write_text(text)
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(
                [
                    program,
                    f"--config.file={tmp_path / 'alertmanager.yml'}",
                    f"--storage.path={tmp_path / 'data'}",
                    "--web.listen-address=127.0.0.1:0",
                    "--cluster.listen-address=",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            address = f"http://127.0.0.1:{port_of_log(tmp_path / 'log')}"
            wait_for(lambda: _is_ready(address), say=(tmp_path / "log").read_text)
            yield Alertmanager(address, posts)
        finally:
            process.terminate()
            process.wait(timeout=60)
            server.shutdown()


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/-/ready", timeout=10):
            return True
    except OSError:
        return False


def test_a_hang_goes_to_the_snapshotter_at_once_and_to_people_once(alertmanager: Alertmanager) -> None:
    alertmanager.send(
        alert("TrainingHang", "critical", "llama"),
        alert("TrainingHang", "critical", "gpt"),
        # Causes of a hang that pages are quiet, those of another job are not.
        alert("TrainingRankMissing", "warning", "llama"),
        alert("TrainingHangSuspected", "info", "llama"),
        alert("TrainingRankMissing", "warning", "bert"),
        # Nobody is told of mere information.
        alert("TrainingHangSuspected", "info", "opt"),
    )
    asked = alertmanager.wait_for("/api/v1/alerts", "llama")
    assert asked.authorization == "Bearer s3cret"
    assert asked.body["version"] == "4"
    assert asked.body["status"] == "firing"
    assert asked.body["groupLabels"] == {"job_id": "llama"}
    assert [one["labels"]["alertname"] for one in asked.body["alerts"]] == ["TrainingHang"]

    # The last message of the three groups that people are told of closes the test.
    told = {}
    for job_id in ("llama", "gpt", "bert"):
        if job_id not in told:
            already = [p for p in alertmanager.got if p.path == "/chat" and job_id in json.dumps(p.body)]
            told[job_id] = already[0] if already else alertmanager.wait_for("/chat", job_id)
    chat = [one for one in alertmanager.got if one.path == "/chat"]
    assert len(chat) == 3
    assert not [one for one in chat if "opt" in json.dumps(one.body)]

    (message,) = told["llama"].body["attachments"]
    assert message["title"] == "llama: Training job has stopped iterating."
    assert message["title_link"] == "http://snapshotter/jobs/llama/latest"
    assert message["text"].splitlines() == [
        "*TrainingHang* Job llama has logged no iteration for 2m 15s.",
        "<http://snapshotter/jobs/llama/latest|report>"
        " · <http://grafana/d/hangscope-job?var-job_id=llama|dashboard>"
        " · <http://snapshotter/runbooks/TrainingHang.md|what to do>",
    ]
    webhooks = [one for one in alertmanager.got if one.path == "/api/v1/alerts"]
    assert sorted(one.body["groupLabels"]["job_id"] for one in webhooks) == ["gpt", "llama"]


def test_the_page_tells_headline_culprits_and_where_the_report_is(alertmanager: Alertmanager) -> None:
    verdict = alert("TrainingHangDiagnosed", "critical", "R&D <7>")
    verdict["annotations"] |= {
        "summary": "The hang of a training job has been diagnosed.",
        "description": "Job R&D <7> hangs. Rank 5 (on gpu-1) reads in <listcomp> (data.py:7).",
        "report_url": "http://snapshotter/captures/c1",
    }
    alertmanager.send(verdict)
    (message,) = alertmanager.wait_for("/chat", "R&amp;D").body["attachments"]
    assert message["title"] == "R&amp;D &lt;7&gt;: The hang of a training job has been diagnosed."
    assert message["title_link"] == "http://snapshotter/captures/c1"
    told, links = message["text"].splitlines()
    assert told == (
        "*TrainingHangDiagnosed* Job R&amp;D &lt;7&gt; hangs. Rank 5 (on gpu-1) reads in &lt;listcomp&gt; (data.py:7)."
    )
    assert links.startswith("<http://snapshotter/captures/c1|report> · ")


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        ("alertname=TrainingHang severity=critical job_id=x", "hangscope-snapshotter,pager"),
        ("alertname=TrainingHangDiagnosed severity=critical job_id=x", "pager"),
        ("alertname=TrainingHangConfirmed severity=critical job_id=x", "pager"),
        ("alertname=TrainingRankMissing severity=warning job_id=x", "chat"),
        ("alertname=HangscopeExporterDown severity=warning instance=n1", "chat"),
        ("alertname=TrainingHangSuspected severity=info job_id=x", "nobody"),
    ],
)
def test_routes(labels: str, receivers: str) -> None:
    command = ["amtool", "config", "routes", "test", f"--config.file={EXAMPLE}", *labels.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == receivers, done.stderr


def test_advanced_diagnosis_is_one_matcher_away(tmp_path: Path) -> None:
    """As the example's comment says: TrainingHang alone goes to chat, and is captured all the same."""
    text, count = re.subn(
        r'matchers: \[severity="critical"\]',
        'matchers: [severity="critical", alertname!="TrainingHang"]',
        EXAMPLE.read_text(),
    )
    assert count == 1
    path = tmp_path / "alertmanager.yml"
    path.write_text(text)
    for name, receivers in (
        ("TrainingHang", "hangscope-snapshotter,chat"),
        ("TrainingHangConfirmed", "pager"),
        ("TrainingHangDiagnosed", "pager"),
    ):
        command = ["amtool", "config", "routes", "test", f"--config.file={path}"]
        done = subprocess.run(
            [*command, f"alertname={name}", "severity=critical"], capture_output=True, text=True, timeout=240
        )
        assert done.stdout.strip() == receivers
