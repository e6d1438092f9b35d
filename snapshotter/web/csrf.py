"""Protection of the pages' forms against requests that another web site makes a browser send.

A random token is in a cookie that only same-site requests carry (SameSite=Strict) and in every form; both
must be equal. Browsers also say where a request comes from (Sec-Fetch-Site, Origin); that is checked as well.
"""

from __future__ import annotations

import hmac
import re
import secrets

import flask

from snapshotter.errors import Forbidden
from snapshotter.web.auth import place_of

COOKIE = "hangscope_csrf"
FIELD = "csrf_token"

_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}\Z")


def token() -> str:
    """The token of this browser, for a hidden field; a new one is sent as a cookie by `send`."""
    if "csrf_token" not in flask.g:
        known = flask.request.cookies.get(COOKIE, "")
        flask.g.csrf_is_new = _TOKEN.match(known) is None
        flask.g.csrf_token = secrets.token_urlsafe(32) if flask.g.csrf_is_new else known
    made: str = flask.g.csrf_token
    return made


def send(response: flask.Response) -> flask.Response:
    """Set the cookie where a page was given a new token."""
    if flask.g.get("csrf_is_new"):
        response.set_cookie(
            COOKIE,
            flask.g.csrf_token,
            httponly=True,
            samesite="Strict",
            secure=flask.request.is_secure,
            path=flask.request.script_root or "/",
        )
    return response


def check(external_url: str = "") -> None:
    """Refuse a form that is not from our own pages. Raises Forbidden."""
    remedy = "open the page here and send its form again; the browser must accept cookies of this site"
    headers = flask.request.headers
    site = headers.get("Sec-Fetch-Site")
    if site not in (None, "same-origin", "none"):
        raise Forbidden("the form was sent from another web site", remedy)
    origin = headers.get("Origin")
    ours = {flask.request.host, place_of(external_url)} - {""}
    if site is None and origin is not None and place_of(origin) not in ours:
        raise Forbidden("the form was sent from another web site", remedy)
    cookie = flask.request.cookies.get(COOKIE, "")
    sent = flask.request.form.get(FIELD, "")
    if not _TOKEN.match(cookie) or not hmac.compare_digest(cookie.encode(), sent.encode()):
        raise Forbidden("the form's protection token is missing or out of date", remedy)
