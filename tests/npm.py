"""Test tools from the npm registry: installed once beside the package.json that names them, in exact versions."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Test processes side by side are in here one after another."""
    with (folder / "package.json").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def installed(folder: Path, *options: str) -> Path:
    """`node_modules` of the folder, with what its package.json wants; `options` are npm's."""
    with alone(folder):
        return _installed(folder, options)


def _installed(folder: Path, options: tuple[str, ...]) -> Path:
    modules = folder / "node_modules"
    wanted = json.loads((folder / "package.json").read_text())["devDependencies"]
    have = {
        name: json.loads(path.read_text())["version"]
        for name in wanted
        if (path := modules / name / "package.json").exists()
    }
    if have != wanted:
        npm = shutil.which("npm")
        assert npm is not None, "npm is missing: apt-get install npm"
        command = [npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--fetch-retries=5"]
        options = ("--loglevel=error", *options)
        done = subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
    return modules


def node(script: str, text: str, *, modules: Path) -> str:
    """What a JavaScript program prints that reads `text` and may require what is installed."""
    program = shutil.which("node")
    assert program is not None, "node is missing: apt-get install nodejs"
    done = subprocess.run(
        [program, "-e", script], input=text, cwd=modules.parent, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
