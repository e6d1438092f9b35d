"""POST /api/v1/alerts: Alertmanager's webhook, version 4.

202 accepted and stored · 200 nothing to do · 400 malformed · 401 no or wrong token · 413 too large ·
503 cannot store. Nothing is captured inside the request.
"""

from __future__ import annotations

import msgspec
from flask import Blueprint, Response, request
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import RequestEntityTooLarge

from snapshotter import alertmanager, services
from snapshotter.errors import BadRequest, CannotStore, Forbidden, SnapshotterError, TooLarge, Unauthorized
from snapshotter.web.auth import who

webhook = Blueprint("webhook", __name__)

_RESULTS: dict[type[SnapshotterError], str] = {
    BadRequest: "malformed",
    Unauthorized: "unauthorized",
    Forbidden: "unauthorized",
    TooLarge: "too_large",
    CannotStore: "cannot_store",
}


@webhook.post("/api/v1/alerts")
def alerts() -> ResponseReturnValue:
    given = services.current()
    try:
        answer, status = _take(given)
    except SnapshotterError as error:
        given.metrics.count_notification(_RESULTS.get(type(error), "cannot_store"))
        raise
    given.metrics.count_notification("accepted" if status == 202 else "nothing_to_do")
    return answer, status


def _take(given: services.Services) -> tuple[Response, int]:
    given.auth.require(request)
    try:
        body = request.get_data(cache=False)
    except RequestEntityTooLarge as error:
        raise TooLarge(
            "the notification is larger than 8 MiB", "set max_alerts in Alertmanager's webhook_config"
        ) from error
    reading = alertmanager.read(alertmanager.parse(body), given.tasks.alertnames())
    accepted = given.tasks.notify(reading, who(request)) if reading.jobs else None
    ids = [one.capture_id for one in accepted.requests] if accepted is not None else []
    stored = accepted is not None and accepted.changed
    answer = msgspec.json.encode({"captures": ids, "ignored_alerts": reading.ignored})
    return Response(answer, content_type="application/json"), 202 if stored else 200
