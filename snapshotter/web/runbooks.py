"""/runbooks: what to do about each alert, beside the reports so that links work without the Internet.

The pages are the Markdown files of `rules/runbooks`, as plain text: in a checkout from there, in an installed
distribution from the copy in the package.
"""

from __future__ import annotations

import re
from pathlib import Path

from flask import Blueprint, Response, abort

runbooks = Blueprint("runbooks", __name__)

_PACKAGE = Path(__file__).parents[1]
_PLACES = (_PACKAGE / "runbooks", _PACKAGE.parent / "rules" / "runbooks")


def folder() -> Path:
    """Where the runbooks are. Raises FileNotFoundError where the distribution lacks them."""
    for place in _PLACES:
        if place.is_dir():
            return place
    raise FileNotFoundError(f"no runbooks in {' or '.join(map(str, _PLACES))}")


@runbooks.get("/runbooks/")
def every() -> Response:
    return _text("".join(f"/runbooks/{path.name}\n" for path in sorted(folder().glob("*.md"))))


@runbooks.get("/runbooks/<name>")
def one(name: str) -> Response:
    stem = name.removesuffix(".md")
    if re.fullmatch(r"[A-Za-z]{1,100}", stem) is None:
        abort(404)
    path = folder() / f"{stem}.md"
    if not path.is_file():
        abort(404)
    return _text(path.read_text(encoding="utf-8"))


def _text(text: str) -> Response:
    return Response(text, content_type="text/plain; charset=utf-8")
