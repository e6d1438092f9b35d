"""Bundles in an object store over S3's own protocol, through the extra `s3` (a real server, on loopback)."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest

from snapshotter import app, maintenance
from snapshotter.bundle import reader, schema, writer
from snapshotter.bundle.retention import collect
from snapshotter.bundle.schema import CaptureRequest, new_capture_id
from snapshotter.bundle.store import BundleStore, open_store
from snapshotter.config import Config, StorageConfig
from snapshotter.errors import NotFound
from snapshotter.gathered import Gathered
from snapshotter.stacks.model import NcclAnswer, NodeAnswer, Process
from tests.running import wait_for

if TYPE_CHECKING:
    from conftest import Start

VERDICT = {
    "hung": True,
    "scope": "local",
    "cause": "data",
    "culprit_ranks": "3",
    "culprit_nodes": ["gpu-1"],
    "confidence": 0.9,
    "headline": "Rank 3 reads.",
}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("s3") / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        address = re.compile(r"http://127\.0\.0\.1:\d+")
        wait_for(lambda: server.poll() is not None or address.search(log.read_text()), say=log.read_text)
        found = address.search(log.read_text())
        assert found is not None, log.read_text()
        yield found[0]
    finally:
        server.kill()
        server.wait(60)


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """An empty bucket; the environment says where and who, as in production."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    name = "b-" + re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:50].strip("-")
    boto3.client("s3").create_bucket(Bucket=name)
    return name


def bundle(job_id: str = "llama", *, at: float | None = None) -> tuple[str, dict[str, bytes]]:
    now = time.time() if at is None else at
    request = CaptureRequest(new_capture_id(now), job_id, "manual", "test", "me", now)
    process = Process(7, "gpu-1", "trainer", 3, "ok")
    answer = NodeAnswer("gpu-1", "ok", now, now, job_id, None, (process,), nccl=NcclAnswer("NCCL 2.26\n"))
    report = {"schema_version": 1, "verdict": VERDICT}
    _, files = writer.build(request, (Gathered.of(answer),), report, started_at=now, finished_at=now)
    return request.capture_id, files


def keys(bucket: str) -> set[str]:
    listed = boto3.client("s3").list_objects_v2(Bucket=bucket)
    return {one["Key"] for one in listed.get("Contents", ())}


@pytest.fixture
def store(bucket: str) -> BundleStore:
    return open_store(f"s3://{bucket}/captures/prod")


def test_a_bundle_is_stored_listed_read_pinned_and_deleted(store: BundleStore, bucket: str) -> None:
    assert list(store.list()) == []
    capture_id, files = bundle()
    assert not store.exists(capture_id)
    assert store.put(capture_id, files)
    assert not store.put(capture_id, {schema.MANIFEST: b"{}"})  # one that is there stays
    assert keys(bucket) == {f"captures/prod/{capture_id}/{name}" for name in files}
    assert store.exists(capture_id)
    assert list(store.list()) == [capture_id]
    assert store.names(capture_id)[0] == schema.MANIFEST
    assert set(store.names(capture_id)) == set(files)
    assert store.size(capture_id) == sum(map(len, files.values()))
    found = reader.open_bundle(store, capture_id)
    assert found.capture().processes[0].rank == 3
    assert found.report()["verdict"] == VERDICT
    store.replace(
        capture_id, schema.MANIFEST, writer.encode_manifest(schema.with_pin(found.manifest(), True))
    )
    assert reader.open_bundle(store, capture_id).manifest().pinned
    with pytest.raises(NotFound):
        store.get(capture_id, "nccl/other.txt")
    store.delete(capture_id)
    store.delete(capture_id)
    assert keys(bucket) == set()
    assert list(store.list()) == []
    with pytest.raises(NotFound):
        store.names(capture_id)


def test_what_another_writes_is_seen_at_once(store: BundleStore, bucket: str) -> None:
    """Two snapshotters share a bucket: neither may trust what it listed before."""
    other = open_store(f"s3://{bucket}/captures/prod")
    first, files = bundle()
    store.put(first, files)
    assert list(other.list()) == [first]
    second, more = bundle()
    assert not other.exists(second)
    assert not store.exists(second)
    client = boto3.client("s3")
    for name, data in more.items():  # not through this program at all
        client.put_object(Bucket=bucket, Key=f"captures/prod/{second}/{name}", Body=data)
    assert other.exists(second) and store.exists(second)
    assert sorted(other.list()) == sorted((first, second)) == sorted(store.list())
    assert other.size(second) == sum(map(len, more.values()))
    for name in more:
        client.delete_object(Bucket=bucket, Key=f"captures/prod/{second}/{name}")
    assert not other.exists(second) and not store.exists(second)
    assert list(store.list()) == [first]


def test_reindex_gc_and_retention(store: BundleStore, bucket: str, tmp_path: Path) -> None:
    config = Config(storage=StorageConfig(bundles=f"s3://{bucket}/captures/prod"))
    now = time.time()
    old, new, pinned = bundle(at=now - 31 * 86400), bundle(), bundle(at=now - 40 * 86400)
    for capture_id, files in (old, new, pinned):
        store.put(capture_id, files)
    manifest = reader.open_bundle(store, pinned[0]).manifest()
    store.replace(pinned[0], schema.MANIFEST, writer.encode_manifest(schema.with_pin(manifest, True)))
    out = io.StringIO()
    assert maintenance.reindex(config, tmp_path, out=out) == 0
    assert out.getvalue().startswith("3 bundles entered")
    assert maintenance.gc(config, tmp_path, now=time.time, out=out) == 0
    assert sorted(store.list()) == sorted((new[0], pinned[0]))
    index = app.open_index(config, tmp_path)
    try:
        gone = collect(index, store, now=now, keep_seconds=86400, max_bytes=1)
        assert [one.capture_id for one in gone] == [new[0]]
    finally:
        index.close()
    assert list(store.list()) == [pinned[0]]


def test_a_store_that_refuses_is_an_oserror(bucket: str) -> None:
    capture_id, files = bundle()
    away = open_store(f"s3://{bucket}-that-is-not-there/captures")
    with pytest.raises(OSError):
        away.put(capture_id, files)
    assert [one["Name"] for one in boto3.client("s3").list_buckets()["Buckets"]].count(bucket) == 1
    assert f"{bucket}-that-is-not-there" not in str(boto3.client("s3").list_buckets()["Buckets"])


def test_two_snapshotters_share_bucket_and_database(bucket: str, start_snapshotters: Start) -> None:
    shared = f"--bundles=s3://{bucket}/captures"
    one, other = start_snapshotters("one", "other", arguments=(shared,))
    for number in range(6):
        assert one.alert(f"job-{number}") == 202
        assert other.alert(f"job-{number}") == 200  # the pair of the first Alertmanager sends the same
    wait_for(lambda: len(one.captures()) == 6 and one.all_done())
    assert sorted(one.jobs() + other.jobs()) == [f"job-{number}" for number in range(6)]
    manifests = {key for key in keys(bucket) if key.endswith("/manifest.json")}
    assert manifests == {f"captures/{each['capture_id']}/manifest.json" for each in one.captures()}
    for each in one.captures():  # whoever took it, both show it
        for asked in (one, other):
            assert (
                asked.get(f"/api/v1/captures/{each['capture_id']}/report")["verdict"]["cause"]
                == "application"
            )
