"""What a process set in its environment since it started is read from its memory."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter import liveenviron
from exporter.procfs import ProcFS, Unreadable
from exporter.ranks import RankFinder

PROGRAM = """
import os, sys, time
os.environ["RANK"] = "5"
os.environ["URL"] = "a=b"
os.environ.pop("GONE")
print("set", flush=True)
time.sleep(60)
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env={"GONE": "1", "KEPT": "é"}, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def test_variables_set_after_the_start(process: subprocess.Popen[bytes]) -> None:
    environ = liveenviron.read(ProcFS(), process.pid)
    assert isinstance(environ, dict)
    assert (environ["RANK"], environ["URL"], environ["KEPT"]) == ("5", "a=b", "é")
    assert "GONE" not in environ


def test_process_that_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert liveenviron.read(ProcFS(), child.pid) is Unreadable.GONE


def test_tree_without_memory_is_unsupported(proc_tree: Any) -> None:
    proc_tree.process(100, argv=["/usr/bin/python3"])
    proc_tree.file("100/maps", "400000-500000 r-xp 00000000 08:01 1 /usr/bin/python3\n")
    assert liveenviron.read(ProcFS(proc_tree.root), 100) is Unreadable.UNSUPPORTED


def test_pipe_in_the_place_of_a_mapped_file_is_not_waited_for(proc_tree: Any) -> None:
    proc_tree.process(100, argv=["/usr/bin/python3"])
    proc_tree.file("100/maps", "400000-500000 r-xp 00000000 08:01 1 /usr/bin/python3\n")
    proc_tree.file("100/mem", b"")
    program = proc_tree.root / "100" / "root" / "usr" / "bin" / "python3"
    program.parent.mkdir(parents=True)
    os.mkfifo(program)
    assert liveenviron.read(ProcFS(proc_tree.root), 100) is Unreadable.UNSUPPORTED


@given(st.binary(max_size=300) | st.binary(min_size=64, max_size=400).map(lambda x: b"\x7fELF\x02\x01" + x))
def test_no_file_crashes_the_search(data: bytes) -> None:
    try:
        liveenviron.symbol(io.BytesIO(data))
    except (ValueError, OverflowError, liveenviron.struct.error):
        pass


def test_ranks_that_ray_workers_set_themselves(proc_tree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the second node of a Ray job the order would give the ranks of the first."""
    proc_tree.load("ray-train.json")

    def live(_: ProcFS, pid: int) -> dict[str, str]:
        rank = {200: "5", 210: "4"}[pid]
        return {
            "RANK": rank,
            "LOCAL_RANK": str(int(rank) - 4),
            "WORLD_SIZE": "6",
            "LOCAL_WORLD_SIZE": "2",
        } | {
            "MASTER_ADDR": "10.0.0.7",
            "MASTER_PORT": "4711",
            "RAY_JOB_ID": "02000000",
        }

    monkeypatch.setattr(liveenviron, "read", live)
    scan = RankFinder(ProcFS(proc_tree.root), node="n", now=lambda: 1_700_003_600.0).scan()
    trainers = [one for one in scan.processes if one.role == "trainer"]
    assert [(one.id.pid, one.rank, one.local_rank, one.launcher) for one in trainers] == [
        (210, 4, 0, "ray"),
        (200, 5, 1, "ray"),
    ]
    (job,) = scan.jobs
    assert (job.job_id, job.expected, job.world_size) == ("10.0.0.7:4711", 2, 6)
