"""The list of captures, what can be done with one, and the way to a job's newest."""

from __future__ import annotations

from flask import Request, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from markupsafe import Markup

from snapshotter import services
from snapshotter.bundle import schema
from snapshotter.bundle.index import CaptureRecord
from snapshotter.errors import BadRequest, NotFound, Unauthorized
from snapshotter.render import words
from snapshotter.render.verdict import CAUSES
from snapshotter.services import Services
from snapshotter.web import csrf
from snapshotter.web.auth import who
from snapshotter.web.site import derived, find, here, pages
from snapshotter.web.view import listing

_MAX_JOBS = 200


@pages.get("/")
def index() -> str:
    given = services.current()
    newest = given.index.newest(limit=_MAX_JOBS)
    problem = ""
    try:
        wanted = _filter()
    except BadRequest as error:
        wanted, problem = listing.Filter(), error.message
    listed = listing.find(
        lambda job, before, limit: given.index.list(job_id=job, before=before, limit=limit),
        wanted,
        known_jobs=frozenset(one.job_id for one in newest),
    )
    deleted = request.args.get("deleted", "")
    return render_template(
        "index.html",
        wanted=wanted,
        problem=problem,
        listed=listed,
        older_url=here({"before": listed.older}),
        running=[one for one in given.index.list(limit=200) if one.state in ("queued", "running")],
        jobs=newest,
        firing=frozenset(one.job_id for one in given.index.open_incidents()),
        causes=CAUSES,
        deleted=deleted if schema.is_capture_id(deleted) else "",
        open_form=not listed.records and wanted.is_empty,
        retention=_retention(given),
        headline=_headline,
        state=_state,
    )


def _filter() -> listing.Filter:
    args = request.args
    try:
        since, until = listing.day(args.get("since", "")), listing.day(args.get("until", ""))
    except ValueError:
        raise BadRequest("From and To are days like 2026-11-30") from None
    before = args.get("before", "")
    return listing.Filter(
        job=args.get("job", "").strip()[:500],
        cause=args.get("cause", ""),
        since=since,
        until=until,
        before=before if schema.is_capture_id(before) else "",
    )


@pages.get("/jobs/<path:job_id>/latest")
def latest(job_id: str) -> ResponseReturnValue:
    """A fixed address for alerts and dashboards: leads to the job's newest finished capture."""
    record = services.current().index.latest(job_id)
    if record is None:
        raise NotFound(
            f"There is no capture of the job {job_id} yet.",
            "ask for one on the list of captures; one that an alert asked for appears within seconds",
        )
    answer = redirect(url_for("pages.capture", capture_id=record.capture_id), 302)
    answer.headers["Cache-Control"] = "no-store"
    return answer


@pages.post("/captures")
def ask() -> ResponseReturnValue:
    given = services.current()
    _allow(given)
    reason = request.form.get("reason", "").strip()
    if not reason:
        raise BadRequest("Say why you capture.", "fill in the reason; it is shown with the capture")
    asked = given.tasks.request(request.form.get("job_id", "").strip(), reason, who(request))
    return redirect(url_for("pages.capture", capture_id=asked.capture_id), 303)


@pages.post("/captures/<capture_id>/pin")
def pin(capture_id: str) -> ResponseReturnValue:
    given = services.current()
    _allow(given)
    given.tasks.pin(find(capture_id).capture_id, request.form.get("pinned") == "1", who(request))
    return redirect(url_for("pages.capture", capture_id=capture_id), 303)


@pages.route("/captures/<capture_id>/delete", methods=["GET", "POST"])
def delete(capture_id: str) -> ResponseReturnValue:
    given = services.current()
    record = find(capture_id)
    if request.method == "GET":
        return render_template("delete.html", record=record)
    _allow(given)
    given.tasks.delete(record.capture_id, who(request))
    derived().forget(capture_id)
    return redirect(url_for("pages.index", deleted=capture_id), 303)


def _allow(given: Services) -> None:
    """Whether a form may change something. Raises Forbidden, Unauthorized."""
    csrf.check(given.external_url())
    if not given.auth.wants_token:
        return
    token = request.form.get("token", "").strip()
    try:
        given.auth.require(Request({**request.environ, "HTTP_AUTHORIZATION": f"Bearer {token}"}))
    except Unauthorized:
        raise Unauthorized(
            "The access token is missing or wrong.", "go back and enter the token of this service"
        ) from None


def _retention(given: Services) -> str:
    used = words.data_size(given.index.total_bytes())
    limits = given.config().storage
    return (
        f"Captures are kept {words.duration(limits.keep)},"
        f" at most {words.data_size(limits.max_size)} in all; now {used}. Pinned ones stay"
    )


def _headline(record: CaptureRecord) -> str:
    if record.verdict is not None:
        return record.verdict.headline
    if record.state == "queued":
        return "waiting for its turn"
    if record.state == "running":
        return record.progress or "being captured"
    return record.error or "not analysed"


def _state(record: CaptureRecord) -> Markup:
    """A tag: hung or not, or where the capture stands."""
    if record.verdict is None:
        words, tone = (record.state, "") if record.state != "done" else ("not analysed", "warn")
        tone = "warn" if record.state == "failed" else tone
    elif record.verdict.hung is None:
        words, tone = "unclear", "warn"
    else:
        words, tone = ("hung", "bad") if record.verdict.hung else ("not hung", "good")
    return Markup('<span class="tag {}">{}</span>').format(tone, words)
