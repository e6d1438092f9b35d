"""The dashboards against Grafana's published types: the npm package @grafana/schema, and TypeScript."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "schema"
DASHBOARDS = sorted((Path(__file__).parents[2] / "dashboards").glob("hangscope-*.json"))


@pytest.fixture(scope="module")
def errors(modules: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the compiler says about each dashboard, and about one that is wrong on purpose; in one run."""
    folder = tmp_path_factory.mktemp("types")
    (folder / "node_modules").symlink_to(modules)
    shutil.copy(HERE / "types.ts", folder)
    dashboards = {path.stem: json.loads(path.read_text()) for path in DASHBOARDS}
    wrong = json.loads(DASHBOARDS[0].read_text())
    next(panel for panel in wrong["panels"] if panel["type"] == "stat")["options"]["graphMode"] = "sometimes"
    dashboards["wrong"] = wrong
    for name, dashboard in dashboards.items():
        (folder / f"{name}.ts").write_text(
            "import type { Dashboard } from './types';\n"
            f"export const dashboard: Dashboard = {json.dumps(dashboard, indent=1)};\n"
        )
    options = "--noEmit --strict --skipLibCheck --target es2022 --module esnext --moduleResolution bundler"
    done = subprocess.run(
        [modules / ".bin" / "tsc", *options.split(), *(f"{name}.ts" for name in dashboards)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith(" ")]
    assert lines, done.stderr  # the wrong one is noticed
    found = {name: [line for line in lines if line.startswith(f"{name}.ts(")] for name in dashboards}
    assert sum(map(len, found.values())) == len(lines), lines
    return found


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboard_has_grafanas_types(errors: dict[str, list[str]], path: Path) -> None:
    assert errors[path.stem] == []


def test_a_wrong_option_is_noticed(errors: dict[str, list[str]]) -> None:
    (line,) = errors["wrong"]
    assert "sometimes" in line
