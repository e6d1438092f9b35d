"""POST /api/v1/alerts: Alertmanager's webhook, version 4.

202 accepted and stored · 200 nothing to do · 400 malformed · 401 no or wrong token · 413 too large ·
503 cannot store. Nothing is captured inside the request.

Storms of alerts come through here, so that exactly this request is answered before Flask's routing and
contexts, which cost more than all the rest of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
from flask import Blueprint, Response
from flask import request as flask_request
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge
from werkzeug.wrappers import Request

from snapshotter import alertmanager, services
from snapshotter.errors import BadRequest, CannotStore, Forbidden, SnapshotterError, TooLarge, Unauthorized
from snapshotter.web.auth import who
from snapshotter.web.refusal import headers_of

log = logging.getLogger(__name__)
webhook = Blueprint("webhook", __name__)

MAX_BODY_BYTES = 8 << 20
_PATH = "/api/v1/alerts"
_RESULTS: dict[type[SnapshotterError], str] = {
    BadRequest: "malformed",
    Unauthorized: "unauthorized",
    Forbidden: "unauthorized",
    TooLarge: "too_large",
    CannotStore: "cannot_store",
}

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered: a JSON body."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


@webhook.post(_PATH)
def alerts() -> ResponseReturnValue:
    given = answer(services.current(), flask_request)
    return Response(given.body, given.status, given.headers, content_type="application/json")


class Shortcut:
    """WSGI middleware that answers the webhook itself."""

    def __init__(self, app: WsgiApp, given: services.Services) -> None:
        self._app = app
        self._services = given

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != _PATH or environ.get("REQUEST_METHOD") != "POST":
            return self._app(environ, start_response)
        request = Request(environ)
        request.max_content_length = MAX_BODY_BYTES
        given = answer(self._services, request)
        start_response(
            f"{given.status} {HTTPStatus(given.status).phrase}",
            [
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(given.body))),
                ("X-Content-Type-Options", "nosniff"),
                *given.headers,
            ],
        )
        return (given.body,)


def answer(given: services.Services, request: Request) -> Answer:
    """Take in a notification; refusals are answers too."""
    try:
        done = _take(given, request)
    except SnapshotterError as error:
        given.metrics.count_notification(_RESULTS.get(type(error), "cannot_store"))
        body = msgspec.json.encode({"error": error.message, "remedy": error.remedy})
        return Answer(error.status, body, headers_of(error))
    given.metrics.count_notification("accepted" if done.status == 202 else "nothing_to_do")
    return done


def _take(given: services.Services, request: Request) -> Answer:
    given.auth.require(request)
    reading = alertmanager.read(alertmanager.parse(_body(request)), given.tasks.alertnames())
    accepted = given.tasks.notify(reading, who(request)) if reading.jobs else None
    ids = [one.capture_id for one in accepted.requests] if accepted is not None else []
    stored = accepted is not None and accepted.changed
    body = msgspec.json.encode({"captures": ids, "ignored_alerts": reading.ignored})
    return Answer(202 if stored else 200, body)


def _body(request: Request) -> bytes:
    try:
        return request.get_data(cache=False)
    except RequestEntityTooLarge as error:
        raise TooLarge(
            "the notification is larger than 8 MiB", "set max_alerts in Alertmanager's webhook_config"
        ) from error
    except (HTTPException, OSError) as error:
        raise BadRequest("the notification did not arrive whole", "send it again") from error
