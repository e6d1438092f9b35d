"""The exporter as a program: its routes, its metrics in promtool's eyes, reload, and its end."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import DEADLINE_SECONDS, Program, run, running, wait_for

PROGRAM = "hangscope-exporter"


def metric(exporter: Program, name: str) -> float:
    line = next(line for line in exporter.ask("/metrics")[1].splitlines() if line.startswith(name + " "))
    return float(line.rpartition(" ")[2])


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Program]:
    log = tmp_path / "train<b>.log"
    log.write_text(" iteration        7/     100 | elapsed time per iteration (ms): 50.0 |\n")
    config = tmp_path / "exporter.yml"
    config.write_text(f"node_name: node-1\nlogs: [{{path: '{tmp_path}/train*.log', job_id: job-1}}]\n")
    with running(tmp_path, PROGRAM, f"--config.file={config}") as started:
        wait_for(lambda: started.ask("/-/ready")[0] == 200 and 'job_id="job-1"' in started.ask("/metrics")[1])
        yield started


def test_what_it_serves_is_clean(exporter: Program) -> None:
    scrapes: list[str] = []

    def failing() -> list[str]:
        status, text = exporter.ask("/metrics")
        assert status == 200
        scrapes.append(text)
        success = 'hangscope_exporter_collector_success{{collector="{}"}} 1.0'
        collectors = ("iteration", "process", "identity", "nccl", "self")
        return [one for one in collectors if success.format(one) not in text]

    wait_for(lambda: not failing(), say=failing)  # one may be too slow for a scrape, on a busy machine
    assert 'training_log_last_iteration{job_id="job-1"' in scrapes[-1]
    lint = subprocess.run(["promtool", "check", "metrics"], input=scrapes[-1], capture_output=True, text=True)
    assert (lint.returncode, lint.stdout, lint.stderr) == (0, "", "")


def test_the_landing_page_says_what_is_seen(exporter: Program) -> None:
    status, page = exporter.ask("/")
    assert status == 200
    assert "Node <b>node-1</b>" in page
    assert "job-1" in page
    assert "train&lt;b&gt;.log" in page
    assert "train<b>.log" not in page
    assert exporter.ask("/-/healthy")[0] == 200
    assert exporter.ask("/nothing")[0] == 404


def test_a_bad_new_configuration_leaves_the_old_one_in_force(exporter: Program, tmp_path: Path) -> None:
    reloaded = "hangscope_exporter_config_last_reload_successful"
    config = tmp_path / "exporter.yml"
    good = config.read_text()
    assert metric(exporter, reloaded) == 1
    config.write_text("lgos: []\n")
    status, text = exporter.ask("/-/reload", method="POST")
    assert status == 500
    assert "did you mean `logs`?" in text
    assert metric(exporter, reloaded) == 0
    assert 'job_id="job-1"' in exporter.ask("/metrics")[1]
    config.write_text(good.replace("job-1", "job-2"))
    assert exporter.ask("/-/reload", method="POST")[0] == 200
    assert metric(exporter, reloaded) == 1
    wait_for(lambda: 'job_id="job-2"' in exporter.ask("/metrics")[1])
    config.write_text("logs: 5\n")
    exporter.process.send_signal(signal.SIGHUP)
    exporter.wait_for("the old configuration stays in force")
    assert metric(exporter, reloaded) == 0


def test_a_bad_new_web_configuration_leaves_everything_as_it_was(tmp_path: Path) -> None:
    config, web = tmp_path / "exporter.yml", tmp_path / "web.yml"
    web.write_text("http_server_config: {headers: {X-Frame-Options: deny}}\n")
    (tmp_path / "train.log").write_text(" iteration 7/ 100 | elapsed time per iteration (ms): 50.0 |\n")
    logs = f"logs: [{{path: '{tmp_path}/train.log', job_id: job-1}}]\n"
    config.write_text(logs)
    with running(tmp_path, PROGRAM, f"--config.file={config}", f"--web.config.file={web}") as exporter:
        wait_for(lambda: 'job_id="job-1"' in exporter.ask("/metrics")[1])
        config.write_text(logs.replace("job-1", "job-2"))
        web.write_text("http_server_confg: {}\n")
        status, text = exporter.ask("/-/reload", method="POST")
        assert (status, "did you mean `http_server_config`?" in text) == (500, True)
        assert metric(exporter, "hangscope_exporter_config_last_reload_successful") == 0
        web.write_text("{}\n")
        config.write_text(logs.replace("job-1", "job-3"))
        assert exporter.ask("/-/reload", method="POST")[0] == 200
        assert metric(exporter, "hangscope_exporter_config_last_reload_successful") == 1
        wait_for(lambda: 'job_id="job-3"' in exporter.ask("/metrics")[1])


def test_a_page_of_another_site_cannot_reload(exporter: Program) -> None:
    assert exporter.ask("/-/reload", method="POST", headers={"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert exporter.ask("/-/reload")[0] == 405


def test_sigterm_ends_it_in_good_order(exporter: Program) -> None:
    exporter.process.terminate()
    assert exporter.process.wait(timeout=DEADLINE_SECONDS) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config.file=/nowhere/exporter.yml"], "error: /nowhere/exporter.yml: cannot be read"),
        (["--web.listen-address=here"], "error: --web.listen-address 'here': write it as"),
        (["--web.config.file=/nowhere/web.yml"], "error: /nowhere/web.yml: cannot be read"),
        (["check-config", "/nowhere/exporter.yml"], "error: /nowhere/exporter.yml: cannot be read"),
        (["--path.procfs=/nowhere"], "error: --path.procfs /nowhere: no /proc is there: name the folder"),
        (
            ["list-ranks", "--path.procfs=/usr"],
            "error: --path.procfs /usr: no /proc is there: name the folder",
        ),
    ],
)
def test_a_start_that_cannot_succeed_is_one_clear_error(flags: list[str], words: str) -> None:
    done = run(PROGRAM, *flags)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(words)


def test_a_command_that_is_none_is_answered_with_those_that_are() -> None:
    done = run(PROGRAM, "lits-ranks")
    assert done.returncode == 2
    assert "invalid choice: 'lits-ranks'" in done.stderr and "list-ranks" in done.stderr


@pytest.mark.parametrize(
    "words", [["--help"], ["serve", "--help"], ["check-log", "--help"], ["list-ranks", "--help"]]
)
def test_help_teaches(words: list[str]) -> None:
    done = run(PROGRAM, *words)
    assert done.returncode == 0
    assert "usage: hangscope-exporter" in done.stdout
