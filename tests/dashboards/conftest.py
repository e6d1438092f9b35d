"""Tools from the npm registry that check dashboards."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "schema"


@pytest.fixture(scope="session")
def modules() -> Path:
    """The packages of schema/package.json, installed once."""
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
