from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshotter import alertmanager
from snapshotter.alertmanager import Reading
from snapshotter.errors import BadRequest

NAMES = ("TrainingHang",)


def alert(**labels: str) -> dict[str, Any]:
    return {
        "status": "firing",
        "labels": {"alertname": "TrainingHang", "job_id": "llama"} | labels,
        "annotations": {"summary": "hangs"},
        "startsAt": "2026-11-30T01:22:33.123456789Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus/graph",
        "fingerprint": "0123456789abcdef",
    }


def read(*alerts: dict[str, Any], **more: Any) -> Reading:
    body = {"version": "4", "receiver": "snapshotter", "alerts": list(alerts)} | more
    return alertmanager.read(alertmanager.parse(json.dumps(body).encode()), NAMES)


def test_a_notification_of_a_newer_alertmanager_is_read() -> None:
    reading = read(
        alert() | {"futureField": {"a": 1}},
        groupKey="{}:{}",
        groupLabels={"job_id": "llama"},
        commonLabels={},
        commonAnnotations={},
        externalURL="http://alertmanager",
        truncatedAlerts=0,
        notification_reason="new",
    )
    (job,) = reading.jobs
    (event,) = job.events
    assert (job.job_id, reading.receiver, reading.ignored) == ("llama", "snapshotter", 0)
    assert event.firing and event.fingerprint == "0123456789abcdef"
    assert event.starts_at == pytest.approx(1796001753.123456, abs=1e-5)
    assert event.ends_at is None
    assert job.alert().external_url == "http://alertmanager"
    assert job.alert().annotations == {"summary": "hangs"}


def test_alerts_are_gathered_by_job_and_the_firing_one_is_kept() -> None:
    resolved = alert(log="a") | {"status": "resolved", "endsAt": "2026-11-30T02:00:00Z", "fingerprint": "aa"}
    reading = read(resolved, alert(log="b") | {"fingerprint": "bb"}, alert(job_id="other"))
    assert [job.job_id for job in reading.jobs] == ["llama", "other"]
    assert [event.firing for event in reading.jobs[0].events] == [False, True]
    assert reading.jobs[0].events[0].ends_at == 1796004000.0
    assert reading.jobs[0].alert().labels["log"] == "b"


@pytest.mark.parametrize(
    ("labels", "captured"),
    [
        ({}, True),
        ({"alertname": "TrainingHangDiagnosed"}, False),
        ({"alertname": "TrainingHangDiagnosed", "capture_id": "x", "hangscope_capture": "true"}, False),
        ({"alertname": "SiteSpecific"}, False),
        ({"alertname": "SiteSpecific", "hangscope_capture": "true"}, True),
        ({"hangscope_capture": "false"}, False),
        ({"capture_id": "x"}, False),
        ({"job_id": ""}, False),
        ({"job_id": "j" * 1024}, True),
        ({"job_id": "j" * 1025}, False),
    ],
)
def test_which_alerts_ask_for_a_capture(labels: dict[str, str], captured: bool) -> None:
    reading = read(alert(**labels))
    assert (len(reading.jobs), reading.ignored) == ((1, 0) if captured else (0, 1))


def test_names_may_be_globs() -> None:
    notification = alertmanager.parse(
        json.dumps({"version": "4", "alerts": [alert(alertname="MyHang2")]}).encode()
    )
    assert alertmanager.read(notification, ("MyHang[12]",)).jobs
    assert not alertmanager.read(notification, ("myhang*",)).jobs
    assert not alertmanager.read(notification, ()).jobs


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b"null",
        b"{}",
        b'{"version": "4"}',
        b'{"version": 4, "alerts": []}',
        b'{"version": "3", "alerts": []}',
        b'{"version": "4", "alerts": {}}',
        b'{"version": "4", "alerts": [{}]}',
        b'{"version": "4", "alerts": [{"labels": null}]}',
        b'{"version": "4", "alerts": [{"labels": {"job_id": 7}}]}',
        b'{"version": "4", "alerts": [{"labels": {"job_id": "x"}}',
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"version": "4", "x": ' + b"[" * 100_000,
    ],
)
def test_what_is_no_notification_is_refused_in_one_line(body: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        alertmanager.parse(body)
    assert "\n" not in refused.value.message
    assert refused.value.remedy


def test_half_a_surrogate_pair_and_broken_utf8_cost_a_character_not_the_notification() -> None:
    text = json.dumps({"version": "4", "alerts": [alert(job_id="a?b")]}).encode()
    for hostile in (rb"a\ud800b", b"a\xffb", rb"a\u0000b"):
        reading = alertmanager.read(alertmanager.parse(text.replace(b"a?b", hostile)), NAMES)
        assert reading.jobs[0].job_id == "a\ufffdb"


def test_long_values_are_cut_and_an_unusual_fingerprint_is_replaced() -> None:
    big = alert(note="x" * 1_000_000) | {"fingerprint": "../../x"}
    (job,) = read(big, generatorURL="y").jobs
    assert len(job.alert().labels["note"]) == 2001
    (again,) = read(big).jobs
    assert job.events[0].fingerprint == again.events[0].fingerprint != "../../x"


@pytest.mark.parametrize(
    "text", ["", "soon", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "2026-13-01T00:00:00Z"]
)
def test_times_that_say_nothing(text: str) -> None:
    assert alertmanager.unix_seconds(text) is None


@given(st.text())
def test_any_time_is_read_or_none(text: str) -> None:
    alertmanager.unix_seconds(text)


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=50), max_size=5), st.text(), st.text())
def test_any_labels_are_storable_afterwards(labels: dict[str, str], job_id: str, receiver: str) -> None:
    reading = read(
        alert() | {"labels": {"alertname": "TrainingHang"} | labels | {"job_id": job_id}}, receiver=receiver
    )
    for job in reading.jobs:
        for text in (job.job_id, *job.alert().labels, *job.alert().labels.values(), reading.receiver):
            assert "\x00" not in text
            text.encode()
