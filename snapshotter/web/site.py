"""What all pages share: the blueprint, its templates and assets, headers, errors and look-ups.

The content security policy allows our own files alone: no script or style in a page, nothing from elsewhere.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import cast

from flask import Blueprint, Response, current_app, render_template, request, url_for
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException

from snapshotter import __version__, services
from snapshotter.bundle import schema
from snapshotter.bundle.index import CaptureRecord
from snapshotter.errors import NotFound, SnapshotterError
from snapshotter.render import words
from snapshotter.web import csrf
from snapshotter.web.derived import Derived
from snapshotter.web.view.people import state_words

_ROOT = Path(__file__).resolve().parent.parent

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

_KEPT = "hangscope-pages"

pages = Blueprint(
    "pages",
    __name__,
    template_folder=str(_ROOT / "templates"),
    static_folder=str(_ROOT / "static"),
    static_url_path="/assets",
)


def find(capture_id: str) -> CaptureRecord:
    """The capture as the index knows it. Raises NotFound."""
    record = services.current().index.get(capture_id) if schema.is_capture_id(capture_id) else None
    if record is None:
        raise NotFound(
            f"There is no capture {capture_id[:80]}.",
            "it may have been deleted, or kept as long as captures are kept here; the list has what there is",
        )
    return record


def derived() -> Derived:
    """What is kept in memory for this application."""
    kept = current_app.extensions.get(_KEPT)
    if kept is None:
        kept = current_app.extensions.setdefault(_KEPT, Derived(services.current().store))
    return cast(Derived, kept)


def here(changes: dict[str, object]) -> str:
    """The address of this page with some of its parameters changed; empty ones are left out."""
    arguments = {**request.args.to_dict(), **{key: str(value) for key, value in changes.items()}}
    assert request.endpoint is not None
    return url_for(
        request.endpoint,
        **{**arguments, **(request.view_args or {})},
    )


@cache
def _asset_version(name: str) -> str:
    return hashlib.sha256((_ROOT / "static" / name).read_bytes()).hexdigest()[:12]


@pages.context_processor
def _names() -> dict[str, object]:
    given = services.current()
    return {
        "asset": lambda name: url_for("pages.static", filename=name, v=_asset_version(name)),
        "csrf_token": csrf.token,
        "csrf_field": csrf.FIELD,
        "wants_token": given.auth.wants_token,
        "here": here,
        "version": __version__,
    }


@pages.app_template_filter("ago")
def _ago(seconds: float | None) -> str:
    return words.ago(seconds, services.current().now())


for _name, _filter in {**words.FILTERS, "state_words": state_words}.items():
    pages.add_app_template_filter(_filter, _name)


@pages.after_request
def _headers(response: Response) -> Response:
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["Referrer-Policy"] = "same-origin"
    response.headers["X-Frame-Options"] = "DENY"
    if request.endpoint == "pages.static":
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
    else:
        response.headers.setdefault("Cache-Control", "private, no-cache")
    return csrf.send(response)


@pages.errorhandler(SnapshotterError)
def _explain(error: SnapshotterError) -> ResponseReturnValue:
    titles = {
        400: "That cannot be done",
        401: "Not allowed",
        403: "Refused",
        404: "Not found",
        409: "Not now",
    }
    title = titles.get(error.status, "Something is wrong here")
    page = render_template("error.html", title=title, message=error.message, remedy=error.remedy)
    return page, error.status


@pages.errorhandler(HTTPException)
def _explain_http(error: HTTPException) -> ResponseReturnValue:
    page = render_template("error.html", title=error.name, message=error.description or "", remedy="")
    return page, error.code or 500
