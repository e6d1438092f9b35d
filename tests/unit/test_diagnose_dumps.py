"""Every scenario of imaginary jobs, at several sizes, against its truth."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from snapshotter.stacks.model import Frame, JobCapture, NodeAnswer, Process, Sample, Thread
from snapshotter.stacks.report import analyse, verdict_json
from tests.programs import make_dumps
from tests.programs.dump_stacks import STACKS

# At full size one scenario of each kind will do.
LARGE = (
    "node-read",
    "global-loader",
    "local-loader",
    "local-linear",
    "local-lock",
    "behind-own_ring",
    "mismatch-barrier",
    "pipeline-compute",
    "symmetric-synchronize",
    "missing-rank",
    "slow-save",
    "training",
)


@cache
def stack(name: str) -> tuple[Frame, ...]:
    found = reversed(STACKS[name])
    return tuple(Frame(f["name"], f["filename"], f["line"], f["short_filename"]) for f in found)


def capture(scenario: make_dumps.Scenario, ranks: int) -> JobCapture:
    processes = []
    for rank in range(ranks):
        if rank in scenario.absent:
            continue
        for worker in (None, 0):
            choose = scenario.stack if worker is None else scenario.worker
            samples = tuple(
                Sample(
                    float(n), "ok", threads=(Thread(1, "MainThread", 1, True, False, stack(choose(rank, n))),)
                )
                for n in range(scenario.samples)
            )
            role = "trainer" if worker is None else "dataloader"
            processes.append(Process(1, "", role, rank, "ok", worker=worker, samples=samples))
    return JobCapture("job", (NodeAnswer("", "ok", 0.0, 0.0, processes=tuple(processes)),))


def truth(scenario: make_dumps.Scenario) -> dict[str, Any]:
    return {
        "hung": scenario.hung,
        "scope": scenario.scope,
        "cause": scenario.cause,
        "culprit_ranks": make_dumps.fold(scenario.culprits),
        "not_captured": make_dumps.fold(scenario.absent),
    }


def cases() -> list[Any]:
    small = [(name, ranks) for ranks in (8, 64) for name in make_dumps.scenarios(ranks)]
    return [pytest.param(*case, id=f"{case[0]}-{case[1]}") for case in (*small, *((n, 1024) for n in LARGE))]


@pytest.mark.parametrize(("name", "ranks"), cases())
def test_verdict(name: str, ranks: int) -> None:
    scenario = make_dumps.scenarios(ranks)[name]
    found = verdict_json(analyse(capture(scenario, ranks), at=0.0).verdict)
    assert {key: found[key] for key in truth(scenario)} == truth(scenario), found["headline"]
    assert 0.0 < found["confidence"] < 1.0
    assert found["evidence"]
    assert "\n" not in found["headline"]


@pytest.mark.parametrize("name", ["local-lock", "missing-rank", "slow-save", "symmetric-ddp"])
def test_files_give_the_same_verdict_as_a_capture(name: str, tmp_path: Any) -> None:
    from snapshotter.dumps import digest_dumps, load_dumps
    from snapshotter.stacks.report import analyse_digest, to_json

    make_dumps.write(tmp_path, name, 8, workers=1)
    loaded, problems = load_dumps(tmp_path)
    digested, also = digest_dumps(tmp_path)
    assert not problems
    assert not also
    assert to_json(analyse(loaded, at=0.0)) == to_json(analyse_digest(digested, job_id=loaded.job_id, at=0.0))
