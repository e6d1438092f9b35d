"""The privileged part on each node: who trains here, and the capture of a training job. Nothing else.

It answers `GET /api/v1/ranks` and `POST /api/v1/capture`, both only with a token (or, where the server wants
one, a client certificate), captures nothing but what
it recognises as training itself, and writes a line for every capture and every refusal to the audit log.
"""

from __future__ import annotations

import gzip
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from flask import Flask, Response, request
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from exporter.ranks import Scan, TrainingProcess
from snapshotter.audit import audit
from snapshotter.capture import wire
from snapshotter.capture.bounded import call_within
from snapshotter.capture.privacy import mask_command_line
from snapshotter.capture.wire import NotAnAnswer, Order
from snapshotter.stacks.model import NodeAnswer

log = logging.getLogger(__name__)

_AT_ONCE = 4  # captures of different jobs
_SCAN_LIMIT = 10.0  # seconds
_SMALL = 1024  # bytes that are not worth compressing


class Memory:
    """Which ranks of which job were seen here lately: those that are gone are missed, not forgotten."""

    def __init__(self, *, keep: float = 3600.0, now: Callable[[], float] = time.time) -> None:
        """`keep`: seconds after which a rank that is not seen any more is no longer expected."""
        self._keep = keep
        self._now = now
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, int], float] = {}

    def note(self, scan: Scan) -> None:
        with self._lock:
            for process in scan.processes:
                if process.role == "trainer" and process.rank is not None:
                    self._seen[process.job_id, process.rank] = scan.taken_at
            oldest = self._now() - self._keep
            self._seen = {key: seen for key, seen in self._seen.items() if seen >= oldest}

    def ranks(self, job_id: str) -> tuple[int, ...]:
        """Ranks of a job that were seen here within the time kept."""
        oldest = self._now() - self._keep
        with self._lock:
            found = [rank for (job, rank), seen in self._seen.items() if job == job_id and seen >= oldest]
        return tuple(sorted(found))


class Watch:
    """Looks for training processes at an interval, so that those are known that cannot be read any more."""

    def __init__(self, find: Callable[[], Scan], memory: Memory, *, interval: float = 15.0) -> None:
        self._find = find
        self._memory = memory
        self._interval = interval
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._memory.note(self._find())
            except OSError as error:  # /proc itself cannot be read
                log.warning("looking for training processes failed: %s", error)
            self._stopped.wait(self._interval)


class _Shared:
    """Captures under way: a second order for the same job waits for the first one's answer."""

    def __init__(self, capture: Callable[[Order], NodeAnswer]) -> None:
        self._capture = capture
        self._lock = threading.Condition()
        self._running: dict[tuple[str, tuple[int, ...]], list[NodeAnswer | None]] = {}

    def take(self, order: Order) -> NodeAnswer | None:
        """The answer; None where too many captures are under way."""
        what = (order.job_id, order.native_pids)
        with self._lock:
            place = self._running.get(what)
            if place is not None:
                self._lock.wait_for(lambda: self._running.get(what) is not place, order.deadline)
                return place[0]
            if len(self._running) >= _AT_ONCE:
                return None
            place = self._running[what] = [None]
        try:
            place[0] = self._capture(order)
        finally:
            with self._lock:
                del self._running[what]
                self._lock.notify_all()
        return place[0]


def create_app(
    *,
    node: str,
    find: Callable[[], Scan],
    capture: Callable[[Order], NodeAnswer],
    matches: Callable[[str], bool] | None,
) -> Flask:
    """The agent's WSGI application.

    `find` looks for the training processes, `capture` obeys an order, `matches` says in constant time
    whether a bearer token is the right one; None only where the server wants a client certificate already.
    """
    app = Flask("snapshotter-agent", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = wire.LARGEST_ORDER
    shared = _Shared(capture)

    @app.before_request
    def guard() -> ResponseReturnValue | None:
        if matches is None:
            return None
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and matches(token.strip()):
            return None
        audit("refused", remote=request.remote_addr, path=request.path)
        answer = _error(401, "no token, or a wrong one: send Authorization: Bearer <token>")
        answer.headers["WWW-Authenticate"] = 'Bearer realm="hangscope-agent"'
        return answer

    @app.get("/api/v1/ranks")
    def ranks() -> ResponseReturnValue:
        scan = call_within(find, _SCAN_LIMIT)
        if scan is None:
            return _error(503, "looking for the training processes took too long")
        return {
            "node": scan.node,
            "taken_at": scan.taken_at,
            "processes": [_described(one) for one in scan.processes],
        }

    @app.post("/api/v1/capture")
    def take() -> ResponseReturnValue:
        try:
            order = wire.decode_order(request.get_data())
        except NotAnAnswer as error:
            return _error(400, f"no order for a capture: {error}")
        started = time.monotonic()
        facts: dict[str, Any] = {
            "capture_id": order.capture_id,
            "job_id": order.job_id,
            "reason": order.reason,
            "requested_by": order.requested_by,
            "remote": request.remote_addr,
        }
        audit("capture_started", node=node, **facts)
        answer = shared.take(order)
        if answer is None:
            audit("capture_refused", node=node, **facts)
            busy = _error(503, f"{_AT_ONCE} captures are under way on {node}: ask again later")
            busy.headers["Retry-After"] = "10"
            return busy
        seconds = round(time.monotonic() - started, 3)
        audit("capture_taken", node=node, **facts, processes=_outcomes(answer), seconds=seconds)
        return _json(wire.reply(answer, order))

    @app.errorhandler(HTTPException)
    def explain(error: HTTPException) -> ResponseReturnValue:
        if isinstance(error, RequestEntityTooLarge):
            return _error(413, f"an order has at most {wire.LARGEST_ORDER} bytes")
        return _error(error.code or 500, error.name)

    return app


def _json(body: bytes) -> Response:
    headers = {"Vary": "Accept-Encoding"}
    if len(body) > _SMALL and request.accept_encodings.quality("gzip") > 0:
        body = gzip.compress(body, compresslevel=1, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(body, content_type="application/json", headers=headers)


def _error(status: int, text: str) -> Response:
    return Response(json.dumps({"error": text}), status, content_type="application/json")


def _described(process: TrainingProcess) -> dict[str, Any]:
    return {
        "pid": process.id.pid,
        "job_id": process.job_id,
        "role": process.role,
        "rank": process.rank,
        "local_rank": process.local_rank,
        "world_size": process.world_size,
        "worker": process.worker,
        "gpu": process.gpu,
        "pod": process.pod,
        "launcher": process.launcher,
        "name": process.name,
        "command_line": mask_command_line(process.command_line),
    }


def _outcomes(answer: NodeAnswer) -> dict[str, int]:
    outcomes: Iterable[str] = (process.outcome for process in answer.processes)
    counted: dict[str, int] = {}
    for outcome in outcomes:
        counted[outcome] = counted.get(outcome, 0) + 1
    return counted
