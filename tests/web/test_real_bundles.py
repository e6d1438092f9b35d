"""The pages of captures of real torch jobs with one fault each, in a real browser."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from playwright.sync_api import Page, expect

from benchmarks.imaginary import imaginary_job
from benchmarks.stored import Site, serve
from snapshotter.bundle.schema import CaptureRequest
from snapshotter.gathered import Gathered
from snapshotter.stacks import rankset
from snapshotter.tasks import Progress
from tests.web.looking import DESKTOP, PHONE, TABS, graph_of, inspect, keep_what_is_shown

pytestmark = pytest.mark.browser

BUNDLES = sorted(
    path for path in (Path(__file__).parents[1] / "fixtures" / "bundles").iterdir() if path.is_dir()
)
NAMES = [path.name for path in BUNDLES]

Visit = Callable[..., Page]


def _nobody(request: CaptureRequest, progress: Progress) -> tuple[Gathered, ...]:
    return tuple(map(Gathered.of, imaginary_job(8, job_id=request.job_id).nodes))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serve(tmp_path_factory.mktemp("real"), _nobody) as one:
        yield one


@pytest.fixture(scope="module")
def ids(site: Site) -> dict[str, str]:
    """The bundles as earlier versions stored them, and a large job as this one does."""
    return {path.name: site.adopt(path) for path in BUNDLES} | {
        "huge": site.put(imaginary_job(10_240, stuck=7_777, job_id="huge"), age=30)
    }


def _verdict(name: str) -> dict[str, Any]:
    (path,) = (one for one in BUNDLES if one.name == name)
    verdict: dict[str, Any] = json.loads((path / "report.json").read_text())["verdict"]
    return verdict


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_comes_first(visit: Visit, ids: dict[str, str], name: str) -> None:
    page, verdict = visit(f"/captures/{ids[name]}"), _verdict(name)
    expect(page.locator("h1")).to_have_text(verdict["headline"])
    state = page.locator(".verdict .state")
    expect(state).to_have_text("Hung" if verdict["hung"] else re.compile("not hung"))
    box = page.locator(".verdict").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < DESKTOP[1], "the verdict fits the first screen"
    culprits = list(rankset.members(rankset.parse(verdict["culprit_ranks"])))
    who = page.get_by_role("region", name="Who").locator("tbody tr")
    expect(who).to_have_count(len(culprits))
    for text in (one["text"] for one in verdict.get("evidence", ())):
        expect(page.get_by_role("region", name="Evidence")).to_contain_text(text)
    expect(page.get_by_role("region", name="What to do next").locator("li").first).to_be_visible()


@pytest.mark.parametrize("name", NAMES)
def test_every_tab_by_clicking(visit: Visit, ids: dict[str, str], name: str) -> None:
    page = visit(f"/captures/{ids[name]}", PHONE)
    for title in ("Report", "Stacks", "NCCL", "Flame graph", "Verdict"):
        link = page.get_by_role("navigation", name="Parts of this capture").get_by_role("link", name=title)
        link.click()
        expect(link).to_have_attribute("aria-current", "page")
        expect(link).to_be_in_viewport()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, title
    page.goto(page.url.partition("?")[0] + "/flamegraph")
    expect(graph_of(page).get_by_role("treeitem").first).to_be_visible()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_accessible(visit: Visit, ids: dict[str, str], axe: str, size: tuple[int, int]) -> None:
    shown = {f"{name}-verdict": f"/captures/{ids[name]}" for name in NAMES}
    shown |= {f"uninterruptible-{tab[1:]}": f"/captures/{ids['uninterruptible']}{tab}" for tab in TABS if tab}
    shown["stuck-worker-stacks"] = f"/captures/{ids['stuck-worker']}/stacks?rank=1&role=dataloader"
    wrong = []
    for name, address in shown.items():
        page = visit(address, size)
        if address.endswith("/flamegraph"):
            graph_of(page)
        wrong += inspect(page, axe, f"{name}-{size[0]}")
        page.close()
    assert not wrong


def test_a_process_in_disk_sleep(visit: Visit, ids: dict[str, str]) -> None:
    page = visit(f"/captures/{ids['uninterruptible']}", PHONE)
    expect(page.get_by_role("region", name="Who")).to_contain_text("D (disk sleep) in kernel_clone")
    page.get_by_role("link", name="Stack of rank 2 beside rank").click()
    view = page.get_by_role("region", name="Rank 2")
    expect(view).to_contain_text("it waits in the kernel, in kernel_clone")
    expect(view).to_contain_text("clone3 (435)")
    kernel, main = view.get_by_label("Kernel stack, innermost first"), view.get_by_label("Frames, innermost")
    expect(kernel).to_contain_text("__do_sys_clone3")
    assert kernel.bounding_box()["y"] < main.first.bounding_box()["y"]  # type: ignore[index]
    view.get_by_text("threads as the kernel sees them").click()
    expect(view.get_by_role("table")).to_contain_text("D (disk sleep)")


def test_the_workers_of_a_rank_that_waits_for_data(visit: Visit, ids: dict[str, str]) -> None:
    page = visit(f"/captures/{ids['stuck-worker']}")
    page.get_by_role("link", name="Its DataLoader workers").click()
    expect(page.get_by_role("heading", name=re.compile("DataLoader worker 0 of rank 1"))).to_be_visible()
    expect(page.locator("main")).to_contain_text("read_remote_shard")


def test_stacks_chosen_and_side_by_side(visit: Visit, ids: dict[str, str]) -> None:
    page = visit(f"/captures/{ids['two-threads']}/stacks")
    expect(page.get_by_role("heading", name=re.compile("^Rank 2"))).to_contain_text("culprit")
    page.get_by_label("Rank", exact=True).fill("1")
    page.get_by_label("Beside rank").fill("3")
    page.get_by_role("button", name="Show").click()
    for rank in (1, 3):
        expect(page.get_by_role("heading", name=f"Rank {rank}", exact=True)).to_be_visible()
    page.get_by_label("Rank", exact=True).fill("2")
    page.get_by_label("Beside rank").fill("")
    page.get_by_role("button", name="Show").click()
    page.wait_for_load_state()  # what is there is listed at once
    names = page.get_by_label("Thread", exact=True).locator("option").all_inner_texts()
    assert len(names) > 2
    page.get_by_label("Thread", exact=True).select_option(names[-1])
    page.get_by_role("button", name="Show").click()
    expect(page.locator("details.box:has(.frames) > summary b").first).to_have_text(names[-1])


def test_samples_compared(visit: Visit, ids: dict[str, str]) -> None:
    page = visit(f"/captures/{ids['slow-checkpoint']}")
    page.get_by_role("link", name="the two samples of this capture").click()
    expect(page.locator("main")).to_contain_text(re.compile("ranks? moved"))
    stuck = visit(f"/captures/{ids['uninterruptible']}/compare/{ids['uninterruptible']}")
    expect(stuck.locator("main")).to_contain_text("0 ranks moved, 4 stayed where they were.")
    both = visit(f"/captures/{ids['two-threads']}/compare/{ids['uninterruptible']}")
    expect(both.locator("main")).to_contain_text("captures of different jobs")
    huge = visit(f"/captures/{ids['huge']}/compare/{ids['huge']}")
    expect(huge.locator("main")).to_contain_text("10,239 stayed where they were.")


def test_the_list_filtered(visit: Visit, ids: dict[str, str]) -> None:
    page = visit("/")
    rows = page.locator("#all ~ form ~ table tbody tr")
    expect(rows).to_have_count(len(ids))
    page.get_by_label("Cause").select_option("storage_io")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(rows).to_have_count(2)
    page.get_by_label("Job", exact=True).first.fill("huge")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(rows).to_have_count(1)
    page.get_by_role("link", name="Show all").click()
    expect(rows).to_have_count(len(ids))
    page.get_by_label("To", exact=True).fill("2020-01-01")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_text("No capture matches.")).to_be_visible()


def test_copied(visit: Visit, ids: dict[str, str]) -> None:
    page = visit(f"/captures/{ids['stopped-rank']}", permissions=["clipboard-read", "clipboard-write"])
    keep_what_is_shown(page)
    page.get_by_role("button", name="Copy summary").click()
    expect(page.locator("button.copied")).to_have_count(1)
    summary = page.evaluate("navigator.clipboard.readText()")
    assert summary.startswith("Hung: Rank 3")
    assert summary.splitlines()[-1].endswith(f"/captures/{ids['stopped-rank']}")
    page.get_by_role("button", name="Copy", exact=True).first.click()
    page.wait_for_function("navigator.clipboard.readText().then(text => text.includes('/status'))")
    page.goto(page.url + "/report")
    keep_what_is_shown(page)
    page.get_by_role("button", name="Copy report.json").click()
    expect(page.locator("button.copied")).to_have_count(1)
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert copied["verdict"] == _verdict("stopped-rank")


EXPECTED = {  # text of the link: file name, type
    "Self-contained HTML": ("{id}.html", "text/html"),
    "SVG": ("{id}.svg", "image/svg+xml"),
    "Folded stacks": ("{id}.folded", "text/plain"),
    "speedscope": ("{id}.speedscope.json", "application/json"),
    "Report as JSON": ("{id}.report.json", "application/json"),
    "Whole bundle (zip)": ("{id}.zip", "application/zip"),
}


@pytest.mark.parametrize("name", [*NAMES, "huge"])
def test_downloads(visit: Visit, ids: dict[str, str], page_tools: Path, name: str, tmp_path: Path) -> None:
    page, capture_id = visit(f"/captures/{ids[name]}"), ids[name]
    saved: dict[str, bytes] = {}
    for text, (file_name, content_type) in EXPECTED.items():
        link = page.get_by_role("link", name=text, exact=True)
        answer = page.request.get(page.evaluate("link => link.href", link.element_handle()))
        assert (answer.status, answer.headers["content-type"].split(";")[0]) == (200, content_type), text
        with page.expect_download() as started:
            link.click()
        assert started.value.suggested_filename == file_name.format(id=capture_id)
        started.value.save_as(tmp_path / "file")
        saved[text] = (tmp_path / "file").read_bytes()
    schema = json.loads(
        next((page_tools / "speedscope").rglob("file-format-schema.json")).read_text(encoding="utf-8")
    )
    profile = json.loads(saved["speedscope"])
    jsonschema.Draft7Validator(schema).validate(profile)
    assert sum(profile["profiles"][0]["weights"]) == profile["profiles"][0]["endValue"]
    ElementTree.fromstring(saved["SVG"])
    for line in saved["Folded stacks"].decode().splitlines():
        stack, _, count = line.rpartition(" ")
        assert int(count) > 0
        frames = [one for one in stack.split(";") if "@" in one]
        assert frames
        for one in frames:
            thread, function, path, ranks = one.split("@")
            inside, _, outside = ranks.partition("|")
            assert thread and function and path
            assert rankset.parse(inside) and not rankset.parse(inside) & rankset.parse(outside)
    assert "verdict" in json.loads(saved["Report as JSON"])
    with zipfile.ZipFile(io.BytesIO(saved["Whole bundle (zip)"])) as archive:
        assert archive.testzip() is None
        assert f"{capture_id}/manifest.json" in archive.namelist()
    file = tmp_path / "hang.html"
    file.write_bytes(saved["Self-contained HTML"])
    assert len(saved["Self-contained HTML"]) < 2_000_000
    offline = visit(file.as_uri())
    offline.on("request", lambda request: pytest.fail(request.url))
    graph_of(offline)
    expect(offline.locator("h1")).to_have_text(page.locator("h1").inner_text())


@pytest.mark.parametrize("name", ["uninterruptible", "huge"])
def test_nothing_needs_a_script(visit: Visit, ids: dict[str, str], name: str) -> None:
    for tab in TABS:
        page = visit(f"/captures/{ids[name]}{tab}", java_script_enabled=False)
        assert page.locator("main").inner_text().strip()
        for button in page.get_by_role("button").all():
            assert not button.inner_text().startswith("Copy")
        page.close()
    page = visit(f"/captures/{ids[name]}/flamegraph", java_script_enabled=False)
    expect(page.get_by_role("img", name=re.compile("Merged stacks"))).to_be_visible()


def test_by_keyboard_alone(visit: Visit, ids: dict[str, str]) -> None:
    page = visit(f"/captures/{ids['two-threads']}")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").startswith("Stack of rank 2"):
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=re.compile("^Rank 2"))).to_be_visible()


def test_a_form_of_another_site_starts_nothing(visit: Visit, site: Site, tmp_path: Path) -> None:
    visit("/")  # the browser has a cookie of this site
    evil = tmp_path / "evil.html"
    evil.write_text(
        f'<form method="post" action="{site.url}/captures"><input name="reason" value="evil">'
        '<input name="job_id" value="evil"><button>go</button></form>'
    )
    page = visit(evil.as_uri(), expect_status=403)
    page.get_by_role("button").click()
    expect(page.locator("h1")).to_have_text("Refused")
    assert not [one for one in site.running.services.index.list(limit=50) if one.job_id == "evil"]
