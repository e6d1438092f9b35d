"""What the pages keep of the bundles they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshotter.bundle.store import FolderStore
from snapshotter.errors import NotFound
from snapshotter.web.derived import Derived


def test_captures_that_are_not_there_leave_nothing_behind(tmp_path: Path) -> None:
    derived = Derived(FolderStore(tmp_path), captures=2)
    for number in range(10):
        with pytest.raises(NotFound):
            derived.manifest(f"20261130T012233Z-{number:012x}")
    assert (len(derived._kept), len(derived._computing)) == (2, 0)
