"""The representations of a capture that other programs read: one renderer a file name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from snapshotter.render import flamegraph, folded, grafana, speedscope, svg, words
from snapshotter.stacks.model import Process, Sample
from snapshotter.web.derived import Derived

Renderer = Callable[[Derived, str], tuple[str, str]]  # (…, capture id) -> text and content type


def threads(process: Process) -> Iterator[bytes]:
    """Every thread of a process as JSON in py-spy's fields, with who it is beside them.

    A process whose stacks could not be read appears as its main thread without frames: outcome, state and
    kernel stack then say what is known. `native_frames`, with C frames between Python's, stand with the last
    sample where they were read.
    """
    native = {thread.thread_id: msgspec.json.encode(thread.frames) for thread in process.native_threads}
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
        # Objects are put together as text: ten thousand ranks have a hundred thousand threads.
        rest = b"," + msgspec.json.encode(about)[1:]
        last = number == len(process.samples)
        for thread in sample.threads:
            beside = native.get(thread.thread_id, b"[]") if last else b"[]"
            itself = msgspec.json.encode(thread)[1:-1]
            yield b'{"pid":%d,%b,"native_frames":%b%b' % (process.pid, itself, beside, rest)
        if not sample.threads:
            nothing: dict[str, Any] = {"thread_name": None, "active": False, "owns_gil": False, "frames": []}
            main = {"pid": process.pid, "thread_id": None, "os_thread_id": process.pid}
            yield msgspec.json.encode(main | nothing)[:-1] + rest


def _html(made: Derived, capture_id: str) -> tuple[str, str]:
    when = words.moment(made.manifest(capture_id).finished_at)
    text = flamegraph.page(made.graph(capture_id), made.head(capture_id), when=when)
    return text, "text/html; charset=utf-8"


def _svg(made: Derived, capture_id: str) -> tuple[str, str]:
    return svg.render_svg(made.graph(capture_id)), "image/svg+xml"


def _folded(made: Derived, capture_id: str) -> tuple[str, str]:
    return folded.render(made.graph(capture_id).best()), "text/plain; charset=utf-8"


def _grafana(made: Derived, capture_id: str) -> tuple[str, str]:
    return grafana.render(made.graph(capture_id).best()), "application/json"


def _speedscope(made: Derived, capture_id: str) -> tuple[str, str]:
    title = f"{made.manifest(capture_id).job_id} {capture_id}".strip()
    return speedscope.render(made.graph(capture_id).best(), title=title), "application/json"


RENDERERS: dict[str, Renderer] = {
    "flamegraph.html": _html,
    "flamegraph.svg": _svg,
    "flamegraph.folded": _folded,
    "flamegraph.json": _grafana,
    "speedscope.json": _speedscope,
}
