"""Every launcher, by a recorded or rebuilt /proc of its processes: who is who, and in which job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exporter.procfs import ProcFS
from exporter.ranks import RankFinder, Scan

FIXTURES = Path(__file__).parents[1] / "fixtures" / "proc"
NOW = 1_700_000_000.0 + 3600


def scan(root: Path) -> Scan:
    return RankFinder(ProcFS(root), node="node-x", now=lambda: NOW).scan()


@pytest.mark.parametrize("fixture", sorted(path.name for path in FIXTURES.glob("*.json")))
def test_processes_of_launcher(fixture: str, proc_tree: Any) -> None:
    expected = proc_tree.load(fixture)
    found = scan(proc_tree.root)
    rows = {
        one.id.pid: [one.id.pid, one.role, one.job_id, one.rank, one.local_rank, one.world_size, one.launcher]
        for one in found.processes
    }
    assert rows == {row[0]: row for row in expected["expect"]}
    assert {job.job_id: [job.expected, job.running] for job in found.jobs} == expected["jobs"]
    assert [one.pid for one in found.near_misses] == expected["near_misses"]
    assert all(job.conflicts == 0 for job in found.jobs)
