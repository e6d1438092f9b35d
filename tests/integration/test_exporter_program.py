"""The exporter as a program: its routes, its metrics in promtool's eyes, reload, and its end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).parent / "hangscope-exporter"
DEADLINE_SECONDS = 60.0


class Exporter:
    """A running exporter and what it has logged."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self.url = "http://127.0.0.1:" + self.wait_for(r"listening on 127\.0\.0\.1:(\d+)")

    def wait_for(self, pattern: str) -> str:
        """The first group of a pattern once the log has it."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            match = re.search(pattern, self.log.read_text())
            if match is not None:
                return match[1] if match.groups() else match[0]
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"{pattern} is not in the log:\n{self.log.read_text()}")

    def get(
        self, path: str, *, method: str = "GET", headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        request = urllib.request.Request(self.url + path, method=method, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        line = next(line for line in self.get("/metrics")[1].splitlines() if line.startswith(name + " "))
        return float(line.rpartition(" ")[2])


@contextmanager
def running(folder: Path, *flags: str) -> Iterator[Exporter]:
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [PROGRAM, "--web.listen-address=127.0.0.1:0", *flags], stdout=output, stderr=output
        )
    try:
        yield Exporter(process, log)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    log = tmp_path / "train<b>.log"
    log.write_text(" iteration        7/     100 | elapsed time per iteration (ms): 50.0 |\n")
    config = tmp_path / "exporter.yml"
    config.write_text(f"node_name: node-1\nlogs: [{{path: '{tmp_path}/train*.log', job_id: job-1}}]\n")
    with running(tmp_path, f"--config.file={config}") as started:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while started.get("/-/ready")[0] != 200 or 'job_id="job-1"' not in started.get("/metrics")[1]:
            assert time.monotonic() < deadline, "not ready, or the log was not found"
            time.sleep(0.05)
        yield started


def test_what_it_serves_is_clean(exporter: Exporter) -> None:
    status, text = exporter.get("/metrics")
    assert status == 200
    assert 'training_log_last_iteration{job_id="job-1"' in text
    lint = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert (lint.returncode, lint.stdout, lint.stderr) == (0, "", "")
    for collector in ("iteration", "process", "identity", "nccl", "self"):
        assert f'hangscope_exporter_collector_success{{collector="{collector}"}} 1.0' in text


def test_the_landing_page_says_what_is_seen(exporter: Exporter) -> None:
    status, page = exporter.get("/")
    assert status == 200
    assert "Node <b>node-1</b>" in page
    assert "job-1" in page
    assert "train&lt;b&gt;.log" in page
    assert "train<b>.log" not in page
    assert exporter.get("/-/healthy")[0] == 200
    assert exporter.get("/nothing")[0] == 404


def test_a_bad_new_configuration_leaves_the_old_one_in_force(exporter: Exporter, tmp_path: Path) -> None:
    reloaded = "hangscope_exporter_config_last_reload_successful"
    config = tmp_path / "exporter.yml"
    good = config.read_text()
    assert exporter.metric(reloaded) == 1
    config.write_text("lgos: []\n")
    status, text = exporter.get("/-/reload", method="POST")
    assert status == 500
    assert "did you mean `logs`?" in text
    assert exporter.metric(reloaded) == 0
    assert 'job_id="job-1"' in exporter.get("/metrics")[1]
    config.write_text(good.replace("job-1", "job-2"))
    assert exporter.get("/-/reload", method="POST")[0] == 200
    assert exporter.metric(reloaded) == 1
    deadline = time.monotonic() + DEADLINE_SECONDS
    while 'job_id="job-2"' not in exporter.get("/metrics")[1]:
        assert time.monotonic() < deadline, "the new configuration never came into force"
        time.sleep(0.05)
    config.write_text("logs: 5\n")
    exporter.process.send_signal(signal.SIGHUP)
    exporter.wait_for("the old configuration stays in force")
    assert exporter.metric(reloaded) == 0


def test_a_page_of_another_site_cannot_reload(exporter: Exporter) -> None:
    assert exporter.get("/-/reload", method="POST", headers={"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert exporter.get("/-/reload")[0] == 405


def test_sigterm_ends_it_in_good_order(exporter: Exporter) -> None:
    exporter.process.terminate()
    assert exporter.process.wait(timeout=DEADLINE_SECONDS) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config.file=/nowhere/exporter.yml"], "error: /nowhere/exporter.yml: cannot be read"),
        (["--web.listen-address=here"], "error: --web.listen-address here: write it as"),
        (["--web.config.file=/nowhere/web.yml"], "error: /nowhere/web.yml: cannot be read"),
        (["check-config", "/nowhere/exporter.yml"], "error: /nowhere/exporter.yml: cannot be read"),
    ],
)
def test_a_start_that_cannot_succeed_is_one_clear_error(flags: list[str], words: str) -> None:
    done = subprocess.run([PROGRAM, *flags], capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(words)


@pytest.mark.parametrize(
    "words", [["--help"], ["serve", "--help"], ["check-log", "--help"], ["list-ranks", "--help"]]
)
def test_help_teaches(words: list[str]) -> None:
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 0
    assert "usage: hangscope-exporter" in done.stdout
