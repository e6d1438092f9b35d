"""Every alert that one machine can provoke, provoked with real programs: exporter, snapshotter, agent, ranks,
Prometheus with the shipped rules, and the messages that Alertmanager renders. Only times are shortened.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from standalone import processes
from standalone.chain import Chain, get_json
from tests.e2e.alerting import JSON, PATIENCE_SECONDS, Chat, Key, links, listening, running, send, wait_for
from tests.running import running as running_program
from tests.running import shared_port
from tests.running import wait_for as wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs"
TRANSCRIPTS = ROOT / "tests" / "fixtures" / "nccl" / "transcripts"
FOREVER = 1_000_000
NO_ACCOUNTING = Path("/proc/sys/kernel/task_delayacct")

OF_JOBS: tuple[Key, ...] = (
    ("TrainingHang", "stops"),
    ("TrainingHang", "sleeps"),
    ("TrainingHang", "never-starts"),
    ("TrainingHangSuspected", "stops"),
    ("TrainingHangConfirmed", "stops"),
    ("TrainingHangDiagnosed", "stops"),
    ("TrainingHangDiagnosed", "sleeps"),
    ("TrainingProcessStopped", "stops"),
    ("TrainingProcessUninterruptible", "sleeps"),
    ("TrainingRankMissing", "loses-one"),
    ("TrainingNeverStarted", "never-starts"),
    ("TrainingSlow", "slows"),
    ("TrainingNcclProcessDead", "nccl-dead"),
    ("TrainingNcclCommunicatorError", "nccl-error"),
    ("TrainingNcclCommunicatorStalled", "nccl-stalled"),
    ("HangscopeLogNotRecognised", "never-starts"),
    ("HangscopeLogUnreadable", "unreadable"),
    ("HangscopeRankWithoutLog", "piped"),
    ("HangscopeVerdictMissing", "stops"),
    ("HangscopeExporterConfigReloadFailed", ""),
    ("HangscopeSnapshotterConfigReloadFailed", ""),
    ("HangscopeNotificationsRefused", ""),
    ("HangscopeDelayAccountingOff", ""),
)
OF_PROGRAMS: tuple[Key, ...] = (
    ("HangscopeCapturePartial", ""),
    ("HangscopeCaptureFailed", ""),
    ("HangscopeQueueFilling", ""),
    ("HangscopeReaderStale", ""),
    ("HangscopeBundlesOverLimit", ""),
    ("HangscopeIndexDown", ""),
    ("HangscopeExporterDown", ""),
    ("HangscopeSnapshotterDown", ""),
    ("HangscopeExporterAbsent", ""),
    ("HangscopeSnapshotterAbsent", ""),
)
OF_DISKS: tuple[Key, ...] = (("HangscopeDiskFilling", ""), ("HangscopeCannotStore", ""))
# Why nothing that one machine can do from outside makes them fire; the rules' own tests show them.
NOT_PROVOKED = {
    "HangscopeCollectorFailed": "a collector only writes down what readers published: only a defect makes it fail",
}


def test_every_alert_is_provoked_or_it_is_said_why_not() -> None:
    alerts = {
        rule["alert"]
        for path in (ROOT / "rules").glob("*_alerts.yaml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    provoked = {name for name, _ in (*OF_JOBS, *OF_PROGRAMS, *OF_DISKS)}
    assert provoked | set(NOT_PROVOKED) == alerts
    assert not provoked & set(NOT_PROVOKED)


@pytest.fixture
def chat() -> Iterator[Chat]:
    with listening() as chat:
        yield chat


def rank(chain: Chain, log: Path, job_id: str, number: str, *command: str | Path, **extra: str) -> int:
    """A rank of a job of two that logs to a file; its pid. It ends with the chain."""
    environment = os.environ | {
        "RANK": number,
        "LOCAL_RANK": number,
        "WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": job_id,
        **extra,
    }
    child = processes.start([sys.executable, *map(str, command)], log=log, environment=environment)
    chain.adopt(child)
    return child.pid


def start_job(chain: Chain, folder: Path, job_id: str, fault: str, iterations: int) -> list[int]:
    """Two ranks that log to one file; their pids."""
    command = (PROGRAMS / "alerting_rank.py", fault, str(iterations))
    return [rank(chain, folder / f"{job_id}.log", job_id, one, *command) for one in "01"]


def start_nccl_job(chain: Chain, folder: Path, job_id: str, answer: str, port: int) -> None:
    """A job that iterates, and whose NCCL, for which rank 1 stands in, says what a real one once said."""
    address = f"127.0.0.1:{port}"
    log = folder / f"{job_id}.log"
    iterates = (PROGRAMS / "alerting_rank.py", "iterates", str(FOREVER))
    rank(chain, log, job_id, "0", *iterates, NCCL_RAS_ADDR=address)
    host, _, port = address.partition(":")
    answers = (PROGRAMS / "ras_stand_in.py", host, port, TRANSCRIPTS / f"{answer}.reply")
    rank(chain, log, job_id, "1", *answers, NCCL_RAS_ADDR=address)


def wait_for_series(chain: Chain, expression: str) -> None:
    wait_until(lambda: chain.query(expression), PATIENCE_SECONDS, lambda: f"never came true: {expression}")


@contextmanager
def piped(job_id: str) -> Iterator[None]:
    """A job whose output goes where nobody can follow it."""
    environment = os.environ | {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": job_id}
    with subprocess.Popen(
        [sys.executable, str(PROGRAMS / "alerting_rank.py"), "iterates", str(FOREVER)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    ) as child:
        try:
            yield
        finally:
            child.kill()


def spoil(path: Path) -> None:
    """Give a configuration a key that nobody knows."""
    path.write_text(path.read_text().replace("{", '{"no_such_key": 1, ', 1))


def test_alerts_about_jobs(chat: Chat, tmp_path: Path) -> None:
    watched = tmp_path / "unreadable.log"
    exporter = {
        "limits": {"hang_limit": "6s", "startup_grace": "6s"},
        "nccl": {"version": "2.30.7", "quiet_start": "0s"},
        "logs": [{"path": str(watched), "job_id": "unreadable"}],
    }
    # A capture takes long enough for people to be told that the verdict is missing, before it comes.
    snapshotter = {"capture": {"sample_interval": "20s"}}
    with (
        running(chat, tmp_path, exporter=exporter, snapshotter=snapshotter) as chain,
        piped("piped"),
        ExitStack() as ports,
    ):
        for name, answer in (
            ("nccl-dead", "killed-t75-json-2.30.7"),
            ("nccl-error", "error-async-one-json-2.30.7"),
            ("nccl-stalled", "lag-one-json-2.30.7"),
        ):
            start_nccl_job(chain, tmp_path, name, answer, ports.enter_context(shared_port()))
        start_job(chain, tmp_path, "slows", "slows", 150)
        start_job(chain, tmp_path, "stops", "stops", 20)
        start_job(chain, tmp_path, "sleeps", "sleeps", 20)
        start_job(chain, tmp_path, "never-starts", "waits", 0)
        start_job(chain, tmp_path, "unreadable", "iterates", FOREVER)
        _, second = start_job(chain, tmp_path, "loses-one", "iterates", FOREVER)

        wait_for_series(chain, 'training_ranks_running{job_id="loses-one"} == 2')
        os.kill(second, signal.SIGKILL)
        wait_for_series(chain, 'training_log_readable{job_id="unreadable"} == 1')
        watched.rename(tmp_path / "moved.log")
        watched.mkdir()

        # Configurations that are wrong, and a sender with a wrong token.
        bearer = {"Authorization": f"Bearer {chain.token}"}
        for name, url in (("exporter", chain.exporter_url), ("snapshotter", chain.snapshotter_url)):
            spoil(chain.settings.folder / f"{name}.yml")
            assert send(f"{url}/-/reload", **bearer) >= 400
        # A counter's first scrape is where its increase starts from.
        wait_for_series(chain, 'snapshotter_notifications_total{result="unauthorized"}')
        for _ in range(3):
            assert send(f"{chain.snapshotter_url}/api/v1/alerts", b"{}", Authorization="Bearer wrong") == 401

        wanted = [one for one in OF_JOBS if one[0] != "HangscopeDelayAccountingOff"]
        if NO_ACCOUNTING.exists() and NO_ACCOUNTING.read_text().strip() == "0":
            wanted.append(("HangscopeDelayAccountingOff", ""))
        wait_for(chain, chat, *wanted)

        # Healthy all the while.
        healthy = "piped|loses-one|slows|nccl-.*"
        assert not chain.query(
            f'max_over_time(ALERTS{{alertname=~"TrainingHang|TrainingHang(Confirmed|Diagnosed)",job_id=~"{healthy}"}}[10m])'
        )
        # It comes with the hang, and is quiet under it.
        assert chat.told("TrainingNeverStarted") is None
        verdict_is_told(chain, chat, "stops")
        for job_id in ("stops", "sleeps"):
            told = chat.told("TrainingHang", job_id)
            assert told is not None
            for text, url in links(told).items():
                if text != "dashboard":
                    assert get(url) == 200, url


def verdict_is_told(chain: Chain, chat: Chat, job_id: str) -> None:
    """The message has the headline of the report that it leads to, and the culprits."""
    told = chat.told("TrainingHangDiagnosed", f"Job {job_id} ")
    assert told is not None
    address = links(told)["report"]
    capture_id = address.removeprefix(f"{chain.snapshotter_url}/captures/")
    report = get_json(f"{chain.snapshotter_url}/api/v1/captures/{capture_id}/report")
    headline = report["verdict"]["headline"]
    escaped = headline.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert f"Job {job_id} hangs. {escaped} Cause: process_stopped, scope: local. Culprits: rank 1 on " in told
    assert get(address) == 200


def get(url: str) -> int:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return int(answer.status)


def ask_for_capture(chain: Chain, job_id: str) -> str:
    body = json.dumps({"job_id": job_id, "reason": "test"}).encode()
    request = urllib.request.Request(
        f"{chain.snapshotter_url}/api/v1/captures",
        body,
        {"Authorization": f"Bearer {chain.token}"} | JSON,
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["capture_id"])


def hang(chain: Chain, job_id: str) -> None:
    """Have Alertmanager tell the snapshotter of a hang."""
    alert = {"labels": {"alertname": "TrainingHang", "severity": "critical", "job_id": job_id}}
    url = f"{chain.alertmanager_url}/api/v2/alerts"
    assert send(url, json.dumps([alert]).encode(), **JSON) == 200


def test_alerts_about_the_programs(chat: Chat, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    proc.symlink_to("/proc")
    token = tmp_path / "agent.token"
    token.write_text("0f1e2d3c4b5a\n")
    token.chmod(0o600)
    flags = ("agent", f"--web.token-file={token}")
    with running_program(tmp_path, "hangscope-snapshotter", *flags) as agent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # held, so that nobody else listens there
        nodes = [urllib.parse.urlsplit(agent.url).netloc, f"127.0.0.1:{closed.getsockname()[1]}"]
        agents = {"nodes": nodes, "token_file": str(token)}
        snapshotter = {
            "agents": agents,
            "capture": {"sample_interval": "0s", "node_timeout": "10s"},
            "workers": 1,
        }
        with running(chat, tmp_path, snapshotter=snapshotter, procfs=proc) as chain:
            start_job(chain, tmp_path, "job", "iterates", FOREVER)
            wait_for_series(chain, 'training_ranks_running{job_id="job"} == 2')
            proc.unlink()  # as a container that loses its mount of the node's /proc
            captures_go_wrong(chain, chat, agent.process.pid)
            wait_for(chain, chat, ("HangscopeReaderStale", ""))
            programs_go_wrong(chain, chat)


def captures_go_wrong(chain: Chain, chat: Chat, agent: int) -> None:
    wait_for_series(chain, "snapshotter_captures_total")
    # One of two nodes has no agent; of a job that is gone nothing is found at all.
    capture_id = ask_for_capture(chain, "job")
    wait_for(chain, chat, ("HangscopeCapturePartial", ""))
    hang(chain, "gone")
    wait_for(chain, chat, ("HangscopeCaptureFailed", ""))

    # What is pinned is more than may be kept.
    path = f"{chain.snapshotter_url}/api/v1/captures/{capture_id}"
    bearer = {"Authorization": f"Bearer {chain.token}"}
    pinned = json.dumps({"pinned": True}).encode()
    assert send(path, pinned, method="PATCH", **bearer, **JSON) == 200
    configuration = chain.settings.folder / "snapshotter.yml"
    given = json.loads(configuration.read_text())
    configuration.write_text(json.dumps(given | {"storage": {"max_size": "1KiB"}}))
    assert send(f"{chain.snapshotter_url}/-/reload", **bearer) == 200
    wait_for(chain, chat, ("HangscopeBundlesOverLimit", ""))

    # An agent that hangs itself, and many who ask.
    os.kill(agent, signal.SIGSTOP)
    for number in range(13):
        ask_for_capture(chain, f"job-{number}")
    wait_for(chain, chat, ("HangscopeQueueFilling", ""))


def programs_go_wrong(chain: Chain, chat: Chat) -> None:
    index = chain.settings.folder / "snapshotter" / "index.db"
    with sqlite3.connect(index, timeout=60) as connection:
        connection.execute("DROP TABLE captures")
    connection.close()
    wait_for(chain, chat, ("HangscopeIndexDown", ""))

    for name in ("exporter", "snapshotter"):
        os.kill(chain.pid(name), signal.SIGTERM)
    wait_for(chain, chat, ("HangscopeExporterDown", ""), ("HangscopeSnapshotterDown", ""))

    # Discovery finds no target any more. (Of a job that is gone from the configuration Prometheus keeps the last
    # samples for five minutes.)
    prometheus = chain.settings.folder / "prometheus.yml"
    given = json.loads(prometheus.read_text())
    for job in given["scrape_configs"]:
        job["static_configs"] = [{"targets": []}]
    prometheus.write_text(json.dumps(given))
    os.kill(chain.pid("prometheus"), signal.SIGHUP)
    wait_for(chain, chat, ("HangscopeExporterAbsent", ""), ("HangscopeSnapshotterAbsent", ""))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.skipif(
    os.environ.get("CI") != "true" and os.geteuid() != 0, reason="only root may mount a disk to fill"
)
def test_alerts_about_the_disk(chat: Chat, small_disk: Path, tmp_path: Path) -> None:
    snapshotter = {"storage": {"bundles": str(small_disk)}}
    with running(chat, tmp_path, snapshotter=snapshotter) as chain:
        wait_for(chain, chat, ("HangscopeDiskFilling", ""))
        told = chat.told("HangscopeDiskFilling")
        assert told is not None
        assert re.search(
            r"keeps its bundles has 4[78](\.\d+)?MiB left of 48MiB\. The size cap of bundles is 20GiB,",
            told,
        ), told
        assert chat.told("HangscopeCannotStore") is None

        wait_for_series(chain, 'snapshotter_notifications_total{result="cannot_store"}')
        (small_disk / "of-somebody-else").write_bytes(bytes(40 << 20))
        hang(chain, "late")
        wait_for(chain, chat, ("HangscopeCannotStore", ""))
