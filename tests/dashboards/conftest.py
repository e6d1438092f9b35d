"""Tools from the npm registry that check dashboards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import npm


@pytest.fixture(scope="session")
def modules() -> Path:
    """The packages of schema/package.json."""
    return npm.installed(Path(__file__).parent / "schema")
