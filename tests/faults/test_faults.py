"""The fault suite's truths, its kept bundles, and a few of its faults for real; `make faults` runs them all."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from snapshotter import analyze
from snapshotter.stacks import rankset
from snapshotter.stacks.knowledge import with_entries
from snapshotter.stacks.model import Frame, JobCapture
from snapshotter.stacks.report import analyse
from snapshotter.stacks.verdict import Cause, Scope
from tests.faults import catalogue, fixtures
from tests.faults.catalogue import FAULTS, Fault

HERE = Path(__file__).parent
TELLING = (
    "two-threads",
    "stuck-worker",
    "uninterruptible",
    "killed-rank",
    "collective-mismatch",
    "straggler",
)


def functions(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_has_a_truth_and_a_program(fault: Fault) -> None:
    everyone = rankset.span(0, fault.ranks - 1)
    culprits, struck = rankset.parse(fault.culprits), rankset.parse(fault.struck)
    assert fault.name.replace("-", "_") in functions(HERE / "kinds" / f"{fault.module}.py")
    assert fault.story.endswith(".")
    assert fault.scope in get_args(Scope)
    assert fault.causes and set(fault.causes) <= set(get_args(Cause))
    assert not (culprits | struck | rankset.parse(fault.not_captured)) & ~everyone
    assert bool(culprits) == (fault.scope == "local")
    assert fault.hung == (fault.scope != "none")


def test_names_are_unique_and_kinds_are_many() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert sum(fault.hung for fault in FAULTS) >= 20
    assert sum(not fault.hung for fault in FAULTS) >= 5


def test_names_of_faults_do_not_tell_the_verdict() -> None:
    """A fault must be found by what happens, not because the suite's function is called `disk_sleep`."""
    table = with_entries(())
    for fault in FAULTS:
        path = HERE / "kinds" / f"{fault.module}.py"
        assert table.look_up(Frame(fault.name.replace("-", "_"), str(path), 1)).kind == "user", fault.name


def test_the_page_shows_every_fault() -> None:
    page = (HERE.parents[1] / "docs" / "faults.md").read_text(encoding="utf-8")
    shown = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(shown) == sorted(fault.name for fault in FAULTS)


@pytest.mark.parametrize("name", fixtures.KEPT)
def test_kept_bundles(name: str) -> None:
    """The captures of earlier runs are still judged as they should be."""
    fault = catalogue.find(name)
    out, err = io.StringIO(), io.StringIO()
    assert analyze.run(fixtures.TARGET / name, format="json", out=out, err=err) == 0, err.getvalue()
    verdict = json.loads(out.getvalue())["verdict"]
    assert verdict["hung"] is fault.hung
    assert (verdict["scope"], verdict["culprit_ranks"], verdict["not_captured"]) == (
        fault.scope,
        fault.culprits,
        fault.not_captured,
    )
    assert verdict["cause"] in fault.causes


@pytest.mark.parametrize("name", fixtures.KEPT)
def test_kept_bundles_at_scale(name: str) -> None:
    """The same job with 1,024 ranks: those that were to blame, and copies of one that was not."""
    fault = catalogue.find(name)
    (answer,) = analyze.load(fixtures.TARGET / name)[0].nodes
    blamed = rankset.parse(fault.culprits) | rankset.parse(fault.struck)
    model = next(rank for rank in range(fault.ranks) if not blamed >> rank & 1)
    copied = [process for process in answer.processes if process.rank == model]
    processes = [replace(process, world_size=1024) for process in answer.processes]
    for rank in range(fault.ranks, 1024):
        processes += [replace(process, rank=rank, local_rank=rank, world_size=1024) for process in copied]
    job = JobCapture("job", (replace(answer, processes=tuple(processes)),))
    verdict = analyse(job, at=0.0).verdict
    assert verdict.hung is fault.hung
    assert (verdict.scope, rankset.fold(verdict.culprit_ranks)) == (fault.scope, fault.culprits)
    assert verdict.cause in fault.causes


@pytest.mark.timeout(1200)
def test_a_few_for_real(tmp_path: Path) -> None:
    """In a process of its own, which ends all below it."""
    command = [sys.executable, "-m", "tests.faults", "--only", ",".join(TELLING), "--keep", str(tmp_path)]
    done = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 hangs: culprits right in 5, cause in 5, scope in 5\n" in done.stdout, done.stdout
    assert "1 look-alikes: 0 called hung\n" in done.stdout, done.stdout
    assert all((tmp_path / name / "bundle" / "report.json").is_file() for name in TELLING)
