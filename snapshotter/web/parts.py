"""The tabs below the verdict: Report, Stacks, NCCL and Flame graph."""

from __future__ import annotations

from typing import Any

from flask import Response, request, url_for
from flask.typing import ResponseReturnValue

from snapshotter.extracts.rows import ProcessRow
from snapshotter.render import svg
from snapshotter.render.groups import groups
from snapshotter.stacks import rankset
from snapshotter.web.site import derived, find, pages
from snapshotter.web.tabs import downloads, page, without_bundle
from snapshotter.web.view import functions as tables
from snapshotter.web.view import nccl as ras
from snapshotter.web.view import stacks as choosing


@pages.get("/captures/<capture_id>/report")
def report(capture_id: str) -> ResponseReturnValue:
    record = find(capture_id)
    if waiting := without_bundle(record):
        return waiting
    manifest, head = derived().manifest(capture_id), derived().head(capture_id)
    asked = {name: request.args.get(name, "")[:500] for name in ("q", "sort", "p", "role", "outcome")}
    asked["sort"] = asked["sort"] if asked["sort"] in tables.FUNCTION_SORTS else "count"
    if head is None:
        return page("report.html", "report", record, manifest=manifest, summary=None, asked=asked)
    processes = derived().processes(capture_id)
    return page(
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
    if waiting := without_bundle(record):
        return waiting
    roster, head = derived().roster(capture_id), derived().head(capture_id) or {"verdict": {}}
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
    problem = ""
    matching: tuple[ProcessRow, ...] = ()
    beside: ProcessRow | None = None
    try:
        matching = choosing.found(roster.processes, choice)
        if choice.beside:
            role = choice.role if choice.role in ("", "trainer") else "trainer"
            other = choosing.found(
                roster.processes, choosing.Choice(ranks=choice.beside, role=role or "trainer")
            )
            beside = other[0] if other else None
            problem = "" if other else f"No rank {choice.beside} was captured."
    except ValueError as error:
        problem = f"{error}. Write ranks as 5, 0-3 or 0-3/7."
    shown = [one for one in (matching[0] if matching else None, beside) if one is not None]
    loaded = [
        (answer, process)
        for one in shown
        for answer in (derived().answer(capture_id, one.node),)
        if (process := choosing.find_process(answer, one)) is not None
    ]
    processes = [process for _, process in loaded]
    views = [
        choosing.show(one, choice, processes[1 - number] if len(processes) == 2 else None)
        for number, one in enumerate(processes)
    ]
    return page(
        "stacks.html",
        "stacks",
        record,
        choice=choice,
        problem=problem,
        workers=roster.workers,
        gpus=roster.gpus,
        roles=roster.roles,
        threads=choosing.thread_names(processes),
        samples=max((view.samples for view in views), default=1),
        found=matching,
        views=views,
        logs=[answer for answer, _ in loaded],
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
    if waiting := without_bundle(record):
        return waiting
    manifest = derived().manifest(capture_id)
    entries = [one for one in manifest.nodes if one.nccl_file is not None]
    wanted = request.args.get("node", "")
    entry = next((one for one in entries if one.node == wanted), entries[0] if entries else None)
    raw = "" if entry is None or entry.nccl_file is None else derived().nccl_text(capture_id, entry.nccl_file)
    return page(
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
    if waiting := without_bundle(record):
        return waiting
    head = derived().head(capture_id)
    return page(
        "flamegraph.html",
        "flamegraph",
        record,
        groups=groups(head) if head else (),
        classes=derived().classes(capture_id),
        downloads=downloads(capture_id),
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
