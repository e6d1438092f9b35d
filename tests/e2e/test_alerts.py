"""Alerts provoked with real programs: real ranks, the shipped rules, Alertmanager's rendered messages.

Only times are shortened: what waits for minutes in the shipped files waits for a second or two here. The
rest, expressions and annotations, is as shipped. What one machine cannot show within a minute (NCCL faults, a
job that slows down over hours, a fleet without exporters) is shown by the rules' own tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from standalone import chain as standalone
from standalone import processes
from standalone.chain import Chain, Settings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
RANK = ROOT / "tests" / "programs" / "alerting_rank.py"
PATIENCE_SECONDS = 150.0
FOREVER = 1_000_000


def shorten(text: str) -> str:
    """The rules with every wait of seconds or more cut down."""
    text = re.sub(r"(?m)^(\s+for: )(?!0s$)\w+$", r"\g<1>1s", text)
    text = re.sub(r"_longest_seconds\) > \d+", "_longest_seconds) > 2", text)
    return re.sub(r"(_longest_seconds\)\n\s+> bool\n\s+)30", r"\g<1>2", text)


class Chat:
    """Stands for the chat and the pager: keeps the messages that Alertmanager renders."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        messages = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                messages.extend(body["attachments"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def text(self) -> str:
        return "\n".join(f"{one['title']}\n{one['text']}" for one in self.messages)


@pytest.fixture
def chat() -> Iterator[Chat]:
    chat = Chat()
    yield chat
    chat.server.shutdown()
    chat.server.server_close()


@pytest.fixture
def chain(chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chain]:
    rules = tmp_path / "rules"
    rules.mkdir()
    for path in (ROOT / "rules").glob("*.yaml"):
        (rules / path.name).write_text(shorten(path.read_text()))
    address = tmp_path / "chat.url"
    address.write_text(f"http://127.0.0.1:{chat.server.server_port}/\n")
    example = (rules / "alertmanager-example.yaml").read_text()
    example = re.sub(r"(?<=api_url_file: )\S+", str(address), example)
    (rules / "alertmanager-example.yaml").write_text(example.replace("group_wait: 10s", "group_wait: 2s"))
    monkeypatch.setattr(standalone, "RULES", rules)
    processes.adopt_orphans()
    limits = {"hang_limit": "6s", "startup_grace": "6s"}
    snapshotter = {"capture": {"sample_interval": "2s"}}
    chain = Chain(Settings(tmp_path / "chain", "1s", {"limits": limits}, snapshotter, ports=(0, 0, 0, 0)))
    try:
        chain.start()
        yield chain
    finally:
        chain.stop()


def start_job(
    chain: Chain, folder: Path, job_id: str, fault: str, iterations: int
) -> list[subprocess.Popen[bytes]]:
    """Two ranks that log to one file."""
    log = folder / f"{job_id}.log"
    ranks = []
    for rank in ("0", "1"):
        environment = os.environ | {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": "2",
            "TORCHELASTIC_RUN_ID": job_id,
        }
        command = [sys.executable, str(RANK), fault, str(iterations)]
        ranks.append(processes.start(command, log=log, environment=environment))
        chain.adopt(ranks[-1])
    return ranks


def lose_one(chain: Chain, ranks: list[subprocess.Popen[bytes]], job_id: str) -> None:
    """End rank 1 once both ranks have been seen."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not chain.query(f'training_ranks_running{{job_id="{job_id}"}} == 2'):
        assert time.monotonic() < deadline, f"both ranks of {job_id} were never seen"
        time.sleep(0.2)
    ranks[1].kill()


@pytest.fixture
def piped(chain: Chain) -> Iterator[str]:
    """A job whose output goes where nobody can follow it; its id."""
    job_id = "piped"
    environment = os.environ | {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": job_id}
    with subprocess.Popen(
        [sys.executable, str(RANK), "iterates", str(FOREVER)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    ) as child:
        yield job_id
        child.kill()


def post(url: str, body: bytes = b"", **headers: str) -> int:
    request = urllib.request.Request(url, body, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def wait_for(chain: Chain, wanted: dict[tuple[str, str], bool], what: Callable[[], str]) -> None:
    """Until each (alert, job) has fired."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not all(wanted.values()):
        assert time.monotonic() < deadline, f"{[key for key, seen in wanted.items() if not seen]}\n{what()}"
        for one in chain.query('ALERTS{alertstate="firing"}'):
            key = (one["metric"]["alertname"], one["metric"].get("job_id", ""))
            if key in wanted:
                wanted[key] = True
        time.sleep(0.5)


def test_alerts_fire_and_are_told(chain: Chain, chat: Chat, piped: str, tmp_path: Path) -> None:
    start_job(chain, tmp_path, "stops", "stops", 20)
    start_job(chain, tmp_path, "sleeps", "sleeps", 20)
    ranks = start_job(chain, tmp_path, "loses-one", "iterates", FOREVER)
    start_job(chain, tmp_path, "never-starts", "waits", 0)
    lose_one(chain, ranks, "loses-one")

    # Configurations that are wrong, and a sender with a wrong token.
    folder = chain.settings.folder
    for name in ("exporter", "snapshotter"):
        path = folder / f"{name}.yml"
        path.write_text(path.read_text().replace("{", '{"no_such_key": 1, ', 1))
    bearer = {"Authorization": f"Bearer {chain.token}"}
    assert post(f"{chain.exporter_url}/-/reload", **bearer) >= 400
    assert post(f"{chain.snapshotter_url}/-/reload", **bearer) >= 400
    # A counter's first scrape is where its increase starts from.
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not chain.query('snapshotter_notifications_total{result="unauthorized"}'):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    for _ in range(3):
        assert post(f"{chain.snapshotter_url}/api/v1/alerts", b"{}", Authorization="Bearer wrong") == 401

    wanted = {
        ("TrainingHang", "stops"): False,
        ("TrainingHang", "sleeps"): False,
        ("TrainingHang", "never-starts"): False,
        ("TrainingHangSuspected", "stops"): False,
        ("TrainingHangConfirmed", "stops"): False,
        ("TrainingHangDiagnosed", "stops"): False,
        ("TrainingHangDiagnosed", "sleeps"): False,
        ("TrainingProcessStopped", "stops"): False,
        ("TrainingProcessUninterruptible", "sleeps"): False,
        ("TrainingRankMissing", "loses-one"): False,
        ("TrainingNeverStarted", "never-starts"): False,
        ("HangscopeLogNotRecognised", "never-starts"): False,
        ("HangscopeRankWithoutLog", piped): False,
        ("HangscopeVerdictMissing", "stops"): False,
        ("HangscopeExporterConfigReloadFailed", ""): False,
        ("HangscopeSnapshotterConfigReloadFailed", ""): False,
        ("HangscopeNotificationsRefused", ""): False,
    }
    accounting = Path("/proc/sys/kernel/task_delayacct")
    if accounting.exists() and accounting.read_text().strip() == "0":
        wanted["HangscopeDelayAccountingOff", ""] = False
    wait_for(chain, wanted, chat.text)

    # Healthy all the while.
    quiet = chain.query('max_over_time(ALERTS{alertname=~"TrainingHang.*", job_id=~"piped|loses-one"}[10m])')
    assert not quiet

    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (told := re.search(r"\*TrainingHangDiagnosed\* (Job stops .*)\n(.*)", chat.text())):
        assert time.monotonic() < deadline, chat.text()
        time.sleep(0.5)
    assert "Culprits: rank 1 on " in told.group(1)
    assert f"<{chain.snapshotter_url}/captures/" in told.group(2)
    assert "|report>" in told.group(2)
    assert "*TrainingRankMissing*" in chat.text()
    # It comes with the hang, and is quiet under it.
    assert "*TrainingNeverStarted*" not in chat.text()


def test_a_program_that_is_gone_is_told(chain: Chain, chat: Chat) -> None:
    for name in ("exporter", "snapshotter"):
        (pid,) = [
            pid
            for pid in processes.descendants(os.getpid())
            if f"hangscope-{name}" in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        ]
        os.kill(pid, 15)
    wait_for(
        chain,
        {("HangscopeExporterDown", ""): False, ("HangscopeSnapshotterDown", ""): False},
        chat.text,
    )
