"""The snapshotter as a program: what it refuses to start with, reload, the agent, its end."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.running import DEADLINE_SECONDS, run, running, wait_for

PROGRAM = "hangscope-snapshotter"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("secret\n")
    path.chmod(0o600)
    return path


def refused(*arguments: str | Path) -> str:
    """The one line with which a start is refused."""
    done = run(PROGRAM, *arguments)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_it_does_not_listen_to_the_world_unprotected(tmp_path: Path) -> None:
    storage = f"--storage.path={tmp_path}"
    for address in (":0", "0.0.0.0:0", "[::]:0"):
        line = refused("serve", f"--web.listen-address={address}", storage)
        assert "can be reached from other machines" in line
        assert "--web.token-file" in line


def test_what_cleans_up_makes_no_folder_of_its_own(tmp_path: Path) -> None:
    line = refused("gc", f"--storage.path={tmp_path / 'mistyped'}")
    assert "mistyped: no such folder: name the one that the service has" in line
    assert not (tmp_path / "mistyped").exists()


def test_an_agent_wants_a_token(tmp_path: Path, token: Path) -> None:
    assert "--web.token-file is needed" in refused("agent", "--web.listen-address=127.0.0.1:0")
    token.chmod(0o644)
    assert "chmod" in refused("agent", f"--web.token-file={token}", "--web.listen-address=127.0.0.1:0")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("analysis: {frames: [{kind: thinking, path: x}]}", "'thinking' is no kind of activity"),
        ("analysis: {frames: [{kind: data, path: '('}]}", "is no regular expression"),
        ("capture: {sample_intervall: 5s}", "did you mean `sample_interval`?"),
    ],
)
def test_a_bad_configuration_is_one_clear_error(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "snapshotter.yml"
    path.write_text(text)
    assert words in refused("check-config", path)
    assert words in refused("serve", f"--config.file={path}", f"--storage.path={tmp_path / 'data'}")


def test_what_changes_something_wants_the_token(tmp_path: Path, token: Path) -> None:
    flags = (f"--storage.path={tmp_path / 'data'}", f"--web.token-file={token}")
    with running(tmp_path, PROGRAM, "serve", *flags) as program:
        body = {"job_id": "job-1", "reason": "a test"}
        assert program.ask("/-/ready")[0] == 200
        assert program.ask("/api/v1/captures", method="POST", body=body)[0] == 401
        assert program.ask("/api/v1/captures", method="POST", body=body, token="wrong")[0] == 401
        assert program.ask("/-/reload", method="POST")[0] == 401
        assert program.ask("/api/v1/captures", method="POST", body=body, token="secret")[0] == 202


def test_a_job_without_processes_leaves_a_bundle_that_says_so(tmp_path: Path, token: Path) -> None:
    flags = (f"--storage.path={tmp_path / 'data'}", f"--web.token-file={token}")
    with running(tmp_path, PROGRAM, "serve", *flags) as program:
        body = {"job_id": "gone-job", "reason": "a test"}
        status, text = program.ask("/api/v1/captures", method="POST", body=body, token="secret")
        assert status == 202
        capture_id = json.loads(text)["capture_id"]
        capture: dict[str, object] = {}

        def over() -> bool:
            capture.update(json.loads(program.ask(f"/api/v1/captures/{capture_id}")[1]))
            return capture["state"] not in ("queued", "running")

        wait_for(over, say=lambda: capture)
        assert capture["state"] == "done"
        report = json.loads(program.ask(f"/api/v1/captures/{capture_id}/report")[1])
        assert report["summary"]["total_processes"] == 0
        assert report["verdict"]["culprit_ranks"] == ""
        status, page = program.ask(f"/captures/{capture_id}")
        assert status == 200
        assert "No process of the job is left" in page
        assert "no process of job gone-job is left" in page
        program.wait_for("capture_taken")  # said once it is done
        assert "huey" not in program.log.read_text()  # what the queue's library says is for --log.level debug


def test_a_bad_new_configuration_leaves_the_old_one_in_force(tmp_path: Path) -> None:
    config = tmp_path / "snapshotter.yml"
    config.write_text("workers: 2\n")
    flags = (f"--config.file={config}", f"--storage.path={tmp_path / 'data'}")
    with running(tmp_path, PROGRAM, "serve", *flags) as program:
        reloaded = "snapshotter_config_last_reload_successful"
        assert f"{reloaded} 1.0" in program.ask("/metrics")[1]
        config.write_text("workrs: 2\n")
        status, text = program.ask("/-/reload", method="POST")
        assert status == 500
        assert "did you mean `workers`?" in text
        assert f"{reloaded} 0.0" in program.ask("/metrics")[1]
        program.process.send_signal(signal.SIGHUP)
        program.wait_for("the old configuration stays in force")
        config.write_text("workers: 3\n")
        assert program.ask("/-/reload", method="POST")[0] == 200
        assert f"{reloaded} 1.0" in program.ask("/metrics")[1]
        program.process.terminate()
        assert program.process.wait(timeout=DEADLINE_SECONDS) == 0


def test_the_agent_answers_who_has_the_token(tmp_path: Path, token: Path) -> None:
    with running(tmp_path, PROGRAM, "agent", f"--web.token-file={token}") as program:
        assert program.ask("/api/v1/ranks")[0] == 401
        assert program.ask("/api/v1/ranks", token="secret")[0] == 200
        assert program.ask("/", token="secret")[0] == 404


def test_its_metrics_are_clean(tmp_path: Path) -> None:
    with running(tmp_path, PROGRAM, "serve", f"--storage.path={tmp_path / 'data'}") as program:
        text = program.ask("/metrics")[1]
    lint = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert (lint.returncode, lint.stdout, lint.stderr) == (0, "", "")


@pytest.mark.parametrize("command", ["serve", "agent", "capture", "analyze", "gc", "reindex", "check-config"])
def test_help_teaches(command: str) -> None:
    done = run(PROGRAM, command, "--help")
    assert done.returncode == 0
    assert f"usage: hangscope-snapshotter {command}" in done.stdout
