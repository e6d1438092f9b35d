from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.yamlconfig import ConfigError
from snapshotter import metrics
from tests.running import wait_for

if TYPE_CHECKING:
    from conftest import Service, Start


def samples(service: Service) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in parse_text(service.client.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_it_is_healthy_and_ready(service: Service) -> None:
    assert service.client.get("/-/healthy").status_code == 200
    assert service.client.get("/-/ready").status_code == 200


def test_every_metric_of_the_table_is_served_and_no_other(service: Service) -> None:
    service.capture()
    families: list[Metric] = []

    def served() -> set[str]:
        families[:] = parse_text(service.client.get("/metrics").text)
        return {family.name + ("_total" if family.type == "counter" else "") for family in families}

    wanted = {spec.name for spec in metrics.TABLE}
    wait_for(lambda: served() == wanted, say=lambda: served() ^ wanted)  # each reader has its own time
    types = {spec.name.removesuffix("_total"): spec.kind for spec in metrics.TABLE}
    assert {family.name: family.type for family in families} == types
    for family in families:
        spec = next(one for one in metrics.TABLE if one.name.removesuffix("_total") == family.name)
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        assert labels == set(spec.labels)


def test_openmetrics_where_it_is_asked_for(service: Service) -> None:
    answer = service.client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.mimetype == "application/openmetrics-text"
    assert {family.name for family in parse_openmetrics(answer.text)} >= {"snapshotter_captures"}


def test_the_verdict_is_a_metric_of_the_newest_capture_alone(service: Service) -> None:
    first = service.capture()
    asked = service.client.post("/api/v1/captures", json={"job_id": "llama"})
    second = service.wait(asked.json["capture_id"])
    wait_for(
        lambda: (
            [one["capture_id"] for one, _ in samples(service).get("snapshotter_verdict_info", ())] == [second]
        )
    )
    ((labels, value),) = samples(service)["snapshotter_verdict_info"]
    assert value == 1.0 and second != first
    assert labels == {
        "job_id": "llama",
        "capture_id": second,
        "scope": "local",
        "cause": labels["cause"],
        "culprit_ranks": "2",
        "culprit_nodes": "gpu-2",
        "report_url": f"http://hangscope.example/captures/{second}",
    }
    ((labels, at),) = samples(service)["snapshotter_verdict_timestamp_seconds"]
    assert labels == {"job_id": "llama"}
    assert at == service.client.get(f"/api/v1/captures/{second}").json["finished_at"]
    ((labels, value),) = samples(service)["snapshotter_verdict_headline_info"]
    verdict = service.client.get(f"/api/v1/captures/{second}/report").json["verdict"]
    assert value == 1.0
    assert labels == {"job_id": "llama", "capture_id": second, "headline": verdict["headline"]}


def test_captures_processes_and_sizes_are_counted(service: Service) -> None:
    capture_id = service.capture()
    found: dict[str, list[tuple[dict[str, str], float]]] = {}

    def all_counted() -> (
        bool
    ):  # a capture and its processes are counted, and the index looked at, in their own time
        found.update(samples(service))
        return (
            ({"outcome": "ok"}, 3.0) in found["snapshotter_captured_processes_total"]
            and found["snapshotter_queue_length"] == [({}, 0.0)]
            and found["snapshotter_bundle_bytes"][0][1] > 0
        )

    wait_for(all_counted, say=lambda: found)
    assert ({"trigger": "alert", "outcome": "partial"}, 1.0) in found["snapshotter_captures_total"]
    assert ({"outcome": "denied"}, 1.0) in found["snapshotter_captured_processes_total"]
    assert found["snapshotter_capture_duration_seconds_count"] == [({}, 1.0)]
    shown = service.client.get(f"/api/v1/captures/{capture_id}").json
    assert found["snapshotter_bundle_bytes"] == [({}, shown["bytes"])]
    assert found["snapshotter_queue_length"] == [({}, 0.0)]
    assert found["snapshotter_bundle_limit_bytes"] == [({}, float(20 << 30))]


def test_a_deleted_capture_takes_its_verdict_along(service: Service) -> None:
    capture_id = service.capture()
    wait_for(lambda: "snapshotter_verdict_info" in samples(service))
    service.client.delete(f"/api/v1/captures/{capture_id}")
    wait_for(lambda: "snapshotter_verdict_info" not in samples(service))


def test_reload(start: Start) -> None:
    problems: list[ConfigError] = []

    def reload() -> None:
        if problems:
            raise problems.pop()

    service = start(reload=reload)
    assert service.client.post("/-/reload").status_code == 200
    problems.append(ConfigError("hangscope.yml: incidents.cool_down: 'x' is no duration"))
    refused = service.client.post("/-/reload")
    assert refused.status_code == 500
    assert "cool_down" in refused.text
    assert samples(service)["snapshotter_config_last_reload_successful"] == [({}, 0.0)]
    assert service.client.post("/-/reload").status_code == 200
    assert samples(service)["snapshotter_config_last_reload_successful"] == [({}, 1.0)]
    assert service.client.get("/-/reload").status_code == 405


def test_names_and_help_of_the_table_are_in_prometheus_form() -> None:
    for spec in metrics.TABLE:
        assert re.fullmatch(r"snapshotter_[a-z_]+", spec.name)
        assert spec.help.endswith(".")
        assert (spec.kind == "counter") == spec.name.endswith("_total")


@pytest.mark.parametrize("value", [0.0, 0.001, 0.3, 1e9])
def test_a_histogram_counts_every_value_once(value: float) -> None:
    histogram = metrics.Histogram((0.001, 0.5))
    histogram.observe(value)
    (count,) = [
        s.value
        for s in histogram.family("snapshotter_target_pause_seconds").samples
        if s.name.endswith("_count")
    ]
    assert count == 1
