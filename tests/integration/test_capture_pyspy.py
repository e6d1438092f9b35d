"""A py-spy that runs wild: what it prints and how it ends costs its own target's stacks, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exporter.procfs import ProcFS
from snapshotter.capture.facts import look
from snapshotter.capture.pyspy import Dump, PySpy


def dump(folder: Path, script: str, *, timeout: float = 60.0) -> Dump:
    """What becomes of this process, read by a stand-in that runs a shell script."""
    binary = folder / "py-spy"
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o700)
    procfs = ProcFS()
    here = look(procfs, os.getpid())
    assert here is not None
    return PySpy(lambda pid: look(procfs, pid), binary=binary, timeout=timeout).dump(
        os.getpid(), here.start_ticks
    )


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 0", "py-spy printed nothing"),
        ("echo nonsense", "not the JSON we know"),
        ('printf \'[{"thread_id": 1, "frames": [{"name": "f\'', "not the JSON we know"),
        ("exit 3", "py-spy failed with status 3 and said nothing"),
        ("kill -SEGV $$", "py-spy was ended by signal 11"),
        ("yes | head -c 1000000 >&2; exit 1", "py-spy: y y"),
        ("yes", "py-spy printed more than 60 MiB"),
        ("head -c 100000000 /dev/zero; exit 0", "py-spy printed more than 60 MiB"),
    ],
)
def test_the_reason_is_one_short_line(tmp_path: Path, script: str, words: str) -> None:
    found = dump(tmp_path, script)
    assert found.outcome == "error"
    assert found.error is not None and words in found.error
    assert len(found.error) < 400 and found.error.isprintable()
