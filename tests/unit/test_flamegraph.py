"""The merged graph, its data for the browser, the SVG and the self-contained file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from benchmarks.imaginary import HOSTILE, imaginary_job
from snapshotter.render import flamegraph, graph
from snapshotter.render.flamegraph import script_json
from snapshotter.stacks import rankset, report
from snapshotter.stacks.model import Frame, JobCapture, NodeAnswer, Process, Sample, Thread

_SVG = "{http://www.w3.org/2000/svg}"


def _job(*stacks: tuple[str, ...], thread: str | None = "MainThread") -> JobCapture:
    """Rank N's main thread has the functions of stacks[N], root first; no functions: not captured."""
    processes = []
    for rank, functions in enumerate(stacks):
        frames = tuple(Frame(name, f"/src/{name}.py", 7) for name in reversed(functions))
        ok = bool(functions)
        threads = (Thread(1, thread, rank, True, False, frames),) if ok else ()
        sample = Sample(1.0, "ok" if ok else "timeout", None if ok else "gave up after 10 s", threads)
        processes.append(
            Process(pid=rank, node="n0", role="trainer", rank=rank, outcome=sample.outcome, samples=(sample,))
        )
    return JobCapture("job", (NodeAnswer("n0", "ok", 0.0, 1.0, processes=tuple(processes)),))


def _expand(data: dict, group: dict) -> dict[tuple[str, ...], str]:
    """What the browser makes of a group: path of functions -> folded ranks whose stack ends there."""
    paths: list[tuple[str, ...]] = []
    out = {}
    for parent, frame, ends in zip(group["parent"], group["frame"], group["self"], strict=True):
        name = data["strings"][data["frames"][frame][0]]
        paths.append((*(paths[parent] if parent >= 0 else ()), name))
        if ends >= 0:
            out[paths[-1]] = data["sets"][ends]
    return out


def test_data_holds_where_every_rank_ends() -> None:
    data = graph.to_data(graph.build(_job(("main", "wait"), ("main", "read"), ("main", "wait"), ("main",))))
    (group,) = data["groups"]
    assert (group["role"], group["thread"], group["sample"]) == ("trainer", "MainThread", 0)
    assert data["sets"][group["captured"]] == "0-3"
    assert _expand(data, group) == {("main", "wait"): "0/2", ("main", "read"): "1", ("main",): "3"}


def test_ranks_without_a_stack_are_a_set_of_their_own_with_the_reason() -> None:
    merged = graph.build(_job(("main",), (), ("main",)))
    (one,) = merged.missing
    assert (rankset.fold(one.ranks), one.node) == ("1", "n0")
    assert one.reason == "py-spy did not finish in time: gave up after 10 s" or "in time" in one.reason
    tree = merged.find(0, "trainer")
    assert tree is not None
    assert tree.label(tree.roots[0]) == "MainThread@main@/src/main.py:7@0/2|"


def test_ranks_of_nodes_that_did_not_answer_are_missing() -> None:
    job = _job(("main",))
    silent = NodeAnswer("n1", "unreachable", 0.0, 1.0, error="no route to host", expected_ranks=(1, 2))
    merged = graph.build(replace(job, nodes=(*job.nodes, silent), world_size=4))
    found = {(rankset.fold(one.ranks), one.node, one.outcome) for one in merged.missing}
    assert found == {("1-2", "n1", "unreachable"), ("3", "", "missing")}


def test_samples_are_kept_apart() -> None:
    capture = imaginary_job(8)
    merged = graph.build(capture)
    assert merged.samples == 2
    assert graph.to_data(merged)["samples"] == ["first", "second"]


def test_data_of_ten_thousand_ranks_is_small() -> None:
    text = json.dumps(graph.to_data(graph.build(imaginary_job(2048, workers=2))))
    assert len(text) < 100_000


def test_svg_has_the_full_label_of_every_frame() -> None:
    svg = ElementTree.fromstring(flamegraph.render_svg(_job(("main", "wait"), ("main", "read"), ())))
    titles = {title.text for title in svg.iterfind(f"{_SVG}g/{_SVG}title")}
    assert titles == {
        "MainThread@main@/src/main.py:7@0-1|",
        "MainThread@wait@/src/wait.py:7@0|1",
        "MainThread@read@/src/read.py:7@1|0",
    }
    assert "py-spy did not finish in time" in "".join(svg.itertext())


def test_svg_width_is_the_number_of_ranks_and_one_rank_of_a_thousand_stays_visible() -> None:
    stacks = [("main", "wait")] * 30 + [("main", "read")] * 10
    assert _widths(_job(*stacks))["wait"] == pytest.approx(3 * _widths(_job(*stacks))["read"], rel=0.02)
    odd = _widths(_job(*[("main", "wait")] * 1023, ("main", "read")))
    assert odd["read"] >= 3


def _widths(job: JobCapture) -> dict[str, float]:
    svg = ElementTree.fromstring(flamegraph.render_svg(job))
    return {
        (group.findtext(f"{_SVG}title") or "").split("@")[1]: float(group.find(f"{_SVG}rect").get("width"))
        for group in svg.iterfind(f"{_SVG}g")
    }


def test_unnamed_parts_are_called_unknown() -> None:
    job = _job(("main",), thread=None)
    frame = Frame("", "", 0)
    (node,) = job.nodes
    (process,) = node.processes
    sample = replace(process.samples[0], threads=(Thread(1, None, 1, True, False, (frame,)),))
    job = replace(job, nodes=(replace(node, processes=(replace(process, samples=(sample,)),)),))
    titles = re.findall(r"<g><title>(.*?)</title>", flamegraph.render_svg(job))
    assert titles == ["unknown@unknown@unknown@0|"]


def test_a_deep_stack_is_drawn() -> None:
    names = tuple(f"f{depth}" for depth in range(3000))
    assert flamegraph.render_svg(_job(names)).count("<g>") == 3000
    assert "f2999" in flamegraph.render_html(_job(names))


class _Page(HTMLParser):
    """Collects what a page would load or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline: dict[str, list[str]] = {"script": [], "style": []}
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag if tag in self.inline and dict(attrs).get("type") != "application/json" else ""

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open:
            self.inline[self._open].append(data)


@pytest.fixture(scope="module")
def offline() -> _Page:
    capture = imaginary_job(16, hostile=True)
    found = report.to_json(report.analyse(capture, at=0.0))
    return _Page(flamegraph.render_html(capture, found, when="today"))


def test_the_file_loads_nothing(offline: _Page) -> None:
    for tag, attributes in offline.tags:
        for name in ("src", "href", "srcset", "action", "data"):
            value = attributes.get(name) or ""
            assert value.startswith(("data:", "#")) or not value, (tag, name, value)
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
    assert "@import" not in "".join(offline.inline["style"])
    assert "url(" not in "".join(offline.inline["style"])


def test_the_file_allows_only_its_own_script_and_style(offline: _Page) -> None:
    (policy,) = (a["content"] for t, a in offline.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "'unsafe-inline'" not in policy
    assert policy.startswith("default-src 'none'")
    for kind in ("script", "style"):
        (text,) = offline.inline[kind]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_hostile_names_make_no_markup(offline: _Page) -> None:
    assert [tag for tag, _ in offline.tags if tag == "img"] == ["img"]  # our picture, inside noscript
    assert len([tag for tag, _ in offline.tags if tag == "script"]) == 2


def test_hostile_names_leave_the_svg_well_formed() -> None:
    capture = imaginary_job(16, hostile=True)
    svg = ElementTree.fromstring(flamegraph.render_svg(capture, title=HOSTILE + "\x00\x1b\ufffe"))
    assert {element.tag.removeprefix(_SVG) for element in svg.iter()} == {"svg", "title", "rect", "text", "g"}


def test_the_file_works_without_a_report() -> None:
    text = flamegraph.render_html(_job(("main",)))
    assert "Stacks" in text or "Hang of job" in text


@pytest.mark.parametrize("text", ["</script>", "<!--<script>", "a\u2028b", "&lt;", "\ud800"])
def test_script_json_cannot_leave_its_element(text: str) -> None:
    written = str(script_json({"x": text}))
    assert not re.search("[<>&\u2028\u2029]", written)
    if text != "\ud800":
        assert json.loads(written) == {"x": text}
