"""The representations of a capture that other programs read: one renderer a file name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from snapshotter.bundle.reader import Bundle
from snapshotter.errors import NotFound
from snapshotter.render import flamegraph, folded, grafana, speedscope
from snapshotter.stacks.model import Process, Sample
from snapshotter.stacks.report import analyse
from snapshotter.stacks.tree import Tree

Renderer = Callable[[Bundle], tuple[str, str]]  # text and content type


def threads(process: Process) -> Iterator[dict[str, Any]]:
    """Every thread of a process in py-spy's fields, with who it is beside them.

    A process whose stacks could not be read appears as its main thread without frames: outcome, state and
    kernel stack then say what is known.
    """
    for number, sample in enumerate(
        process.samples or (Sample(0.0, process.outcome, process.error),), start=1
    ):
        about = {
            "sample": number,
            "taken_at": sample.taken_at,
            "rank": process.rank,
            "local_rank": process.local_rank,
            "role": process.role,
            "worker": process.worker,
            "node": process.node,
            "gpu": process.gpu,
            "pod": process.pod,
            "outcome": sample.outcome,
            "error": sample.error,
            "state": sample.state,
            "wchan": sample.wchan,
            "kernel_stack": sample.kernel_stack,
        }
        for thread in sample.threads:
            yield {"pid": process.pid} | msgspec.to_builtins(thread) | about
        if not sample.threads:
            nothing: dict[str, Any] = {"thread_name": None, "active": False, "owns_gil": False, "frames": []}
            main = {"pid": process.pid, "thread_id": None, "os_thread_id": process.pid}
            yield main | nothing | about


def _html(bundle: Bundle) -> tuple[str, str]:
    manifest = bundle.manifest()
    when = datetime.fromtimestamp(manifest.finished_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return flamegraph.render_html(bundle.capture(), _report(bundle), when=when), "text/html; charset=utf-8"


def _svg(bundle: Bundle) -> tuple[str, str]:
    return flamegraph.render_svg(bundle.capture()), "image/svg+xml"


def _folded(bundle: Bundle) -> tuple[str, str]:
    return folded.render(_trees(bundle)), "text/plain; charset=utf-8"


def _grafana(bundle: Bundle) -> tuple[str, str]:
    return grafana.render(_trees(bundle)), "application/json"


def _speedscope(bundle: Bundle) -> tuple[str, str]:
    manifest = bundle.manifest()
    title = f"{manifest.job_id} {manifest.capture_id}".strip()
    return speedscope.render(_trees(bundle), title=title), "application/json"


def _trees(bundle: Bundle) -> tuple[Tree, ...]:
    """The merged trees, worked out anew: a later version of the analysis may name more."""
    return analyse(bundle.capture(), at=bundle.manifest().finished_at).trees


def _report(bundle: Bundle) -> Mapping[str, Any] | None:
    try:
        return bundle.report()
    except NotFound:
        return None


RENDERERS: dict[str, Renderer] = {
    "flamegraph.html": _html,
    "flamegraph.svg": _svg,
    "flamegraph.folded": _folded,
    "flamegraph.json": _grafana,
    "speedscope.json": _speedscope,
}
