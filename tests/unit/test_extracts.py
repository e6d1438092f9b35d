"""What pages read instead of the whole bundle says the same as the bundle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import msgspec
import pytest

from benchmarks.imaginary import imaginary_job
from snapshotter import extracts
from snapshotter.bundle import schema, writer
from snapshotter.bundle.reader import Bundle
from snapshotter.bundle.schema import CaptureRequest, Manifest
from snapshotter.extracts import head
from snapshotter.extracts.merging import merge
from snapshotter.gathered import Gathered
from snapshotter.render import graph
from snapshotter.stacks import rankset, report, tree
from snapshotter.stacks.model import JobCapture, NodeAnswer, Process, Sample


def _stored(capture: JobCapture) -> tuple[Manifest, dict[str, Any], dict[str, bytes]]:
    request = CaptureRequest("20261130T012233Z-000000000000", capture.job_id, "manual", "why", "me", 1.0)
    found = report.to_json(report.analyse(capture, at=7.0))
    manifest, files = writer.build(
        request, tuple(map(Gathered.of, capture.nodes)), found, started_at=1.0, finished_at=2.0
    )
    return manifest, found, files


def _late(process: Process) -> Process:
    """The process as if it could not be read the first time."""
    first = replace(process.samples[0], outcome="timeout", threads=())
    return replace(process, samples=(first, *process.samples[1:]))


def _job(*, late: int | None = None) -> JobCapture:
    job = imaginary_job(16, hostile=True)
    nodes = tuple(
        replace(node, processes=tuple(_late(p) if p.rank == late else p for p in node.processes))
        for node in job.nodes
    )
    return replace(job, nodes=nodes)


def test_names_are_those_of_a_bundle() -> None:
    for what in get_args(extracts.Extract):
        assert schema.is_bundle_file(extracts.file(what))
        assert schema.is_extract(extracts.file(what))
    assert not schema.is_bundle_file("extracts-1/../manifest.json")


@pytest.mark.parametrize("late", [None, 5])
def test_the_merged_stacks_are_those_of_the_analysis(late: int | None) -> None:
    job = _job(late=late)
    manifest, _, files = _stored(job)
    made = msgspec.json.decode(extracts.build(manifest, None, files)[extracts.file("graph")])
    read = graph.from_data(made, "job", ())
    analysed = {one.role: replace(one, not_captured=()) for one in report.analyse(job, at=0.0).trees}
    assert {one.role: one for one in read.best()} == analysed


def test_a_graph_survives_being_stored() -> None:
    job = _job(late=5)
    manifest, _, files = _stored(job)
    built = replace(merge(Bundle(files.__getitem__, "x"), manifest), job_id="j")
    assert graph.from_data(msgspec.json.decode(msgspec.json.encode(graph.to_data(built))), "j", ()) == built
    assert built.trees == graph.build(job).trees


def test_ranks_in_native_code_stay_captured() -> None:
    sample = Sample(1.0, "ok", state="R")
    bare = Process(1, "n", "trainer", 0, "ok", samples=(sample,))
    built = graph.build(JobCapture("j", (NodeAnswer("n", "ok", 0.0, 1.0, processes=(bare,)),)))
    read = graph.from_data(graph.to_data(built), "j", ())
    assert read.trees == built.trees == ((0, tree.Tree("trainer", 1, ())),)


def test_the_head_has_the_answer_and_what_is_missing() -> None:
    manifest, found, files = _stored(imaginary_job(64))
    made = msgspec.json.decode(extracts.build(manifest, found, files)[extracts.file("head")])
    assert made["report"]["verdict"] == found["verdict"]
    assert [one["Rank"] for one in made["report"]["process_infos"]] == [40]
    assert made["classes"] == len(found["equivalence_classes"])
    (one,) = head.missing(made)
    assert (rankset.fold(one.ranks), one.node, one.outcome) == ("3", "gpu-node-0", "denied")


def test_the_head_stays_small_and_keeps_the_culprits_class() -> None:
    classes = [
        {"ranks": str(rank), "count": 1, "role": role, "thread": "MainThread", "stack": []}
        for role in ("dataloader", "trainer")
        for rank in range(1000)
    ]
    found = {"verdict": {"culprit_ranks": "950"}, "equivalence_classes": classes, "process_infos": []}
    manifest, _, files = _stored(imaginary_job(8))
    made = head.head(Bundle(files.__getitem__, "x"), manifest, found)
    kept = made["report"]["equivalence_classes"]
    assert made["classes"] == 2000
    assert len(kept) < 500
    assert kept[0] is classes[0]
    assert classes[1000] in kept
    assert classes[1950] in kept


def test_without_an_analysis_the_manifest_names_the_processes() -> None:
    manifest, _, files = _stored(imaginary_job(8))
    made = extracts.build(manifest, None, files)
    rows = msgspec.json.decode(made[extracts.file("processes")])
    assert [row[:4] for row in rows[:2]] == [
        [0, "gpu-node-0", "trainer", 10000],
        [0, "gpu-node-0", "dataloader", 10050],
    ]
    assert msgspec.json.decode(made[extracts.file("head")])["report"] is None
    assert made[extracts.file("functions")] == b"[]"
