"""The pages of one capture: Verdict, Report, Stacks, NCCL and Flame graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from flask import Response, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from snapshotter import services
from snapshotter.bundle.index import CaptureRecord
from snapshotter.bundle.schema import Manifest
from snapshotter.errors import BundleError, NotFound
from snapshotter.render import svg
from snapshotter.render import verdict as verdicts
from snapshotter.render.groups import groups
from snapshotter.render.words import clip_ranks
from snapshotter.stacks import rankset
from snapshotter.web.site import derived, find, pages
from snapshotter.web.view import functions as tables
from snapshotter.web.view import nccl as ras
from snapshotter.web.view import people
from snapshotter.web.view import stacks as choosing

_MOST_GROUPS = 200
_MOST_ON_VERDICT = 6

DOWNLOADS = (
    ("Self-contained HTML", "captures.flamegraph", {"extension": "html"}),
    ("SVG", "captures.flamegraph", {"extension": "svg"}),
    ("Folded stacks", "captures.flamegraph", {"extension": "folded"}),
    ("speedscope", "captures.speedscope", {}),
    ("Report as JSON", "captures.report", {}),
    ("Whole bundle (zip)", "captures.bundle_zip", {}),
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


def _page(template: str, key: str, record: CaptureRecord, **more: Any) -> str:
    tabs = _tabs(record.capture_id)
    tab = next(one for one in tabs if one.key == key)
    return render_template(template, record=record, tab=tab, tabs=tabs, **more)


def _downloads(capture_id: str) -> list[tuple[str, str]]:
    return [(text, url_for(endpoint, capture_id=capture_id, **more)) for text, endpoint, more in DOWNLOADS]


def _without_bundle(record: CaptureRecord) -> str | None:
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
    if waiting := _without_bundle(record):
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
    return _page(
        "verdict.html",
        "verdict",
        record,
        manifest=manifest,
        verdict=verdict,
        culprits=culprits,
        has_pods=any(one.pods for one in culprits),
        beside=waiting_rank or None,
        missing=derived().missing(capture_id),
        fold=rankset.fold,
        groups=[one for one in found if one.role == "trainer" and one.thread == "MainThread"][
            :_MOST_ON_VERDICT
        ],
        nccl_line=line,
        has_nccl=has_nccl,
        newer=newer,
        siblings=[one for one in others if one.has_bundle][:5],
        can_compare_samples=True,
        kept_until=None if record.finished_at is None else record.finished_at + keep,
        links=_alert_links(record),
        downloads=_downloads(capture_id),
        permalink=link,
        summary_text=_summary_text(record, verdict, link),
    )


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


@pages.get("/captures/<capture_id>/report")
def report(capture_id: str) -> ResponseReturnValue:
    record = find(capture_id)
    if waiting := _without_bundle(record):
        return waiting
    manifest, head = derived().manifest(capture_id), derived().head(capture_id)
    asked = {name: request.args.get(name, "")[:500] for name in ("q", "sort", "p", "role", "outcome")}
    asked["sort"] = asked["sort"] if asked["sort"] in tables.FUNCTION_SORTS else "count"
    if head is None:
        return _page("report.html", "report", record, manifest=manifest, summary=None, asked=asked)
    processes = derived().processes(capture_id)
    return _page(
        "report.html",
        "report",
        record,
        manifest=manifest,
        summary=_summary(head["summary"]),
        asked=asked,
        sorts=(
            ("count", "most frequent first"),
            ("rare", "rarest first"),
            ("function", "by function"),
            ("file", "by file"),
        ),
        functions=tables.pick_functions(
            derived().functions(capture_id), query=asked["q"], sort=asked["sort"], page=_number("page")
        ),
        processes=tables.pick_processes(
            processes, query=asked["p"], role=asked["role"], outcome=asked["outcome"], page=_number("ppage")
        ),
        roles=sorted({one.role for one in processes}),
        outcomes=sorted({one.outcome for one in processes}),
        json_url=url_for("captures.report", capture_id=capture_id),
    )


_TERMS = {
    "analysis_time": "Analysed",
    "job_id": "Job",
    "node_name": "Node",
    "total_processes": "Processes",
    "successful_processes": "Captured",
    "failed_processes": "Not captured",
    "total_function_calls": "Function calls on stacks",
    "unique_functions": "Places in the code",
}


def _summary(summary: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (_TERMS.get(key, key), f"{value:,}" if isinstance(value, int) else str(value))
        for key, value in summary.items()
    ]


def _number(name: str) -> int:
    value = request.args.get(name, "1")
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 9 else 1


@pages.get("/captures/<capture_id>/stacks")
def stacks(capture_id: str) -> ResponseReturnValue:
    record = find(capture_id)
    if waiting := _without_bundle(record):
        return waiting
    head = derived().head(capture_id) or choosing.processes_of(derived().manifest(capture_id).targets)
    args = request.args
    choice = choosing.Choice(
        worker=args.get("worker", ""),
        gpu=args.get("gpu", ""),
        ranks=args.get("rank", "").strip(),
        role=args.get("role", ""),
        thread=args.get("thread", ""),
        pid=args.get("pid", ""),
        beside=args.get("beside", "").strip(),
        sample=_number("sample"),
    )
    if choice.is_empty and not choice.thread and "sample" not in args:
        choice = choosing.first_choice(head)
    problem, matching, beside = "", (), None
    try:
        matching = choosing.found(head, choice)
        if choice.beside:
            role = choice.role if choice.role in ("", "trainer") else "trainer"
            other = choosing.found(head, choosing.Choice(ranks=choice.beside, role=role or "trainer"))
            beside = other[0] if other else None
            problem = "" if other else f"No rank {choice.beside} was captured."
    except ValueError as error:
        problem = f"{error}. Write ranks as 5, 0-3 or 0-3/7."
    shown = [one for one in (matching[0] if matching else None, beside) if one is not None]
    loaded = [choosing.find_process(derived().answer(capture_id, one.node), one) for one in shown]
    processes = [one for one in loaded if one is not None]
    views = [
        choosing.show(one, choice, processes[1 - number] if len(processes) == 2 else None)
        for number, one in enumerate(processes)
    ]
    return _page(
        "stacks.html",
        "stacks",
        record,
        choice=choice,
        problem=problem,
        workers=choosing.workers(head),
        gpus=choosing.distinct(head, "GpuID"),
        roles=choosing.distinct(head, "Role"),
        threads=choosing.thread_names(processes),
        samples=max((view.samples for view in views), default=1),
        found=matching,
        views=views,
        blamed=_blamed(head),
        shown_pid=shown[0].pid if shown else None,
        shown_node=shown[0].node if shown else None,
        raw_urls=[
            url_for(
                "captures.stacks",
                capture_id=capture_id,
                node=one.node,
                role=one.role,
                rank=one.rank,
            )
            for one in processes
        ],
    )


def _blamed(head: dict[str, Any]) -> frozenset[int]:
    try:
        return frozenset(rankset.members(rankset.parse(head["verdict"].get("culprit_ranks", ""))))
    except ValueError:
        return frozenset()


@pages.get("/captures/<capture_id>/nccl")
def nccl(capture_id: str) -> ResponseReturnValue:
    record = find(capture_id)
    if waiting := _without_bundle(record):
        return waiting
    manifest = derived().manifest(capture_id)
    entries = [one for one in manifest.nodes if one.nccl_file is not None]
    wanted = request.args.get("node", "")
    entry = next((one for one in entries if one.node == wanted), entries[0] if entries else None)
    raw = "" if entry is None or entry.nccl_file is None else derived().nccl_text(capture_id, entry.nccl_file)
    return _page(
        "nccl.html",
        "nccl",
        record,
        entries=entries,
        node=entry.node if entry else "",
        raw=raw,
        error="",
        status=ras.read(raw),
    )


@pages.get("/captures/<capture_id>/flamegraph")
def flamegraph(capture_id: str) -> ResponseReturnValue:
    record = find(capture_id)
    if waiting := _without_bundle(record):
        return waiting
    head = derived().head(capture_id)
    return _page(
        "flamegraph.html",
        "flamegraph",
        record,
        groups=groups(head) if head else (),
        most=_MOST_GROUPS,
        downloads=_downloads(capture_id),
    )


@pages.get("/captures/<capture_id>/flamegraph/data.json")
def flamegraph_data(capture_id: str) -> Response:
    """What flamegraph.js draws."""
    answer = Response(derived().graph_json(find(capture_id).capture_id), content_type="application/json")
    answer.headers["Cache-Control"] = "private, max-age=86400"  # a stored capture never changes
    return answer


@pages.get("/captures/<capture_id>/flamegraph/picture.svg")
def picture(capture_id: str) -> Response:
    """The graph for readers without scripts."""
    graph = derived().graph(find(capture_id).capture_id)
    return Response(svg.render_svg(graph, main_only=True), content_type="image/svg+xml")
