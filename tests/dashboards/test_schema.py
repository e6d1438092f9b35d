"""The dashboards against Grafana's published types (the npm package @grafana/schema), by the TypeScript compiler."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "schema"
DASHBOARDS = sorted((Path(__file__).parents[2] / "dashboards").glob("hangscope-*.json"))
Check = Callable[[dict[str, Any]], str]


@pytest.fixture(scope="module")
def modules() -> Path:
    """Type definitions and compiler, installed once."""
    folder = HERE / "node_modules"
    wanted = json.loads((HERE / "package.json").read_text())["devDependencies"]
    have = {
        name: json.loads(path.read_text())["version"]
        for name in wanted
        if (path := folder / name / "package.json").exists()
    }
    if have != wanted:
        npm = shutil.which("npm")
        assert npm is not None, "npm is missing: apt-get install npm"
        command = [npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def check(modules: Path, tmp_path: Path) -> Check:
    """What the compiler says about a dashboard; empty where its types are right."""
    (tmp_path / "node_modules").symlink_to(modules)
    shutil.copy(HERE / "types.ts", tmp_path)

    def run(dashboard: dict[str, Any]) -> str:
        (tmp_path / "dashboard.ts").write_text(
            "import type { Dashboard } from './types';\n"
            f"export const dashboard: Dashboard = {json.dumps(dashboard, indent=1)};\n"
        )
        options = (
            "--noEmit --strict --skipLibCheck --target es2022 --module esnext --moduleResolution bundler"
        )
        done = subprocess.run(
            [modules / ".bin" / "tsc", *options.split(), "dashboard.ts"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.stdout + done.stderr

    return run


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboard_has_grafanas_types(check: Check, path: Path) -> None:
    assert check(json.loads(path.read_text())) == ""


def test_a_wrong_option_is_noticed(check: Check) -> None:
    dashboard = json.loads(DASHBOARDS[0].read_text())
    stat = next(panel for panel in dashboard["panels"] if panel["type"] == "stat")
    stat["options"]["graphMode"] = "sometimes"
    assert "sometimes" in check(dashboard)
