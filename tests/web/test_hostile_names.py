"""Names from outside, as hostile as they get, through every page and every file: they stay text.

A capture is made whose every name (job, node, pod, GPU, function, file, thread, kernel frame, error, log line)
is hostile; whatever shows it must have the elements of the same capture with plain names, and no more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchmarks.imaginary import imaginary_job
from benchmarks.stored import Site, serve
from snapshotter import app
from snapshotter.bundle import schema
from snapshotter.stacks.model import Frame, JobCapture, KernelThread, Process, Sample, Thread

PARTS = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</title></style></textarea></svg><svg onload=alert(1)>",
    "<!--<script>",
    "]]>",
    "'\"` onclick=alert(1) ",
    "&lt;b&gt;&amp;",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "\n\r\t",
    "\u202e\u2066\u200f",
    "\x00\x1b[31m\x7f\x85\u2028",
    ";@|% ",
    "../../etc/passwd",
    "long" * 300,
    "名前",
    "\ufffe\U0001f525",
)
TABS = ("", "/report", "/stacks", "/nccl", "/flamegraph", "/delete", "/compare/{id}")
FILES = ("html", "svg", "folded", "json")


def _named(capture: JobCapture, name: str) -> JobCapture:
    """The capture with the name in every place that takes one."""

    def thread(one: Thread) -> Thread:
        frames = tuple(Frame(f.name + name, f.filename + name, f.line, name, name) for f in one.frames)
        main = one.thread_name == "MainThread"
        return replace(one, thread_name="MainThread" if main else f"{one.thread_name}{name}", frames=frames)

    def sample(one: Sample) -> Sample:
        kernel = tuple(f"{line}{name}" for line in (*one.kernel_stack, "vfs_read"))
        tasks = (KernelThread(1, f"task{name}", "D", f"wait{name}"), KernelThread(2, name, "S"))
        return replace(
            one,
            threads=tuple(map(thread, one.threads)),
            wchan=f"wait{name}",
            kernel_stack=kernel,
            syscall=f"0{name}",
            error=f"why{name}",
            kernel_threads=tasks,
        )

    def process(one: Process, node: str) -> Process:
        return replace(
            one,
            node=node,
            gpu=f"0{name}",
            pod=f"pod{name}",
            name=f"python{name}",
            command_line=f"python {name}",
            environment={"NAME": name},
            open_files=(f"/mnt/{name}",),
            error=f"why{name}",
            samples=tuple(map(sample, one.samples)),
        )

    nodes = tuple(
        replace(
            one,
            node=f"{one.node}{name}",
            processes=tuple(process(each, f"{one.node}{name}") for each in one.processes),
            nccl=one.nccl and replace(one.nccl, raw=one.nccl.raw + name),
            kernel_log=(f"hung task {name}",),
            job_log=(f"trouble {name}",),
        )
        for one in capture.nodes
    )
    return JobCapture(schema.storable(f"job{name}"), nodes, world_size=capture.world_size)


class _Elements(HTMLParser):
    """The elements of a page; refuses attributes that run code."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] += 1
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            if name in ("href", "src", "action"):
                assert not re.match(r"\s*(javascript|data:text)", value or "", re.IGNORECASE), (tag, value)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, FlaskClient]]:
    with serve(tmp_path_factory.mktemp("hostile")) as site:
        yield site, app.create_app(site.running.services).test_client()


def _texts(running: tuple[Site, FlaskClient], capture: JobCapture) -> dict[str, str]:
    """Everything that a browser would be sent of a capture; it is deleted in the end."""
    site, client = running
    capture_id = site.put(capture)
    addresses = {tab: f"/captures/{capture_id}{tab.format(id=capture_id)}" for tab in TABS}
    addresses |= {kind: f"/api/v1/captures/{capture_id}/flamegraph.{kind}" for kind in FILES}
    addresses |= {
        "list": "/",
        "picture": f"/captures/{capture_id}/flamegraph/picture.svg",
        "data": f"/captures/{capture_id}/flamegraph/data.json",
        "speedscope": f"/api/v1/captures/{capture_id}/speedscope.json",
    }
    texts = {}
    for what, address in addresses.items():
        answer = client.get(address)
        assert answer.status_code == 200, address
        if what not in (*FILES, "speedscope"):
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
            assert "unsafe" not in policy
        texts[what] = answer.text
    site.running.services.store.delete(capture_id)
    site.running.services.index.delete(capture_id)
    return texts


@pytest.fixture(scope="module")
def plain(running: tuple[Site, FlaskClient]) -> dict[str, Counter[str]]:
    texts = _texts(running, _named(imaginary_job(8), "x"))
    return {what: _Elements(texts[what]).count for what in (*TABS, "list", "html")}


@settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=8)), max_size=4).map("".join))
@example("".join(PARTS))
@example("\ud800")
def test_a_name_is_text_everywhere(
    running: tuple[Site, FlaskClient], plain: dict[str, Counter[str]], name: str
) -> None:
    texts = _texts(running, _named(imaginary_job(8), name))
    for what in (*TABS, "list", "html"):
        found = _Elements(texts[what]).count
        for tag in ("script", "img", "svg", "style", "iframe", "object", "b", "form", "a"):
            if tag in ("a", "b") or (tag == "img" and what == "html"):
                continue  # their number depends on how names group, not on what is in them
            assert found[tag] == plain[what][tag], (what, tag)
    for what in ("svg", "picture"):
        names = {one.tag.rpartition("}")[2] for one in ElementTree.fromstring(texts[what]).iter()}
        assert names <= {"svg", "g", "rect", "text", "title"}, what
    for line in texts["folded"].splitlines():
        stack, _, count = line.rpartition(" ")
        assert count.isdecimal()
        assert all(one.count("@") == 3 for one in stack.split(";")[1:]), line
    for what in (*TABS, "list", "html"):
        shown = re.sub(r'(?:value|data-copy)="[^"]*"|<script.*?</script>', "", texts[what], flags=re.DOTALL)
        hidden = re.search("(?s).{0,400}[\u202e\u2066\u200f\x00\x1b\x7f\x85\u2028]", shown)
        assert hidden is None, (what, hidden[0])
