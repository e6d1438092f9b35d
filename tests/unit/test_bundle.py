from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshotter.bundle import reader, schema, writer
from snapshotter.bundle.schema import CaptureRequest, Manifest
from snapshotter.bundle.store import BundleStore, FolderStore, ObjectStore, open_store
from snapshotter.errors import BundleError, NotFound
from snapshotter.gathered import Gathered
from snapshotter.stacks.model import Frame, NcclAnswer, NodeAnswer, Process, Sample, Thread

REPORT: dict[str, Any] = {
    "schema_version": 1,
    "verdict": {
        "hung": True,
        "scope": "local",
        "cause": "data",
        "culprit_ranks": "3",
        "culprit_nodes": ["gpu-1"],
        "confidence": 0.8,
        "headline": "Rank 3 is stuck.",
    },
}
ID = "20261130T012233Z-8006f4e3356a"
_memory = count()


def request(**more: Any) -> CaptureRequest:
    given = {"job_id": "llama", "trigger": "alert", "reason": "TrainingHang", "requested_by": "am"} | more
    return CaptureRequest(capture_id=ID, requested_at=1.0, **given)


def node(name: str = "gpu-1", outcome: Any = "ok", process: Any = "ok", **more: Any) -> NodeAnswer:
    stack = (Frame("wait", "/usr/lib/python3.12/threading.py", 655),)
    thread = Thread(1, "MainThread", 10, False, False, stack)
    one = Process(10, name, "trainer", 3, process, samples=(Sample(1.0, process, threads=(thread,)),))
    return NodeAnswer(name, outcome, 1.0, 2.0, job_id="llama", processes=(one,), **more)


def build(
    *answers: NodeAnswer, report: dict[str, Any] | None = REPORT, **more: Any
) -> tuple[Manifest, dict[str, bytes]]:
    gathered = tuple(map(Gathered.of, answers))
    return writer.build(request(**more), gathered, report, started_at=1.0, finished_at=2.0)


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BundleStore]:
    if request.param == "folder":
        yield open_store(str(tmp_path / "bundles"))
        return
    root = f"memory://bundles-{next(_memory)}"
    yield open_store(root)
    fsspec.filesystem("memory").store.clear()


def test_a_stored_bundle_reads_back_as_it_was(store: BundleStore) -> None:
    answers = (node("gpu-1", nccl=NcclAnswer("NCCL version 2.26.3\n")), node("gpu-2"))
    manifest, files = build(*answers)
    assert store.put(ID, files)
    assert store.size(ID) == sum(map(len, files.values()))
    bundle = reader.open_bundle(store, ID)
    assert bundle.manifest() == manifest
    assert tuple(bundle.answers()) == answers
    assert bundle.report() == REPORT
    assert bundle.capture().job_id == "llama"
    assert store.names(ID) == (
        "manifest.json",
        "nccl/gpu-1.txt",
        "nodes/gpu-1.json.gz",
        "nodes/gpu-2.json.gz",
        "report.json",
    )
    assert store.get(ID, "nccl/gpu-1.txt") == b"NCCL version 2.26.3\n"
    assert list(store.list()) == [ID]


def test_the_first_bundle_of_a_capture_stays(store: BundleStore) -> None:
    _, first = build(node("gpu-1"))
    _, second = build(node("gpu-2"))
    store.put(ID, first)
    assert not store.put(ID, second)
    assert reader.open_bundle(store, ID).manifest().nodes[0].node == "gpu-1"
    assert set(store.names(ID)) == set(first)


def test_a_deleted_bundle_is_gone_and_may_be_deleted_again(store: BundleStore) -> None:
    store.put(ID, build(node())[1])
    store.delete(ID)
    store.delete(ID)
    assert not store.exists(ID)
    assert list(store.list()) == []
    with pytest.raises(NotFound):
        store.names(ID)
    with pytest.raises(NotFound):
        reader.open_bundle(store, ID).manifest()


def test_one_file_is_exchanged_whole(store: BundleStore) -> None:
    manifest, files = build(node())
    store.put(ID, files)
    store.replace(ID, "manifest.json", writer.encode_manifest(schema.with_pin(manifest, True)))
    assert reader.open_bundle(store, ID).manifest().pinned
    assert set(store.names(ID)) == set(files)


@pytest.mark.parametrize(
    "bad", ["..", "../x", "/etc", "", "20261130T012233Z-0123456789ab/..", "a" * 300, "x\0y"]
)
def test_nothing_but_a_capture_id_reaches_the_store(store: BundleStore, bad: str) -> None:
    for use in (store.names, store.exists, store.size, store.delete):
        with pytest.raises(NotFound):
            use(bad)
    with pytest.raises(NotFound):
        store.put(bad, {})


@pytest.mark.parametrize(
    "bad", ["../x", "nodes/../../x.json.gz", "/etc/passwd", "nodes/.x.json.gz", "other.json", ""]
)
def test_nothing_but_a_bundle_file_reaches_the_store(store: BundleStore, bad: str) -> None:
    store.put(ID, build(node())[1])
    with pytest.raises(BundleError):
        store.get(ID, bad)
    with pytest.raises(BundleError):
        store.replace(ID, bad, b"")


def left(root: Path) -> list[Path]:
    """All there is but the folder in which bundles are written."""
    return [path for path in root.rglob("*") if path != root / ".partial"]


def test_many_writers_at_once_each_store_theirs(tmp_path: Path) -> None:
    ids = [schema.new_capture_id(n) for n in range(200)]
    files = build(node())[1]

    def write(capture_id: str) -> bool:
        return FolderStore(tmp_path).put(capture_id, files)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(write, ids))
    assert sorted(FolderStore(tmp_path).list()) == ids


def test_of_many_writers_of_one_bundle_one_wins(tmp_path: Path) -> None:
    bundles = [build(node(f"gpu-{n}"))[1] for n in range(16)]
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda files: FolderStore(tmp_path).put(ID, files), bundles))
    assert won.count(True) == 1
    (answer,) = reader.open_bundle(FolderStore(tmp_path), ID).answers()
    assert answer.node == f"gpu-{won.index(True)}"


def test_a_writer_that_dies_leaves_no_bundle_and_sweep_removes_its_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            store.put(ID, build(node())[1])
    assert left(tmp_path) == []

    (tmp_path / ".partial" / f"{ID}-x" / "nodes").mkdir(parents=True)
    store.sweep(min_age=3600)
    assert (tmp_path / ".partial" / f"{ID}-x").is_dir(), "another writer may be at work"
    store.sweep(min_age=0)
    assert left(tmp_path) == []
    assert store.put(ID, build(node())[1])


def test_objects_without_a_manifest_are_no_bundle() -> None:
    root = f"memory://bundles-{next(_memory)}"
    store = ObjectStore(root)
    fsspec.filesystem("memory").pipe_file(f"{root}/{ID}/report.json", b"{}")
    assert not store.exists(ID)
    assert list(store.list()) == []
    _, files = build(node())
    store.put(ID, files)
    assert set(store.names(ID)) == set(files)


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    assert isinstance(open_store(f"file://{tmp_path}/b"), FolderStore)


HOSTILE = [
    "../../etc/passwd",
    "..",
    ".",
    "",
    "a/b",
    "a\\b",
    "a\nb",
    "a\0b",
    "é",
    "x" * 5000,
    ".hidden",
    "-rf",
    "\ud800",
    "a~b",
    "CON",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_node_name_stays_inside_its_folder(tmp_path: Path, name: str) -> None:
    store = FolderStore(tmp_path / "bundles")
    shown = name.encode("utf-8", "replace").decode()  # JSON cannot hold half a surrogate pair
    _, files = build(node(shown))
    store.put(ID, files)
    inside = [path.relative_to(tmp_path).parts for path in tmp_path.rglob("*.gz")]
    assert [parts[:3] for parts in inside] == [("bundles", ID, "nodes")]
    (answer,) = reader.open_bundle(store, ID).answers()
    assert answer.node == shown


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_every_node_has_a_file_of_its_own(names: list[str]) -> None:
    manifest, files = build(*(NodeAnswer(name, "unreachable", 1.0, 2.0) for name in names))
    paths = [entry.file.lower() for entry in manifest.nodes]
    assert len(set(paths)) == len(names)
    assert all(schema.is_bundle_file(name) for name in files)


@given(st.text())
def test_file_stem_is_always_a_safe_name(name: str) -> None:
    assert schema.is_bundle_file(f"nodes/{schema.file_stem(name)}.json.gz")


def test_a_command_line_that_is_no_utf8_costs_a_character(store: BundleStore) -> None:
    answer = node()
    odd = replace(answer, processes=(replace(answer.processes[0], command_line="python \udcff.py"),))
    store.put(ID, build(odd)[1])
    assert reader.open_bundle(store, ID).capture().processes[0].command_line == "python ?.py"


def test_plain_node_names_are_kept() -> None:
    assert schema.file_stem("gpu-node-5.cluster.local") == "gpu-node-5.cluster.local"


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ((), "empty"),
        ((NodeAnswer("a", "ok", 1.0, 2.0),), "empty"),
        ((NodeAnswer("a", "unreachable", 1.0, 2.0),), "failed"),
        ((node(),), "complete"),
        ((node(process="denied"),), "partial"),
        ((node(), NodeAnswer("b", "unreachable", 1.0, 2.0)), "partial"),
    ],
)
def test_what_became_of_a_capture(answers: tuple[NodeAnswer, ...], outcome: str) -> None:
    assert build(*answers)[0].outcome == outcome


def test_without_a_named_job_the_capture_is_of_the_one_that_was_found() -> None:
    assert build(node(), job_id="")[0].job_id == "llama"
    assert build(job_id="")[0].job_id == ""
    assert build(node(), job_id="other")[0].job_id == "other"


def test_a_capture_whose_analysis_failed_keeps_its_evidence(store: BundleStore) -> None:
    manifest, files = build(node(), report=None)
    store.put(ID, files)
    assert manifest.verdict is None
    with pytest.raises(NotFound):
        reader.open_bundle(store, ID).report()
    assert next(reader.open_bundle(store, ID).answers()).processes


def test_capture_ids_sort_by_time_and_are_unique() -> None:
    ids = [schema.new_capture_id(1_796_001_753 + step / 1000) for step in range(0, 4000, 7)]
    assert ids == sorted(ids)
    assert len({schema.new_capture_id(1.0) for _ in range(10_000)}) == 10_000
    assert all(map(schema.is_capture_id, ids))
    assert ID.startswith("20261130T012233Z-800")


def test_a_capture_id_sorts_after_an_earlier_one_of_a_clock_that_was_set_back() -> None:
    earlier = schema.new_capture_id(1_796_001_753.9)
    for now in (0.0, 1_796_000_000.0, 1_796_001_753.1, 1_796_001_753.9, 1_796_001_999.0):
        later = schema.new_capture_id(now, after=earlier)
        assert later > earlier
        assert schema.is_capture_id(later)


@pytest.mark.parametrize(
    "bad", ["", "x", ID + "\n", ID.upper(), " " + ID, ID[:-1], "２0261130T012233Z-0123456789ab"]
)
def test_what_is_no_capture_id(bad: str) -> None:
    assert not schema.is_capture_id(bad)


# A folder that somebody handed over


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    writer.write_folder(tmp_path / "handed-over", build(node())[1])
    return tmp_path / "handed-over"


def test_a_bundle_may_be_read_from_a_folder_of_any_name(folder: Path) -> None:
    assert reader.is_bundle(folder)
    assert not reader.is_bundle(folder.parent)
    assert reader.open_folder(folder).capture().processes[0].rank == 3


def test_a_folder_that_is_there_is_not_overwritten(folder: Path) -> None:
    with pytest.raises(FileExistsError):
        writer.write_folder(folder, build(node())[1])


def change(folder: Path, **fields: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_fields_of_later_versions_are_skipped_and_later_schemas_refused(folder: Path) -> None:
    change(folder, added_later={"x": 1})
    assert reader.open_folder(folder).manifest().nodes
    change(folder, schema_version=2)
    with pytest.raises(BundleError, match="schema version 2"):
        reader.open_folder(folder).manifest()


def test_a_manifest_that_points_outside_is_refused(folder: Path) -> None:
    (folder.parent / "secret").write_text("x")
    entry = {"node": "a", "outcome": "ok", "file": "../secret", "started_at": 0, "finished_at": 0}
    change(folder, nodes=[entry])
    with pytest.raises(BundleError, match="no file of a bundle"):
        reader.open_folder(folder).capture()


@pytest.mark.parametrize(
    ("file", "data"),
    [
        ("manifest.json", b""),
        ("manifest.json", b"{}"),
        ("manifest.json", b"\xff"),
        ("manifest.json", b"[" * 100_000),
        ("nodes/gpu-1.json.gz", b""),
        ("nodes/gpu-1.json.gz", b"plain"),
        ("nodes/gpu-1.json.gz", gzip.compress(b'{"node": 1}', mtime=0)),
        ("nodes/gpu-1.json.gz", gzip.compress(b"x" * 100_000, mtime=0)[:50]),
        ("nodes/gpu-1.json.gz", gzip.compress(b"x", mtime=0)[:-6] + b"123456"),
    ],
)
def test_a_damaged_file_is_named(folder: Path, file: str, data: bytes) -> None:
    (folder / file).write_bytes(data)
    with pytest.raises(BundleError) as refused:
        reader.open_folder(folder).capture()
    assert file in refused.value.message


@pytest.mark.parametrize("rank", [-1, 1 << 20, 10**18])
def test_a_process_of_an_impossible_rank_is_refused(folder: Path, rank: int) -> None:
    file = folder / "nodes/gpu-1.json.gz"
    answer = json.loads(gzip.decompress(file.read_bytes()))
    answer["processes"][0]["rank"] = rank
    file.write_bytes(gzip.compress(json.dumps(answer).encode()))
    with pytest.raises(BundleError, match=f"gpu-1.json.gz: it has a process of rank {rank}"):
        reader.open_folder(folder).capture()


def test_a_file_that_unpacks_without_end_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_MAX_ANSWER_BYTES", 10_000)
    (folder / "nodes/gpu-1.json.gz").write_bytes(gzip.compress(b" " * 20_000))
    with pytest.raises(BundleError, match="larger than"):
        reader.open_folder(folder).capture()


def test_the_bundle_of_the_first_release_is_still_read() -> None:
    folder = Path(__file__).parent.parent / "fixtures" / "bundles" / "schema-1"
    bundle = reader.open_folder(folder)
    assert bundle.manifest().verdict is not None
    assert msgspec.to_builtins(bundle.manifest().verdict)["culprit_ranks"] == "3"
    assert bundle.capture().processes[0].samples[0].threads[0].frames[0].name == "wait"
