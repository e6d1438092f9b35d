"""/metrics, /-/healthy, /-/ready and /-/reload."""

from __future__ import annotations

from flask import Blueprint, Response, request
from prometheus_client.exposition import choose_encoder

from exporter.yamlconfig import ConfigError
from snapshotter import services

health = Blueprint("health", __name__)


@health.get("/metrics")
def metrics() -> Response:
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return Response(encode(services.current().metrics.registry), content_type=content_type)


@health.get("/-/healthy")
def healthy() -> Response:
    return _text("healthy\n")


@health.get("/-/ready")
def ready() -> Response:
    if services.current().ready():
        return _text("ready\n")
    return _text("not ready: the index of captures cannot be read\n", 503)


@health.post("/-/reload")
def reload() -> Response:
    given = services.current()
    given.auth.require(request)
    try:
        given.reload()
    except ConfigError as error:
        return _text(f"the old configuration stays in force: {error}\n", 500)
    return _text("reloaded\n")


def _text(text: str, status: int = 200) -> Response:
    return Response(text, status, content_type="text/plain; charset=utf-8")
