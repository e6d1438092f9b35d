"""The tabs of a capture's page, and the first of them: the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from flask import redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from snapshotter import services
from snapshotter.bundle.index import CaptureRecord
from snapshotter.bundle.schema import Manifest
from snapshotter.errors import BundleError, NotFound
from snapshotter.render import verdict as verdicts
from snapshotter.render.groups import Group, groups
from snapshotter.render.words import clip_ranks
from snapshotter.stacks import rankset
from snapshotter.web.site import derived, find, pages
from snapshotter.web.view import nccl as ras
from snapshotter.web.view import people
from snapshotter.web.view import stacks as choosing

_MOST_ON_VERDICT = 6

DOWNLOADS: tuple[tuple[str, str, dict[str, Any], str], ...] = (  # text, endpoint, its arguments, suffix
    ("Self-contained HTML", "captures.flamegraph", {"extension": "html"}, ".html"),
    ("SVG", "captures.flamegraph", {"extension": "svg"}, ".svg"),
    ("Folded stacks", "captures.flamegraph", {"extension": "folded"}, ".folded"),
    ("speedscope", "captures.speedscope", {}, ".speedscope.json"),
    ("Report as JSON", "captures.report", {}, ".report.json"),
    ("Whole bundle (zip)", "captures.bundle_zip", {}, ".zip"),
)


@dataclass(frozen=True, slots=True)
class Tab:
    """One entry of the navigation."""

    key: str
    title: str
    url: str


def _tabs(capture_id: str) -> list[Tab]:
    return [
        Tab(key, title, url_for(f"pages.{endpoint}", capture_id=capture_id))
        for key, title, endpoint in (
            ("verdict", "Verdict", "capture"),
            ("report", "Report", "report"),
            ("stacks", "Stacks", "stacks"),
            ("nccl", "NCCL", "nccl"),
            ("flamegraph", "Flame graph", "flamegraph"),
        )
    ]


def page(template: str, key: str, record: CaptureRecord, **more: Any) -> str:
    tabs = _tabs(record.capture_id)
    tab = next(one for one in tabs if one.key == key)
    return render_template(template, record=record, tab=tab, tabs=tabs, **more)


def downloads(capture_id: str) -> list[tuple[str, str, str]]:
    """Text, address and name of the file."""
    return [
        (text, url_for(endpoint, capture_id=capture_id, **more), f"{capture_id}{suffix}")
        for text, endpoint, more, suffix in DOWNLOADS
    ]


def without_bundle(record: CaptureRecord) -> str | None:
    """The page of a capture that waits, runs or failed; None where there is a bundle to show."""
    if record.has_bundle:
        return None
    return render_template("waiting.html", record=record, running=record.state in ("queued", "running"))


@pages.get("/captures/<capture_id>")
def capture(capture_id: str) -> ResponseReturnValue:
    """The verdict; `?tab=` leads to the other tabs."""
    tab = request.args.get("tab")
    if tab in ("report", "stacks", "nccl", "flamegraph"):
        return redirect(url_for(f"pages.{tab}", capture_id=capture_id))
    record = find(capture_id)
    if waiting := without_bundle(record):
        return waiting
    given = services.current()
    manifest, report = derived().manifest(capture_id), derived().head(capture_id)
    verdict = verdicts.view(report)
    found = groups(report) if report else ()
    culprits = people.culprits(report, found) if report else ()
    line, has_nccl = _nccl_line(capture_id, manifest)
    others = [one for one in given.index.list(job_id=record.job_id, limit=12) if one.capture_id != capture_id]
    newer = next((one for one in others if one.state in ("queued", "running")), None)
    waiting_rank = choosing.first_choice(report).beside if report else ""
    keep = given.config().storage.keep
    link = f"{given.external_url()}{url_for('pages.capture', capture_id=capture_id)}"
    return page(
        "verdict.html",
        "verdict",
        record,
        manifest=manifest,
        verdict=verdict,
        culprits=culprits,
        has_pods=any(one.pods for one in culprits),
        has_gpus=any(one.gpus for one in culprits),
        has_workers=verdict.cause_key == "data" and bool(culprits) and _has_worker(found, culprits[0].first),
        beside=waiting_rank or None,
        missing=derived().missing(capture_id),
        fold=rankset.fold,
        groups=[one for one in found if one.role == "trainer" and one.thread == "MainThread"][
            :_MOST_ON_VERDICT
        ],
        nccl_line=line,
        has_nccl=has_nccl,
        newer=newer,
        firing=any(one.job_id == record.job_id for one in given.index.open_incidents()),
        siblings=[one for one in others if one.has_bundle][:5],
        can_compare_samples=True,
        kept_until=None if record.finished_at is None else record.finished_at + keep,
        links=_alert_links(record),
        downloads=downloads(capture_id),
        permalink=link,
        summary_text=_summary_text(record, verdict, link),
    )


def _has_worker(found: tuple[Group, ...], rank: int) -> bool:
    """Whether a DataLoader worker of the rank was captured."""
    return any(rankset.parse(one.ranks) >> rank & 1 for one in found if one.role == "dataloader" and one.size)


def _summary_text(record: CaptureRecord, verdict: verdicts.Verdict, link: str) -> str:
    """What to paste into a chat."""
    lines = [
        f"{verdict.state}: {verdict.headline}",
        f"job {record.job_id or '(this node)'} · cause: {verdict.cause} · confidence: {verdict.confidence}",
    ]
    if verdict.culprit_ranks:
        on = f" on {', '.join(verdict.culprit_nodes[:4])}" if verdict.culprit_nodes else ""
        lines.append(f"culprit ranks {clip_ranks(verdict.culprit_ranks, 200)}{on}")
    return "\n".join([*lines, link])


def _alert_links(record: CaptureRecord) -> list[tuple[str, str]]:
    """Addresses of the alert that a browser may follow: http and https alone."""
    alert = record.request.alert
    if alert is None:
        return []
    wanted = [
        ("Runbook", alert.annotations.get("runbook_url", "")),
        ("Dashboard", alert.annotations.get("dashboard_url", "")),
        ("The rule in Prometheus", alert.generator_url),
        ("Alertmanager", alert.external_url),
    ]
    return [(text, url) for text, url in wanted if _is_web(url)]


def _is_web(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False


def _nccl_line(capture_id: str, manifest: Manifest) -> tuple[str, bool]:
    """NCCL in one line: of the first node that answered."""
    for entry in manifest.nodes:
        if entry.nccl_file is not None:
            try:
                return ras.read(derived().nccl_text(capture_id, entry.nccl_file)).line, True
            except (NotFound, BundleError):
                continue
    return "no status of NCCL", False
