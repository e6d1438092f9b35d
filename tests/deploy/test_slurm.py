"""The script that gathers stacks without agents: on real ranks of this machine, then analysed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "slurm" / "gather.sh"
BIN = Path(sys.executable).parent
JOB = f"gather-{os.getpid()}"
LINES = (
    "import sys, time",
    "def waits_for_others():",
    "    print('up', flush=True); time.sleep(600)",
    "def reads_the_lock():",
    "    print('up', flush=True); time.sleep(600)",
    "reads_the_lock() if sys.argv[1] == '1' else waits_for_others()",
)


@pytest.fixture
def ranks() -> Iterator[list[int]]:
    """Three ranks of a job, of which rank 1 does something else."""
    started = []
    for rank in range(3):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": JOB}
        process = subprocess.Popen(
            [sys.executable, "-c", "\n".join(LINES), str(rank)],
            env=os.environ | place,
            stdout=subprocess.PIPE,
        )
        started.append(process)
    for process in started:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
    yield [process.pid for process in started]
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def gather(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HANGSCOPE_BIN": str(BIN), "HANGSCOPE_INTERVAL": "0.2"}
    return subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True, timeout=240)


def test_gathered_stacks_are_analysed(ranks: list[int], tmp_path: Path) -> None:
    folder = tmp_path / "hang"
    done = gather(folder, JOB)
    assert (done.returncode, done.stderr) == (0, "")
    names = sorted(path.name for path in folder.glob("*.json"))
    assert [re.sub(".*-rank-", "", name) for name in names] == ["0.json", "1.json", "2.json"]
    assert sorted(path.name for path in (folder / "second").iterdir()) == names
    analysed = subprocess.run(
        [BIN / "hangscope-snapshotter", "analyze", folder, "--format", "json"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert analysed.returncode == 0, analysed.stderr
    report = json.loads(analysed.stdout)
    assert report["summary"]["successful_processes"] == 3
    assert {one["ranks"]: one["stack"][0]["name"] for one in report["equivalence_classes"]} == {
        "1": "reads_the_lock",
        "0/2": "waits_for_others",
    }


def test_programs_that_are_not_there_are_said(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HANGSCOPE_BIN": str(tmp_path)}
    done = subprocess.run(
        [SCRIPT, tmp_path / "hang"], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 1
    assert done.stderr.startswith("gather.sh: no hangscope-exporter on PATH")
    assert done.stderr.count("\n") == 1


def test_a_job_that_is_not_here_is_said(tmp_path: Path) -> None:
    done = gather(tmp_path / "hang", "no-such-job")
    assert done.returncode == 1
    assert "no rank of job no-such-job" in done.stderr and "list-ranks" in done.stderr
