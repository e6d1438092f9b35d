"""One self-contained file: the verdict, what is missing, the groups of ranks and the explorable flame graph.

It loads nothing from anywhere: style, script and data are in it, and its content security policy allows only
these by their hash. Without scripts it still shows the verdict, the groups and the graph as a picture.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from snapshotter.render import graph as graphs
from snapshotter.render import svg, words
from snapshotter.render.graph import Graph
from snapshotter.render.groups import groups
from snapshotter.render.verdict import view
from snapshotter.stacks import rankset
from snapshotter.stacks.model import JobCapture

_HERE = Path(__file__).resolve().parent.parent


def render_html(
    capture: JobCapture, report: Mapping[str, Any] | None = None, *, title: str = "", when: str = ""
) -> str:
    """The whole file of a capture; see `page`."""
    return page(graphs.build(capture), report, title=title, when=when)


def page(graph: Graph, report: Mapping[str, Any] | None = None, *, title: str = "", when: str = "") -> str:
    """The whole file. `report` is report.json as a dict; without it the file has the graph, but no verdict.

    `when` is the time of the capture as people read it.
    """
    style, script = _asset("hangscope.css") + _asset("flamegraph.css"), _asset("flamegraph.js")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    picture = svg.render_svg(graph, main_only=True)
    return _template().render(
        title=title or (f"Hang of {graph.job_id}" if graph.job_id else "Stacks of all ranks"),
        when=when,
        job_id=graph.job_id,
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        data=script_json(graphs.to_data(graph)),
        picture="data:image/svg+xml;base64," + base64.b64encode(picture.encode("utf-8", "replace")).decode(),
        verdict=view(report) if report else None,
        missing=graph.missing,
        groups=groups(report) if report else (),
        fold=rankset.fold,
    )


def render_svg(capture: JobCapture, *, title: str = "") -> str:
    """The graph as one SVG."""
    return svg.render_svg(graphs.build(capture), title=title)


def script_json(data: Any) -> Markup:
    """JSON that cannot end the script element it is in, nor start a comment or an element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text.encode("utf-8", "replace").decode())


@cache
def _asset(name: str) -> str:
    return (_HERE / "static" / name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(_HERE / "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= words.FILTERS
    return environment.get_template("offline.html")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
