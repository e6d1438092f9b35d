"""However many people ask at once, threads stay free for alerts, scrapes and health."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from werkzeug.test import Client

from snapshotter.bundle import schema
from snapshotter.web.places import PLACES, THREADS, Places

if TYPE_CHECKING:
    from conftest import Service


def hello(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    if environ["PATH_INFO"] == "/broken":
        raise RuntimeError("broken")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


def test_who_finds_no_place_is_told_when_to_come_back() -> None:
    client = Client(Places(hello, 2))
    first, second = (client.get("/slow", buffered=False) for _ in range(2))  # their answers are being sent
    refused = client.get("/captures/x")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert "try again" in refused.text
    refused = client.get("/api/v1/captures")
    assert refused.status_code == 503 and json.loads(refused.text)["remedy"]
    for path in ("/metrics", "/-/healthy", "/-/ready"):
        assert client.get(path).text == "hello"
    first.close()
    assert client.get("/captures/x").text == "hello"
    second.close()


def test_a_request_that_fails_gives_its_place_back() -> None:
    client = Client(Places(hello, 1))
    for _ in range(3):
        try:
            client.get("/broken")
        except RuntimeError:
            continue
    assert client.get("/").text == "hello"


def test_the_service_has_so_many_places_and_alerts_need_none(service: Service) -> None:
    capture_id = service.capture()
    assert schema.is_capture_id(capture_id) and PLACES < THREADS
    path = f"/api/v1/captures/{capture_id}/stacks"
    sending = [service.client.get(path, buffered=False) for _ in range(PLACES)]
    assert service.client.get(path).status_code == 503
    assert service.client.post("/api/v1/alerts", json={}).status_code == 400  # looked at
    assert service.client.get("/metrics").status_code == 200
    for one in sending:
        one.close()
    assert service.client.get(path).status_code == 200
