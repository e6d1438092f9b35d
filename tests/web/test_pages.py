"""The pages over a whole service: what each shows, what forms may do, nothing from outside as markup."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from benchmarks.imaginary import HOSTILE, imaginary_job
from snapshotter.config import Config, StorageConfig
from snapshotter.stacks.model import NodeAnswer
from snapshotter.web.auth import TokenFile

TABS = ("", "/report", "/stacks", "/nccl", "/flamegraph")


class Page(HTMLParser):
    """A page's elements, links and visible text; refuses what the content security policy would."""

    def __init__(self, response: TestResponse) -> None:
        super().__init__()
        self.status = response.status_code
        self.headers = response.headers
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(response.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert not [name for name, _ in attrs if name.startswith("on") or name == "style"], (tag, attrs)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [a for t, a in self.tags if t == tag and attributes.items() <= a.items()]

    def field(self, name: str) -> str:
        return str(self.all("input", name=name)[0]["value"])


def get(client: FlaskClient, address: str) -> Page:
    return Page(client.get(address))


@pytest.fixture
def made(service: Any) -> Callable[..., str]:
    """Captures an imaginary job; the id of the capture."""

    def make(ranks: int = 16, job_id: str = "llama", **more: Any) -> str:
        service.capturer.answers = lambda request: imaginary_job(ranks, job_id=job_id, **more).nodes
        return str(service.capture(job_id))

    return make


def test_the_verdict_comes_first(service: Any, made: Callable[..., str]) -> None:
    page = get(service.client, f"/captures/{made(64)}")
    assert page.status == 200
    headline = page.text.index("loads data in read")
    order = [
        page.text.index(words)
        for words in ("Hung", "Scope", "Local", "Cause", "Storage I/O", "Culprit", "rank 40", "Confidence")
    ]
    assert order[0] < headline < order[1]
    assert order == sorted(order)
    for words in (
        "What to do next",
        "Evidence",
        "Not captured",
        "NCCL 2.26.2",
        "gpu-node-5",
        "llama-worker-5",
    ):
        assert words in page.text
    assert "not permitted to read the process: ptrace: operation not permitted" in page.text
    assert "alert: TrainingHang" in page.text


def test_every_tab_is_there_without_scripts(service: Any, made: Callable[..., str]) -> None:
    capture_id = made()
    for tab in TABS:
        page = get(service.client, f"/captures/{capture_id}{tab}")
        assert page.status == 200
        (current,) = page.all("a", **{"aria-current": "page"})
        assert str(current["href"]).endswith(tab)
        assert len(page.all("h1")) == 1


def test_tabs_by_parameter_lead_to_their_pages(service: Any, made: Callable[..., str]) -> None:
    capture_id = made()
    answer = service.client.get(f"/captures/{capture_id}?tab=stacks")
    assert answer.headers["Location"].endswith(f"/captures/{capture_id}/stacks")


def test_the_report_is_searched_sorted_and_folded(service: Any, made: Callable[..., str]) -> None:
    capture_id = made(64)
    page = get(service.client, f"/captures/{capture_id}/report?q=indexed_dataset&sort=rare")
    assert "1 place in the code that match" in page.text
    assert "read" in page.text
    assert "all_reduce" not in page.text
    processes = get(service.client, f"/captures/{capture_id}/report?p=40-41&role=trainer")
    assert "2 processes" in processes.text
    failed = get(service.client, f"/captures/{capture_id}/report?outcome=failed")
    assert "1 process " in failed.text
    nothing = get(service.client, f"/captures/{capture_id}/report?q=nosuchfunction&ppage=99999&page=-1")
    assert "No function matches" in nothing.text


def test_stacks_start_with_a_culprit_beside_a_waiting_rank(service: Any, made: Callable[..., str]) -> None:
    page = get(service.client, f"/captures/{made(64)}/stacks")
    assert "Rank 40 culprit" in page.text
    assert "Rank 0" in page.text
    assert "4 innermost frames, marked, differ from the other" in page.text
    assert "nfs_wait_bit_killable" in page.text


def test_stacks_by_worker_gpu_role_and_thread(service: Any, made: Callable[..., str]) -> None:
    capture_id = made(64)
    page = get(
        service.client, f"/captures/{capture_id}/stacks?worker=gpu-node-2&gpu=3&role=trainer&thread=Thread-1"
    )
    assert "Rank 19" in page.text
    assert "loop_1" in page.text
    assert "all_reduce" not in page.text
    worker = get(service.client, f"/captures/{capture_id}/stacks?rank=5&role=dataloader")
    assert "DataLoader worker 0 of rank 5" in worker.text
    second = get(service.client, f"/captures/{capture_id}/stacks?rank=40&sample=2")
    assert second.all("select", id="sample")
    lost = get(service.client, f"/captures/{capture_id}/stacks?rank=3&role=trainer")
    assert "denied" in lost.text
    assert "No stack was taken of it." in lost.text


def test_wrong_choices_are_explained(service: Any, made: Callable[..., str]) -> None:
    capture_id = made()
    for query in ("rank=x", "rank=5-3", "beside=99999", "rank=9999999999999"):
        page = get(service.client, f"/captures/{capture_id}/stacks?{query}")
        assert page.status == 200
        assert page.all("div", role="alert"), query
    assert get(service.client, f"/captures/{capture_id}/stacks?sample=xyz&rank=1").status == 200


def test_the_nccl_tab_has_tables_and_the_raw_answer(service: Any, made: Callable[..., str]) -> None:
    page = get(service.client, f"/captures/{made()}/nccl")
    assert "Ranks per comm" in page.text
    assert "INCOMPLETE" in page.text
    assert "Communicators... (0.00s)" in page.text


def test_the_flame_graph_has_a_picture_and_data(service: Any, made: Callable[..., str]) -> None:
    capture_id = made()
    page = get(service.client, f"/captures/{capture_id}/flamegraph")
    (host,) = page.all("div", id="flamegraph")
    data = service.client.get(host["data-source"]).json
    assert data["missing"][0][0] == "3"
    (image,) = page.all("img")
    assert service.client.get(image["src"]).mimetype == "image/svg+xml"
    assert "Groups of equal stacks, rarest first" in page.text


def test_every_download_is_there(service: Any, made: Callable[..., str]) -> None:
    page = get(service.client, f"/captures/{made()}")
    links = [str(a["href"]) for a in page.all("a") if "download" in a]
    assert len(links) == 6
    for link in links:
        with service.client.get(link) as answer:
            assert answer.status_code == 200, link


def test_pages_of_a_bundle_without_extracts_are_the_same(
    start: Callable[..., Any], made: Callable[..., str], service: Any
) -> None:
    """Bundles of earlier versions have none, and a file may be damaged."""
    capture_id = made(16)
    addresses = [f"/captures/{capture_id}{tab}" for tab in (*TABS, "/flamegraph/data.json")]
    addresses += [f"/captures/{capture_id}/compare/{capture_id}"]
    addresses += [f"/api/v1/captures/{capture_id}/flamegraph.{kind}" for kind in ("html", "svg", "folded")]
    texts = [re.sub("[0-9.]+ s ago", "", service.client.get(one).text) for one in addresses]
    service.running.stop()
    folder = service.folder / "bundles" / capture_id / "extracts-1"
    (folder / "head.json").write_text("{")
    for name in ("processes", "functions", "graph"):
        (folder / f"{name}.json").unlink()
    again = start(folder=service.folder)
    again.client.set_cookie("hangscope_csrf", service.client.get_cookie("hangscope_csrf").value)
    for address, text in zip(addresses, texts, strict=True):
        answer = again.client.get(address)
        assert answer.status_code == 200, address
        assert re.sub("[0-9.]+ s ago", "", answer.text) == text, address


def test_the_fixed_address_leads_to_the_newest(service: Any, made: Callable[..., str]) -> None:
    made(job_id="team/a b")
    answer = service.client.get("/jobs/team/a%20b/latest")
    assert answer.status_code == 302
    newest = service.client.get("/api/v1/captures").json["captures"][0]["capture_id"]
    assert answer.headers["Location"].endswith(f"/captures/{newest}")
    missing = get(service.client, "/jobs/nobody/latest")
    assert missing.status == 404
    assert "no capture of the job nobody" in missing.text


def test_a_running_capture_shows_its_progress(service: Any) -> None:
    going, told = threading.Event(), threading.Event()

    def slow(request: Any) -> tuple[NodeAnswer, ...]:
        told.set()
        assert going.wait(60)
        return imaginary_job(8).nodes

    service.capturer.answers = slow
    (capture_id,) = service.client.post("/api/v1/alerts", json=service.alert()).json["captures"]
    try:
        assert told.wait(60)
        page = get(service.client, f"/captures/{capture_id}")
        assert "Capturing now" in page.text
        assert "2 of 2 nodes" in page.text
        assert page.all("progress")[0]["value"] == "2"
        assert page.all("div", **{"data-live": None})  # type: ignore[arg-type]
        listed = get(service.client, "/")
        assert "Under way" in listed.text
        assert "2 of 2 nodes" in listed.text
        for tab in TABS:
            assert get(service.client, f"/captures/{capture_id}{tab}").status == 200
    finally:
        going.set()
    service.wait(capture_id)
    assert "Capturing now" not in get(service.client, f"/captures/{capture_id}").text


def test_a_failed_capture_says_why(service: Any) -> None:
    def fail(request: Any) -> tuple[NodeAnswer, ...]:
        raise OSError("no node answered")

    service.capturer.answers = fail
    page = get(service.client, f"/captures/{service.capture()}")
    assert page.status == 200
    assert "The capture failed" in page.text
    assert "no node answered" in page.text


def test_without_an_analysis_stacks_and_graph_are_shown(start: Any) -> None:
    def fail(job_id: str, trees: object, at: float) -> dict[str, Any]:
        raise ZeroDivisionError("bug")

    service = start(analyse=fail)
    capture_id = service.capture()
    for tab in TABS:
        assert get(service.client, f"/captures/{capture_id}{tab}").status == 200
    assert "could not be analysed" in get(service.client, f"/captures/{capture_id}").text
    assert "decode_image" in get(service.client, f"/captures/{capture_id}/stacks?rank=2").text


def test_the_list_is_filtered(service: Any, made: Callable[..., str]) -> None:
    made(job_id="llama")
    made(job_id="gpt")

    def rows(query: str) -> int:
        return get(service.client, f"/?{query}").text.count("loads data in read")

    assert rows("") == 2
    assert rows("job=llama") == 1
    assert rows("job=LLAM") == 1
    assert rows("cause=storage_io") == 2
    assert rows("cause=compute") == 0
    assert rows("until=2001-01-01") == 0
    assert rows("since=2001-01-01") == 2
    assert rows("until=9999-12-31") == rows("since=0001-01-01") == 2
    assert rows("until=0001-01-01") == rows("until=0999-01-01") == rows("since=9999-12-31") == 0
    assert "days like 2026-11-30" in get(service.client, "/?since=yesterday").text


def test_retention_is_shown(start: Any) -> None:
    service = start(config=Config(storage=StorageConfig(keep=7 * 86400, max_size=5_000_000_000)))
    assert "kept 7 d, at most 5.0 GB in all; now 0 B" in get(service.client, "/").text


def test_two_captures_are_compared(service: Any, made: Callable[..., str]) -> None:
    first, second = made(64, job_id="a", stuck=40), made(64, job_id="b", stuck=12)
    page = get(service.client, f"/captures/{first}/compare/{second}")
    assert "2 ranks moved, 61 stayed where they were" in page.text
    assert "captures of different jobs" in page.text
    samples = get(service.client, f"/captures/{first}/compare/{first}?role=dataloader")
    assert "0 ranks moved, 64 stayed" in samples.text


# Forms


def _form(service: Any, address: str, **fields: str) -> dict[str, str]:
    return {"csrf_token": get(service.client, address).field("csrf_token"), **fields}


def test_asking_for_a_capture(service: Any) -> None:
    answer = service.client.post("/captures", data=_form(service, "/", job_id="llama", reason="slow"))
    assert answer.status_code == 303
    capture_id = answer.headers["Location"].rpartition("/")[2]
    service.wait(capture_id)
    assert service.capturer.asked[0].reason == "slow"
    assert service.capturer.asked[0].trigger == "manual"


def test_a_reason_is_wanted(service: Any) -> None:
    answer = service.client.post("/captures", data=_form(service, "/", job_id="llama", reason=" "))
    assert answer.status_code == 400
    assert not service.capturer.asked


def test_pinning_and_deleting(service: Any, made: Callable[..., str]) -> None:
    capture_id = made()
    where = f"/captures/{capture_id}"
    assert service.client.post(f"{where}/pin", data=_form(service, where, pinned="1")).status_code == 303
    assert "for ever: pinned" in get(service.client, where).text
    refused = service.client.post(f"{where}/delete", data=_form(service, f"{where}/delete"))
    assert refused.status_code == 409
    assert "unpin it first" in refused.text
    service.client.post(f"{where}/pin", data=_form(service, where, pinned="0"))
    asked = get(service.client, f"{where}/delete")
    assert "Delete this capture?" in asked.text
    assert get(service.client, where).status == 200  # looking deletes nothing
    gone = service.client.post(f"{where}/delete", data=_form(service, f"{where}/delete"))
    assert gone.status_code == 303
    assert "was deleted" in get(service.client, gone.headers["Location"]).text
    assert get(service.client, where).status == 404


FORGED = (  # fields, headers, whether the browser sends the cookie
    ({}, {}, True),
    ({"csrf_token": "x" * 43}, {}, True),
    ({"csrf_token": "right"}, {}, False),
    ({"csrf_token": "right"}, {"Origin": "https://evil.example"}, True),
    ({"csrf_token": "right"}, {"Origin": "http://["}, True),
    ({"csrf_token": "right"}, {"Origin": "null"}, True),
    ({"csrf_token": "right"}, {"Sec-Fetch-Site": "cross-site"}, True),
    ({"csrf_token": "right"}, {"Sec-Fetch-Site": "same-site"}, True),
)


def test_forms_of_other_sites_do_nothing(service: Any, made: Callable[..., str]) -> None:
    capture_id = made()
    for address in ("/captures", f"/captures/{capture_id}/pin", f"/captures/{capture_id}/delete"):
        for fields, headers, cookie in FORGED:
            token = get(service.client, "/").field("csrf_token")
            if not cookie:
                service.client.delete_cookie("hangscope_csrf")
            data = {name: token if value == "right" else value for name, value in fields.items()}
            data |= {"reason": "x", "job_id": "other", "pinned": "1"}
            answer = service.client.post(address, data=data, headers=headers)
            assert answer.status_code == 403, (address, fields, headers, cookie)
    assert service.client.get(f"/api/v1/captures/{capture_id}").json["pinned"] is False
    assert len(service.client.get("/api/v1/captures").json["captures"]) == 1


def test_the_cookie_is_strict(service: Any) -> None:
    cookie = service.client.get("/").headers["Set-Cookie"]
    assert "SameSite=Strict" in cookie
    assert "HttpOnly" in cookie
    assert "Set-Cookie" not in service.client.get("/").headers


def test_a_token_is_asked_for_where_there_is_one(start: Any, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    file.chmod(0o600)
    service = start(token=TokenFile(file))
    form = _form(service, "/", job_id="llama", reason="slow")
    assert get(service.client, "/").all("input", name="token")
    assert service.client.post("/captures", data=form).status_code == 401
    assert service.client.post("/captures", data=form | {"token": "wrong"}).status_code == 401
    assert not service.capturer.asked
    answer = service.client.post("/captures", data=form | {"token": "s3cret"})
    assert answer.status_code == 303
    service.wait(answer.headers["Location"].rpartition("/")[2])


# Safety


def test_nothing_may_run_or_load_but_our_own_files(service: Any, made: Callable[..., str]) -> None:
    capture_id = made()
    for address in ("/", *(f"/captures/{capture_id}{tab}" for tab in TABS), "/captures/nonsense"):
        page = get(service.client, address)
        policy = page.headers["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        for tag, name in (("script", "src"), ("link", "href"), ("img", "src")):
            for attributes in page.all(tag):
                loaded = attributes.get(name)
                assert loaded is not None, "an inline script"
                assert loaded.startswith("/"), loaded
                with service.client.get(loaded) as answer:
                    assert answer.status_code == 200


def test_names_from_outside_are_text(service: Any, made: Callable[..., str]) -> None:
    capture_id = made(16, job_id=f"job-{HOSTILE[:40]}", hostile=True)
    addresses = ["/", f"/captures/{capture_id}/delete", f"/captures/{capture_id}/compare/{capture_id}"]
    addresses += [f"/captures/{capture_id}{tab}" for tab in TABS]
    addresses += [f"/captures/{capture_id}/stacks?worker=%3Cscript%3E&thread=%22%3E%3Cscript%3E"]
    addresses += [
        "/?job=%22%3E%3Cscript%3Ealert(1)%3C/script%3E",
        f"/captures/{capture_id}/report?q=%22%3E%3Cb%3E",
    ]
    for address in addresses:
        answer = service.client.get(address)
        page = Page(answer)
        assert page.status == 200, address
        assert not [a for a in page.all("img") if a.get("src") == "x"], address
        assert all(attributes.get("src") for attributes in page.all("script")), address
        assert "\u202e" not in re.sub('(value|data-copy)="[^"]*"', "", answer.text), address


@pytest.mark.parametrize(
    "address",
    [
        "/captures/x",
        "/captures/..%2F..%2Fetc",
        "/captures/20260101T000000Z-000000000000",
        "/captures/20260101T000000Z-000000000000/flamegraph/data.json",
        "/captures/20260101T000000Z-000000000000/compare/20260101T000000Z-000000000000",
    ],
)
def test_what_is_not_there_is_a_page_that_says_so(service: Any, address: str) -> None:
    assert get(service.client, address).status == 404


def test_assets_are_kept_by_browsers_until_they_change(service: Any) -> None:
    link = get(service.client, "/").all("link", rel="stylesheet")[0]["href"]
    assert link is not None
    assert "?v=" in link
    with service.client.get(link) as answer:
        assert "immutable" in answer.headers["Cache-Control"]
