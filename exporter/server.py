"""The exporter's HTTP routes: /metrics, a landing page that says what is seen and what is missing, health."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flask import Flask, Response, request
from prometheus_client import CollectorRegistry, make_wsgi_app
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from exporter import __version__, webconfig
from exporter.webconfig import WsgiApp
from exporter.yamlconfig import ConfigError

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Hangscope exporter</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; }} h2 {{ margin-top: 2rem; }}
th, td {{ text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884; vertical-align: top;
 overflow-wrap: anywhere; }}
</style></head><body>
<h1>Hangscope exporter {version}</h1>
<p>Node <b>{node}</b>. <a href="metrics">Metrics</a></p>
{sections}</body></html>
"""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the landing page: notes (what to do about what is missing), then a table."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    empty: str = ""  # said where there are no rows


def create_app(
    registry: CollectorRegistry,
    *,
    node: str,
    sections: Callable[[], Iterable[Section]],
    ready: Callable[[], bool],
    reload: Callable[[], None],
) -> WsgiApp:
    """The WSGI application. `ready` is true once every reader has read once; `reload` raises ConfigError."""
    app = Flask("exporter", static_folder=None)

    @app.get("/")
    def landing() -> str:
        body = "".join(_render(one) for one in sections())
        return _PAGE.format(version=html.escape(__version__), node=html.escape(node), sections=body)

    @app.get("/-/healthy")
    def healthy() -> Response:
        return _text("healthy\n")

    @app.get("/-/ready")
    def is_ready() -> Response:
        return _text("ready\n") if ready() else _text("not ready: the first reading is not done\n", 503)

    @app.post("/-/reload")
    def do_reload() -> Response:
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return _text("403: a page of another site may not reload this exporter\n", 403)
        if not (
            webconfig.is_authenticated(request.environ) or webconfig.is_loopback(request.remote_addr or "")
        ):
            return _text("403: only this machine may ask for it, or who has proven who he is\n", 403)
        try:
            reload()
        except ConfigError as error:
            return _text(f"the old configuration stays in force: {error}\n", 500)
        return _text("reloaded\n")

    return DispatcherMiddleware(app.wsgi_app, {"/metrics": make_wsgi_app(registry)})


def _text(text: str, status: int = 200) -> Response:
    return Response(text, status, content_type="text/plain; charset=utf-8")


def _render(section: Section) -> str:
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    parts += [f"<p>{html.escape(note)}</p>" for note in section.notes]
    if section.rows:
        head = "".join(f"<th scope='col'>{html.escape(name)}</th>" for name in section.columns)
        rows = "".join(f"<tr>{_cells(row)}</tr>" for row in section.rows)
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")
    elif section.empty:
        parts.append(f"<p>{html.escape(section.empty)}</p>")
    return "".join(parts) + "\n"


def _cells(row: Sequence[str]) -> str:
    return "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
