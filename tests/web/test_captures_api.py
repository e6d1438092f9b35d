from __future__ import annotations

import io
import json
import threading
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from snapshotter.bundle import reader
from snapshotter.stacks.model import NodeAnswer
from tests.running import wait_for

if TYPE_CHECKING:
    from conftest import Service, Start

    from snapshotter.bundle.schema import CaptureRequest

NOWHERE = "20260101T000000Z-0123456789ab"


def api(service: Service, path: str, status: int = 200, **query: Any) -> Any:
    with service.client.get(f"/api/v1/captures{path}", query_string=query) as answer:
        assert answer.status_code == status, answer.text
        return answer.json


def ask(service: Service, **body: Any) -> str:
    answer = service.client.post("/api/v1/captures", json=body)
    assert answer.status_code == 202, answer.text
    assert answer.headers["Location"] == answer.json["href"]
    return str(answer.json["capture_id"])


def test_a_capture_asked_for_by_hand(service: Service) -> None:
    capture_id = service.wait(ask(service, job_id="llama", reason="looks slow"))
    (asked,) = service.capturer.asked
    assert (asked.trigger, asked.reason, asked.requested_by) == ("manual", "looks slow", "127.0.0.1")
    shown = api(service, f"/{capture_id}")
    assert (shown["state"], shown["outcome"], shown["processes"], shown["processes_ok"]) == (
        "done",
        "partial",
        4,
        3,
    )


def test_without_a_job_the_capture_is_of_the_job_that_is_found(service: Service) -> None:
    service.capturer.answers = lambda request: (NodeAnswer("gpu-1", "ok", 1.0, 2.0, job_id="found"),)
    service.wait(ask(service))
    assert service.capturer.asked[0].job_id == ""
    assert [one["job_id"] for one in api(service, "", job_id="found")["captures"]] == ["found"]


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"{", "application/json"),
        (b"[]", "application/json"),
        (b'{"jobid": "x"}', "application/json"),
        (b'{"job_id": 7}', "application/json"),
        (b'{"reason": "' + b"x" * 501 + b'"}', "application/json"),
        (b'{"job_id": "' + b"x" * 1025 + b'"}', "application/json"),
        (b"{}", "text/plain"),
        (b"job_id=x", "application/x-www-form-urlencoded"),
    ],
)
def test_a_bad_request_for_a_capture_is_refused(service: Service, body: bytes, content_type: str) -> None:
    answer = service.client.post("/api/v1/captures", data=body, content_type=content_type)
    assert answer.status_code == 400
    assert service.capturer.asked == []


def test_asking_twice_while_one_waits_is_asking_once(service: Service) -> None:
    go = threading.Event()

    def slow(request: CaptureRequest) -> tuple[NodeAnswer, ...]:
        go.wait(60)
        return ()

    service.capturer.answers = slow
    first = ask(service, job_id="llama")
    wait_for(lambda: service.state(first) == "running")
    second = ask(service, job_id="llama")
    assert second != first
    assert ask(service, job_id="llama") == second
    assert service.state(second) == "queued", "a job is never captured twice at once"
    go.set()
    service.wait(second)
    assert len(service.capturer.asked) == 2


def test_progress_is_shown_and_parts_are_not_there_yet(service: Service) -> None:
    go = threading.Event()

    def slow(request: CaptureRequest) -> tuple[NodeAnswer, ...]:
        go.wait(60)
        return ()

    service.capturer.answers = slow
    capture_id = ask(service, job_id="llama")
    wait_for(lambda: api(service, f"/{capture_id}")["progress"] == "2 of 2 nodes")
    assert "running" in api(service, f"/{capture_id}/report", 404)["error"]
    assert service.client.delete(f"/api/v1/captures/{capture_id}").status_code == 409
    go.set()
    service.wait(capture_id)
    assert api(service, f"/{capture_id}")["outcome"] == "empty"


def test_the_list_goes_back_page_by_page(service: Service) -> None:
    ids = [service.wait(ask(service, job_id=f"job-{n % 2}")) for n in range(5)]
    assert ids == sorted(ids)
    first = api(service, "", limit=2)
    assert [one["capture_id"] for one in first["captures"]] == ids[:-3:-1]
    second = api(service, "", limit=2, before=first["next_before"])
    assert [one["capture_id"] for one in second["captures"]] == [ids[2], ids[1]]
    last = api(service, "", limit=2, before=second["next_before"])
    assert [one["capture_id"] for one in last["captures"]] == [ids[0]]
    assert last["next_before"] is None
    assert [one["capture_id"] for one in api(service, "", job_id="job-1")["captures"]] == [ids[3], ids[1]]


@pytest.mark.parametrize("limit", ["0", "-1", "501", "x", "", "1.5", "９", "1" * 5000])
def test_a_limit_is_a_small_number(service: Service, limit: str) -> None:
    assert "limit" in api(service, "", 400, limit=limit)["error"]


def test_before_is_a_capture_id(service: Service) -> None:
    api(service, "", 400, before="x")


def test_the_report_is_the_stored_one(service: Service) -> None:
    capture_id = service.capture()
    report = api(service, f"/{capture_id}/report")
    assert report["summary"]["total_processes"] == 4
    assert report["verdict"]["culprit_ranks"] == "2"
    services = service.running.services
    assert report == reader.open_bundle(services.store, capture_id).report()


def test_stacks_are_py_spys_threads_with_who_they_are(service: Service) -> None:
    capture_id = service.capture()
    threads = api(service, f"/{capture_id}/stacks", rank="2")
    assert [one["sample"] for one in threads] == [1, 2]
    assert threads[0]["frames"][0] == {
        "name": "decode_image",
        "filename": "/train.py",
        "line": 10,
        "short_filename": None,
        "module": None,
    }
    expected = {"pid": 102, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": 102, "active": True}
    assert expected.items() <= threads[0].items()
    assert (threads[0]["node"], threads[0]["gpu"], threads[0]["role"]) == ("gpu-2", "2", "trainer")


def test_a_process_that_could_not_be_read_says_so(service: Service) -> None:
    capture_id = service.capture()
    (thread,) = api(service, f"/{capture_id}/stacks", role="launcher")
    assert (thread["frames"], thread["outcome"], thread["wchan"]) == ([], "denied", "do_wait")
    assert thread["os_thread_id"] == thread["pid"]


@pytest.mark.parametrize(
    ("query", "ranks"),
    [
        ({}, {0, 1, 2, None}),
        ({"rank": "0-1/3"}, {0, 1}),
        ({"rank": ["0", "2"]}, {0, 2}),
        ({"node": "gpu-2"}, {2, None}),
        ({"gpu": "1"}, {1}),
        ({"role": "trainer", "node": "gpu-1"}, {0, 1}),
        ({"role": "dataloader"}, set()),
        ({"node": "nowhere"}, set()),
        ({"rank": "999"}, set()),
    ],
)
def test_stacks_can_be_filtered(service: Service, query: dict[str, Any], ranks: set[int | None]) -> None:
    capture_id = service.capture()
    assert {one["rank"] for one in api(service, f"/{capture_id}/stacks", **query)} == ranks


@pytest.mark.parametrize("query", [{"rank": "x"}, {"rank": "-1"}, {"rank": "9" * 40}, {"role": "boss"}])
def test_a_bad_filter_is_refused(service: Service, query: dict[str, str]) -> None:
    capture_id = service.capture()
    assert api(service, f"/{capture_id}/stacks", 400, **query)["remedy"]


def test_nccl_answers_by_node(service: Service) -> None:
    capture_id = service.capture()
    expected = [{"node": "gpu-1", "raw": "NCCL 2.26.3\n", "format": "text", "error": None}]
    assert api(service, f"/{capture_id}/nccl")["nodes"] == expected
    assert api(service, f"/{capture_id}/nccl", node="gpu-1")["nodes"] == expected
    assert api(service, f"/{capture_id}/nccl", node="gpu-2")["nodes"] == []


@pytest.mark.parametrize(
    ("name", "content_type", "holds"),
    [
        ("flamegraph.html", "text/html", "<!doctype html>"),
        ("flamegraph.svg", "image/svg+xml", "<svg"),
        ("flamegraph.folded", "text/plain", "MainThread@decode_image@/train.py:10@2|0-1"),
        ("flamegraph.json", "application/json", "decode_image"),
        ("speedscope.json", "application/json", "decode_image [2|0-1]"),
    ],
)
def test_renderings(service: Service, name: str, content_type: str, holds: str) -> None:
    capture_id = service.capture()
    answer = service.client.get(f"/api/v1/captures/{capture_id}/{name}")
    assert answer.status_code == 200
    assert answer.mimetype == content_type
    assert holds in answer.text


def test_an_unknown_rendering_names_the_known(service: Service) -> None:
    capture_id = service.capture()
    assert "flamegraph.svg" in api(service, f"/{capture_id}/flamegraph.exe", 404)["remedy"]


def test_the_bundle_as_a_zip(service: Service) -> None:
    capture_id = service.capture()
    with service.client.get(f"/api/v1/captures/{capture_id}/bundle.zip") as answer:
        assert answer.mimetype == "application/zip"
        assert f"{capture_id}.zip" in answer.headers["Content-Disposition"]
        archive = zipfile.ZipFile(io.BytesIO(answer.data))
    assert archive.testzip() is None
    assert {name.removeprefix(f"{capture_id}/") for name in archive.namelist()} == {
        "manifest.json",
        "report.json",
        "nodes/gpu-1.json.gz",
        "nodes/gpu-2.json.gz",
        "nccl/gpu-1.txt",
    }
    assert json.loads(archive.read(f"{capture_id}/report.json"))["schema_version"] == 1


def test_a_deleted_capture_is_gone_with_its_bundle(service: Service) -> None:
    capture_id = service.capture()
    assert service.client.delete(f"/api/v1/captures/{capture_id}").status_code == 204
    assert api(service, f"/{capture_id}", 404)
    assert list((service.folder / "bundles").rglob("*.json")) == []
    assert service.client.delete(f"/api/v1/captures/{capture_id}").status_code == 404


def test_a_pinned_capture_stays(service: Service) -> None:
    capture_id = service.capture()
    path = f"/api/v1/captures/{capture_id}"
    assert service.client.patch(path, json={"pinned": True}).json["pinned"] is True
    assert service.client.delete(path).status_code == 409
    assert api(service, f"/{capture_id}")["manifest"]["pinned"] is True
    assert service.client.patch(path, json={"pinned": False}).status_code == 200
    assert service.client.delete(path).status_code == 204
    assert service.client.patch(path, json={"pinned": True}).status_code == 404
    assert service.client.patch(path, json={"pin": True}).status_code == 400


def test_a_capture_that_is_pinned_while_it_waits_or_runs_stays_so(service: Service) -> None:
    go = threading.Event()

    def slow(request: CaptureRequest) -> tuple[NodeAnswer, ...]:
        go.wait(60)
        return ()

    service.capturer.answers = slow
    running = ask(service, job_id="llama")
    wait_for(lambda: service.state(running) == "running")
    waiting = ask(service, job_id="llama")
    for capture_id in (running, waiting):
        answer = service.client.patch(f"/api/v1/captures/{capture_id}", json={"pinned": True})
        assert answer.json["pinned"] is True
    go.set()
    for capture_id in (running, waiting):
        service.wait(capture_id)
        shown = api(service, f"/{capture_id}")
        assert shown["pinned"] is True
        wait_for(lambda of=capture_id: api(service, f"/{of}")["manifest"]["pinned"])
        assert service.client.delete(f"/api/v1/captures/{capture_id}").status_code == 409


@pytest.mark.parametrize("name", [NOWHERE, "x", "..", "%2e%2e", "a b", "..%2f..%2fetc"])
@pytest.mark.parametrize("part", ["", "/report", "/stacks", "/nccl", "/flamegraph.svg", "/bundle.zip"])
def test_what_is_not_there_is_404(service: Service, name: str, part: str) -> None:
    assert api(service, f"/{name}{part}", 404)["error"]


def test_jobs_with_their_incident_and_newest_capture(service: Service) -> None:
    service.capture("a")
    first = service.wait(ask(service, job_id="b"))
    second = service.wait(ask(service, job_id="b"))
    jobs = {one["job_id"]: one for one in service.client.get("/api/v1/jobs").json["jobs"]}
    assert jobs["a"]["incident"]["captures"] == 1
    assert jobs["b"]["incident"] is None
    assert jobs["b"]["newest_capture"]["capture_id"] == second > first


def test_a_capture_that_fails_says_why(service: Service) -> None:
    def broken(request: CaptureRequest) -> tuple[NodeAnswer, ...]:
        raise RuntimeError("no agents")

    service.capturer.answers = broken
    capture_id = service.wait(ask(service, job_id="llama"))
    shown = api(service, f"/{capture_id}")
    assert (shown["state"], shown["outcome"]) == ("failed", "failed")
    assert "no agents" in shown["error"]
    assert "no agents" in api(service, f"/{capture_id}/report", 404)["remedy"]


def test_a_capture_whose_analysis_fails_keeps_the_stacks(start: Start) -> None:
    def broken(job_id: str, trees: object, at: float) -> dict[str, Any]:
        raise RuntimeError("cannot think")

    service = start(analyse=broken)
    capture_id = service.capture()
    shown = api(service, f"/{capture_id}")
    assert shown["state"] == "done"
    assert shown["verdict"] is None
    assert "cannot think" in shown["error"]
    assert api(service, f"/{capture_id}/stacks")
    api(service, f"/{capture_id}/report", 404)


def test_a_job_without_processes_leaves_a_bundle_that_says_so(service: Service) -> None:
    service.capturer.answers = lambda request: (
        NodeAnswer("gpu-1", "ok", 1.0, 2.0, request.job_id, expected_ranks=(0, 1)),
    )
    capture_id = service.capture()
    shown = api(service, f"/{capture_id}")
    assert (shown["outcome"], shown["processes"]) == ("empty", 0)
    assert api(service, f"/{capture_id}/report")["verdict"]["headline"]
    assert api(service, f"/{capture_id}/stacks") == []
