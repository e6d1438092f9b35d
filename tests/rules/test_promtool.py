"""The shipped rules against promtool (Debian's 2.42, the oldest that is promised)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

RULES = Path(__file__).parents[2] / "rules"
RULE_FILES = sorted(path for path in RULES.glob("*.yaml") if "groups:" in path.read_text().splitlines())
TEST_FILES = sorted((RULES / "tests").glob("*.yaml"))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=RULES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.name)
def test_rules_load_without_a_lint(path: Path) -> None:
    _run("promtool", "check", "rules", "--lint=all", "--lint-fatal", str(path))


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.name)
def test_rules_behave(path: Path) -> None:
    _run("promtool", "test", "rules", str(path))


def test_prometheus_example_loads_all_rule_files() -> None:
    done = subprocess.run(
        ["promtool", "check", "config", "prometheus-example.yaml"],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=RULES,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULE_FILES)} rule files found" in done.stdout


def test_alertmanager_example_loads() -> None:
    _run("amtool", "check-config", "alertmanager-example.yaml")
