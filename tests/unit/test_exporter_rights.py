"""An exporter that may not look into other users' processes says so when it starts."""

from __future__ import annotations

from typing import Any

import pytest

from exporter.procfs import ProcFS, Unreadable
from exporter.service import Service


@pytest.mark.parametrize("may", [True, False])
def test_rights_that_are_missing_are_said_at_the_start(
    proc_tree: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, may: bool
) -> None:
    proc_tree.process(100, argv=["/usr/bin/python3", "train.py"], threads=["pt_gloo_runloop"])
    if not may:
        monkeypatch.setattr(ProcFS, "environ", lambda self, pid: Unreadable.DENIED)
    service = Service(None, proc_tree.root)
    service.stop()
    said = [record.getMessage() for record in caplog.records if record.name == "exporter.service"]
    assert len(said) == (0 if may else 1)
    assert may or "cannot be looked into: 1;" in said[0]
