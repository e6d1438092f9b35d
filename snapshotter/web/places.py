"""How many requests of people are served at a time, so that threads stay free for alerts, scrapes and health."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from werkzeug.wsgi import ClosingIterator

THREADS = 24  # of the server
PLACES = 18
_ALWAYS = frozenset(("/metrics", "/-/healthy", "/-/ready"))
_TEXT = f"{PLACES} requests are being answered"
_REMEDY = "try again in a second"

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Places:
    """WSGI middleware. A request has its place until its answer is sent; who finds none is told when to come back."""

    def __init__(self, app: WsgiApp, places: int = PLACES) -> None:
        self._app = app
        self._places = threading.BoundedSemaphore(places)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path in _ALWAYS:
            return self._app(environ, start_response)
        if not self._places.acquire(blocking=False):
            return _refuse(path, start_response)
        place = _Place(self._places)
        return ClosingIterator(self._app(environ, start_response), place.leave)


class _Place:
    """One that is taken. It is left once, at the latest with the last who knows of it: not every server closes."""

    def __init__(self, places: threading.Semaphore) -> None:
        self._places: threading.Semaphore | None = places

    def leave(self) -> None:
        places, self._places = self._places, None
        if places is not None:
            places.release()

    __del__ = leave


def _refuse(path: str, start_response: Callable[..., Any]) -> Iterable[bytes]:
    if path.startswith("/api/"):
        kind, body = "application/json", msgspec.json.encode({"error": _TEXT, "remedy": _REMEDY})
    else:
        kind, body = "text/plain; charset=utf-8", f"503: {_TEXT}; {_REMEDY}\n".encode()
    headers = [("Content-Type", kind), ("Content-Length", str(len(body))), ("Retry-After", "1")]
    start_response("503 Service Unavailable", headers)
    return (body,)
