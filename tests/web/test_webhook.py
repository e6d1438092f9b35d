from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from exporter.yamlconfig import ConfigError
from snapshotter.bundle.room import Room
from snapshotter.config import Config, IncidentConfig
from snapshotter.web.auth import TokenFile
from tests.running import wait_for

if TYPE_CHECKING:
    from conftest import Service, Start

Alert = Callable[..., dict[str, Any]]


def notification(*alerts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"version": "4", "alerts": list(alerts)} | more


def test_an_alert_becomes_one_capture_with_a_verdict(service: Service) -> None:
    capture_id = service.capture()
    (asked,) = service.capturer.asked
    assert (asked.job_id, asked.trigger, asked.reason) == ("llama", "alert", "TrainingHang")
    shown = service.client.get(f"/api/v1/captures/{capture_id}").json
    assert shown["state"] == "done"
    assert shown["verdict"]["culprit_ranks"] == "2"
    assert shown["manifest"]["request"]["alert"]["labels"]["job_id"] == "llama"


def test_repetitions_and_copies_are_answered_and_lead_to_nothing(service: Service) -> None:
    service.capture()
    for _ in range(3):
        again = service.client.post("/api/v1/alerts", json=service.alert())
        assert (again.status_code, again.json["captures"]) == (200, [])
    assert len(service.capturer.asked) == 1


def test_the_end_is_stored_and_asks_for_nothing(service: Service, alert: Alert) -> None:
    service.capture()
    over = alert() | {"status": "resolved", "endsAt": "2026-11-30T02:00:00Z"}
    assert service.client.post("/api/v1/alerts", json=notification(over)).status_code == 202
    assert service.client.post("/api/v1/alerts", json=notification(over)).status_code == 200
    assert service.client.get("/api/v1/jobs").json["jobs"][0]["incident"] is None
    assert len(service.capturer.asked) == 1


def test_many_at_once_about_one_hang_are_one_capture(service: Service) -> None:
    app = service.client.application

    def send(_: int) -> tuple[int, int]:
        answer = app.test_client().post("/api/v1/alerts", json=service.alert())
        return answer.status_code, len(answer.json["captures"])

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(send, range(64)))
    assert sorted(set(answers)) == [(200, 0), (202, 1)]
    assert answers.count((202, 1)) == 1
    wait_for(lambda: len(service.capturer.asked) == 1)


def test_hangs_of_many_jobs_at_once_are_one_capture_each(service: Service) -> None:
    app = service.client.application

    def send(number: int) -> tuple[int, str]:
        job = f"job-{number % 20}"
        answer = app.test_client().post("/api/v1/alerts", json=service.alert(job_id=job, log=str(number)))
        return answer.status_code, job if answer.json["captures"] else ""

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(send, range(80)))
    assert {status for status, _ in answers} == {202}  # each is an alert of its own, and stored
    assert sorted(job for _, job in answers if job) == sorted(f"job-{number}" for number in range(20))
    wait_for(lambda: len(service.capturer.asked) == 20)
    assert len({one.job_id for one in service.capturer.asked}) == 20


def test_without_room_the_end_of_a_hang_is_still_taken_in(
    service: Service, alert: Alert, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.capture()
    monkeypatch.setattr(service.running.services.store, "room", lambda: Room(0, 1))
    refused = service.client.post("/api/v1/alerts", json=service.alert(job_id="other"))
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "10")
    over = alert() | {"status": "resolved", "endsAt": "2026-11-30T02:00:00Z"}
    assert service.client.post("/api/v1/alerts", json=notification(over)).status_code == 202
    monkeypatch.undo()
    assert service.client.post("/api/v1/alerts", json=service.alert(job_id="other")).status_code == 202


def test_alerts_of_several_jobs_in_one_notification(service: Service, alert: Alert) -> None:
    body = notification(
        alert(job_id="a"), alert(job_id="b", log="1"), alert(job_id="b", log="2"), alert(job_id="")
    )
    answer = service.client.post("/api/v1/alerts", json=body)
    assert answer.status_code == 202
    for capture_id in answer.json["captures"]:
        service.wait(capture_id)
    assert sorted(one.job_id for one in service.capturer.asked) == ["a", "b"]
    assert answer.json["ignored_alerts"] == 1


def test_our_own_verdict_does_not_ask_for_a_capture(service: Service) -> None:
    answer = service.client.post("/api/v1/alerts", json=service.alert(alertname="TrainingHangDiagnosed"))
    assert answer.status_code == 200
    assert service.capturer.asked == []


def test_which_names_ask_is_configured(start: Start) -> None:
    service = start(config=Config(incidents=IncidentConfig(alertnames=("Site*",))))
    assert service.client.post("/api/v1/alerts", json=service.alert()).status_code == 200
    assert service.client.post("/api/v1/alerts", json=service.alert(alertname="SiteHang")).status_code == 202


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"[]",
        b"{}",
        b'{"version":"3","alerts":[]}',
        b'{"version":"4"}',
        b'{"version":"4","alerts":[1]}',
    ],
)
def test_what_is_no_notification_gets_400_with_what_is_wrong(service: Service, body: bytes) -> None:
    answer = service.client.post("/api/v1/alerts", data=body, content_type="application/json")
    assert answer.status_code == 400
    assert answer.json["error"] and answer.json["remedy"]


def test_no_alerts_is_nothing_to_do(service: Service) -> None:
    assert service.client.post("/api/v1/alerts", json=notification()).status_code == 200


def test_other_methods_and_paths_get_json_errors(service: Service) -> None:
    assert service.client.get("/api/v1/alerts").status_code == 405
    assert service.client.get("/api/v1/nothing").json["error"] == "Not Found"


HOSTILE = [
    "../../../../tmp/hangscope-escape",
    "/etc/passwd",
    "..",
    "<script>alert(1)</script>",
    "a\nb\r\nX-Injected: 1",
    "a\0b",
    "\ud800",
    "\u202eevil",
    "%2e%2e%2f",
    "' OR 1=1; --",
    "{{7*7}}",
    "😀" * 9,
    " ",
    "-",
]


@pytest.mark.parametrize("value", HOSTILE, ids=ascii)
def test_hostile_label_values_are_handled_and_stay_in_the_data_folder(
    service: Service, alert: Alert, value: str, tmp_path: Path
) -> None:
    before = set(tmp_path.iterdir())
    body = json.dumps(notification(alert(job_id=value, note=value, **{"x" + value: value})))
    answer = service.client.post("/api/v1/alerts", data=body, content_type="application/json")
    assert answer.status_code == 202
    capture_id = service.wait(answer.json["captures"][0])
    assert service.state(capture_id) == "done"
    assert set(tmp_path.iterdir()) == before
    bundles = service.folder / "bundles"
    assert sorted(path.name for path in bundles.iterdir()) == [".partial", capture_id]
    for page in ("", "/report", "/stacks", "/flamegraph.svg", "/bundle.zip"):
        with service.client.get(f"/api/v1/captures/{capture_id}{page}") as shown:
            assert shown.status_code == 200
    listed = service.client.get("/api/v1/captures", query_string={"job_id": service.capturer.asked[0].job_id})
    assert [one["capture_id"] for one in listed.json["captures"]] == [capture_id]
    assert service.client.get("/metrics").status_code == 200


def test_a_value_of_a_megabyte_is_cut(service: Service) -> None:
    answer = service.client.post("/api/v1/alerts", json=service.alert(note="x" * 1_000_000))
    assert answer.status_code == 202
    service.wait(answer.json["captures"][0])
    assert (service.folder / "index.db").stat().st_size < 500_000
    assert (
        service.client.post("/api/v1/alerts", json=service.alert(job_id="x" * 1_000_000)).status_code == 200
    )


def test_a_body_beyond_the_bound_gets_413(service: Service) -> None:
    answer = service.client.post(
        "/api/v1/alerts", data=b" " * (8 << 20) + b"{}", content_type="application/json"
    )
    assert answer.status_code == 413
    assert answer.json["error"]


@pytest.mark.parametrize("jobs", [1, 10_000])
def test_ten_thousand_alerts_are_taken_quickly(service: Service, alert: Alert, jobs: int) -> None:
    alerts = [alert(job_id=f"job-{n % jobs}", log=str(n)) for n in range(10_000)]
    service.capturer.answers = lambda request: ()
    body = json.dumps(notification(*alerts)).encode()
    service.clock.stop()  # what is heard again after a minute is written down again
    started = time.thread_time()
    answer = service.client.post("/api/v1/alerts", data=body, content_type="application/json")
    took = time.thread_time() - started
    assert answer.status_code == 202
    assert len(answer.json["captures"]) == jobs
    assert took < 5, "seconds of CPU"
    again = service.client.post("/api/v1/alerts", data=body, content_type="application/json")
    assert again.status_code == 200


def test_when_the_index_cannot_be_written_the_sender_is_asked_to_try_again(service: Service) -> None:
    full = sqlite3.connect(service.folder / "index.db", isolation_level=None)
    full.execute("BEGIN IMMEDIATE")  # as a full or dying disk would: no write comes through
    try:
        answer = service.client.post("/api/v1/alerts", json=service.alert())
    finally:
        full.execute("ROLLBACK")
        full.close()
    assert answer.status_code == 503
    assert "index" in answer.json["error"]
    assert answer.headers["Retry-After"]
    assert service.capture()
    assert 'snapshotter_notifications_total{result="cannot_store"} 1.0' in service.client.get("/metrics").text


def test_when_the_disk_is_full_the_sender_is_asked_to_try_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: _usage(1000))
        answer = service.client.post("/api/v1/alerts", json=service.alert())
        assert answer.status_code == 503
    assert service.capture()


def _usage(free: int) -> Any:
    return type("Usage", (), {"free": free, "total": 10 * free})()


def test_every_answer_is_counted(service: Service) -> None:
    service.capture()
    service.client.post("/api/v1/alerts", json=service.alert())
    service.client.post("/api/v1/alerts", data=b"x")
    metrics = service.client.get("/metrics").text
    for result in ("accepted", "nothing_to_do", "malformed"):
        assert f'snapshotter_notifications_total{{result="{result}"}} 1.0' in metrics


def test_who_and_why_is_in_the_audit_log(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "snapshotter.audit"]

    with caplog.at_level(logging.INFO, "snapshotter.audit"):
        capture_id = service.capture("evil\ncapture_taken forged")
        wait_for(lambda: len(lines()) >= 2)
    asked, taken = lines()
    assert "\n" not in asked + taken
    assert asked.startswith("capture_requested ") and capture_id in asked and "from 127.0.0.1" in asked
    assert taken.startswith("capture_taken ") and '"gpu-1"' in taken and "processes=4" in taken


# Token


def token_file(folder: Path, text: str = "secret\n", mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        ("Basic c2VjcmV0", 401),
        ("secret", 401),
        ("Bearer sécret", 401),
        ("Bearer secret", 202),
        ("bearer secret", 202),
    ],
)
def test_with_a_token_file_the_webhook_wants_the_token(
    start: Start, tmp_path: Path, header: str | None, status: int
) -> None:
    service = start(token=TokenFile(token_file(tmp_path)))
    headers = {} if header is None else {"Authorization": header}
    answer = service.client.post("/api/v1/alerts", json=service.alert(), headers=headers)
    assert answer.status_code == status
    if status == 401:
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert (
            'snapshotter_notifications_total{result="unauthorized"} 1.0'
            in service.client.get("/metrics").text
        )


def test_reading_is_open_and_changing_is_not(start: Start, tmp_path: Path) -> None:
    service = start(token=TokenFile(token_file(tmp_path)))
    capture = "/api/v1/captures/20261130T012233Z-0123456789ab"
    assert service.client.get("/api/v1/captures").status_code == 200
    assert service.client.post("/api/v1/captures", json={}).status_code == 401
    assert service.client.delete(capture).status_code == 401
    assert service.client.patch(capture, json={"pinned": True}).status_code == 401
    assert service.client.post("/-/reload").status_code == 401


def test_behind_a_password_no_token_is_wanted_on_top(start: Start, tmp_path: Path) -> None:
    service = start(token=TokenFile(token_file(tmp_path)), basic_auth=True)
    assert service.client.post("/api/v1/alerts", json=service.alert()).status_code == 202


def test_a_changed_token_holds_at_once_and_a_broken_file_keeps_the_old(start: Start, tmp_path: Path) -> None:
    path = token_file(tmp_path)
    token = TokenFile(path)
    assert token.matches("secret")
    path.write_text("rotated-secret\n")
    assert token.matches("rotated-secret") and not token.matches("secret")
    path.write_text("")
    assert token.matches("rotated-secret") and not token.matches("")
    path.unlink()
    assert token.matches("rotated-secret")


@pytest.mark.parametrize(
    ("text", "mode", "problem"),
    [
        ("", 0o600, "not a token"),
        ("two words", 0o600, "not a token"),
        ("x" * 5000, 0o600, "not a token"),
        ("sécret", 0o600, "not a token"),
        ("secret", 0o644, "chmod"),
        ("secret", 0o602, "chmod"),
    ],
)
def test_a_token_file_that_protects_nothing_is_refused(
    tmp_path: Path, text: str, mode: int, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        TokenFile(token_file(tmp_path, text, mode))


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no-such-file"):
        TokenFile(tmp_path / "no-such-file")


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        *(
            {"Origin": origin}
            for origin in ("http://evil.example", "null", "", "http://[", "http://a]b", "//\u2100")
        ),
    ],
)
def test_a_page_of_another_site_may_not_ask(service: Service, headers: dict[str, str]) -> None:
    assert service.client.post("/api/v1/captures", json={}, headers=headers).status_code == 403
    assert service.client.post("/api/v1/alerts", json=service.alert(), headers=headers).status_code == 403
    assert (
        service.client.post("/api/v1/captures", json={}, headers={"Origin": "http://localhost"}).status_code
        == 202
    )
