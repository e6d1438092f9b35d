"""The JSON API: asking for captures, listing them, and every part of one."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, TypeVar, get_args

import msgspec
from flask import Blueprint, Response, request, url_for
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.wsgi import wrap_file

from snapshotter import services
from snapshotter.bundle import schema
from snapshotter.bundle.index import CaptureRecord
from snapshotter.bundle.reader import Bundle, open_bundle
from snapshotter.errors import BadRequest, NotFound, TooLarge
from snapshotter.stacks import rankset
from snapshotter.stacks.model import Process, Role
from snapshotter.web import formats
from snapshotter.web.auth import who
from snapshotter.web.site import derived

T = TypeVar("T")

captures = Blueprint("captures", __name__, url_prefix="/api/v1")

MAX_LIMIT = 500


class CaptureBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /api/v1/captures; without a job, this node's training processes are captured."""

    reason: str = ""
    job_id: str = ""


class PinBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of PATCH /api/v1/captures/<id>."""

    pinned: bool


@captures.post("/captures")
def ask() -> ResponseReturnValue:
    given = services.current()
    given.auth.require(request)
    body = _body(CaptureBody)
    asked = given.tasks.request(body.job_id, body.reason or "asked for by hand", who(request))
    address = url_for("captures.show", capture_id=asked.capture_id)
    answer = {"capture_id": asked.capture_id, "job_id": asked.job_id, "href": address}
    return answer, 202, {"Location": address}


@captures.get("/captures")
def show_list() -> ResponseReturnValue:
    limit = _number("limit", 50, MAX_LIMIT)
    before = request.args.get("before")
    if before is not None and not schema.is_capture_id(before):
        raise BadRequest("before: not a capture id")
    job_id = request.args.get("job_id")
    found = services.current().index.list(job_id=job_id, before=before, limit=limit + 1)
    page = found[:limit]
    return {
        "captures": [record_json(one) for one in page],
        "next_before": page[-1].capture_id if len(found) > limit else None,
    }


@captures.get("/jobs")
def show_jobs() -> ResponseReturnValue:
    given = services.current()
    open_jobs = {one.job_id: one for one in given.index.open_incidents()}
    newest = {one.job_id: one for one in given.index.newest()}
    jobs = []
    for job_id in [*newest, *(one for one in open_jobs if one not in newest)]:
        incident = open_jobs.get(job_id)
        jobs.append(
            {
                "job_id": job_id,
                "incident": None
                if incident is None
                else {
                    "id": incident.id,
                    "opened_at": incident.opened_at,
                    "last_seen_at": incident.last_seen_at,
                    "captures": incident.captures,
                },
                "newest_capture": record_json(newest[job_id]) if job_id in newest else None,
            }
        )
    return {"jobs": jobs}


@captures.get("/captures/<capture_id>")
def show(capture_id: str) -> ResponseReturnValue:
    record, bundle = _find(capture_id)
    manifest = None if bundle is None else msgspec.to_builtins(bundle.manifest())
    return record_json(record) | {"manifest": manifest}


@captures.delete("/captures/<capture_id>")
def delete(capture_id: str) -> ResponseReturnValue:
    given = services.current()
    given.auth.require(request)
    given.tasks.delete(_id(capture_id), who(request))
    return "", 204


@captures.patch("/captures/<capture_id>")
def pin(capture_id: str) -> ResponseReturnValue:
    given = services.current()
    given.auth.require(request)
    given.tasks.pin(_id(capture_id), _body(PinBody).pinned, who(request))
    return record_json(_find(capture_id)[0])


@captures.get("/captures/<capture_id>/report")
def report(capture_id: str) -> Response:
    return Response(_bundle(capture_id).report_bytes(), content_type="application/json")


@captures.get("/captures/<capture_id>/stacks")
def stacks(capture_id: str) -> Response:
    wanted, nodes = _wanted(), frozenset(request.args.getlist("node"))
    bundle = _bundle(capture_id)
    answers = (bundle.answer(one) for one in bundle.manifest().nodes if not nodes or one.node in nodes)
    first = tuple(islice(answers, 1))  # what cannot be read is said while a status can be

    def pieces() -> Iterator[bytes]:
        """One node at a time: of a large job all of it is more than 100 MB."""
        before = b"["
        for answer in chain(first, answers):
            of_node = b",".join(
                thread
                for process in answer.processes
                if wanted(process)
                for thread in formats.threads(process)
            )
            if of_node:
                yield before + of_node
                before = b","
        yield b"]" if before == b"," else b"[]"

    return Response(pieces(), content_type="application/json")


@captures.get("/captures/<capture_id>/nccl")
def nccl(capture_id: str) -> ResponseReturnValue:
    node = request.args.get("node")
    nodes = [
        {"node": answer.node} | msgspec.to_builtins(answer.nccl)
        for answer in _bundle(capture_id).answers()
        if answer.nccl is not None and node in (None, answer.node)
    ]
    return {"nodes": nodes}


@captures.get("/captures/<capture_id>/flamegraph.<extension>")
def flamegraph(capture_id: str, extension: str) -> Response:
    return _rendered(capture_id, f"flamegraph.{extension}")


@captures.get("/captures/<capture_id>/speedscope.json")
def speedscope(capture_id: str) -> Response:
    return _rendered(capture_id, "speedscope.json")


@captures.get("/captures/<capture_id>/bundle.zip")
def bundle_zip(capture_id: str) -> Response:
    given = services.current()
    _bundle(capture_id)
    names = [name for name in given.store.names(capture_id) if not schema.is_extract(name)]
    file = tempfile.SpooledTemporaryFile(max_size=16 << 20)  # noqa: SIM115 (the server closes it)
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            stored = zipfile.ZIP_STORED if name.endswith(".gz") else zipfile.ZIP_DEFLATED
            archive.writestr(f"{capture_id}/{name}", given.store.get(capture_id, name), stored)
    size = file.tell()
    file.seek(0)
    answer = Response(
        wrap_file(request.environ, file), content_type="application/zip", direct_passthrough=True
    )
    answer.call_on_close(file.close)
    answer.content_length = size
    answer.headers["Content-Disposition"] = f'attachment; filename="{capture_id}.zip"'
    return answer


def record_json(record: CaptureRecord) -> dict[str, Any]:
    """A capture as the API shows it: times in Unix seconds."""
    asked = record.request
    return {
        "capture_id": record.capture_id,
        "job_id": record.job_id,
        "state": record.state,
        "progress": record.progress,
        "outcome": record.outcome,
        "error": record.error,
        "trigger": asked.trigger,
        "reason": asked.reason,
        "requested_by": asked.requested_by,
        "requested_at": asked.requested_at,
        "started_at": record.started_at,
        "finished_at": record.finished_at,
        "incident_id": asked.incident_id,
        "number": asked.number,
        "processes": record.processes,
        "processes_ok": record.processes_ok,
        "bytes": record.bytes,
        "pinned": record.pinned,
        "verdict": None if record.verdict is None else msgspec.to_builtins(record.verdict),
        "href": url_for("captures.show", capture_id=record.capture_id),
    }


def _rendered(capture_id: str, name: str) -> Response:
    render = formats.RENDERERS.get(name)
    if render is None:
        raise NotFound(f"there is no {name[:40]!r}", f"one of {', '.join(sorted(formats.RENDERERS))}")
    _bundle(capture_id)
    text, content_type = render(derived(), capture_id)
    return Response(text, content_type=content_type)


def _id(capture_id: str) -> str:
    if not schema.is_capture_id(capture_id):
        raise NotFound(f"{capture_id[:80]!r} is no capture id")
    return capture_id


def _find(capture_id: str) -> tuple[CaptureRecord, Bundle | None]:
    given = services.current()
    record = given.index.get(_id(capture_id))
    if record is None:
        raise NotFound(f"there is no capture {capture_id}")
    return record, open_bundle(given.store, capture_id) if record.has_bundle else None


def _bundle(capture_id: str) -> Bundle:
    record, bundle = _find(capture_id)
    if bundle is None:
        what = "failed and left nothing" if record.state == "failed" else f"is still {record.state}"
        raise NotFound(f"the capture {capture_id} {what}", record.error or "ask again in some seconds")
    return bundle


def _wanted() -> Callable[[Process], bool]:
    """The filters of the query; several of one kind mean any of them. Raises BadRequest."""
    args = request.args
    try:
        ranks = [rankset.parse(text) for text in args.getlist("rank")]
    except ValueError as error:
        raise BadRequest(f"rank: {error}", "write ranks as 5, 0-3 or 0-3/7") from None
    any_rank = 0
    for one in ranks:
        any_rank |= one
    roles = set(args.getlist("role"))
    unknown = roles - set(get_args(Role))
    if unknown:
        raise BadRequest(f"role: unknown {sorted(unknown)[0][:40]!r}", "trainer, dataloader, launcher, …")
    gpus, nodes = set(args.getlist("gpu")), set(args.getlist("node"))

    def wanted(process: Process) -> bool:
        return (
            (
                not ranks
                or (process.rank is not None and process.rank >= 0 and bool(any_rank >> process.rank & 1))
            )
            and (not roles or process.role in roles)
            and (not gpus or process.gpu in gpus)
            and (not nodes or process.node in nodes)
        )

    return wanted


def _number(name: str, default: int, most: int) -> int:
    text = request.args.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= most and len(text) < 9):
        raise BadRequest(f"{name}: a number from 1 to {most} is expected")
    return int(text)


def _body(wanted: type[T]) -> T:
    """The JSON body of the request; nothing is an empty object. Raises BadRequest, TooLarge."""
    try:
        data = request.get_data(cache=False)
    except RequestEntityTooLarge as error:
        raise TooLarge("the body is too large") from error
    if data and request.mimetype != "application/json":
        raise BadRequest("the body is not JSON", "send Content-Type: application/json")
    try:
        return msgspec.json.decode(data or b"{}", type=wanted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not what is expected: {error}") from error
