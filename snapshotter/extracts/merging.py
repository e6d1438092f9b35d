"""Merging the stacks of a stored capture quickly: frames are decoded once for all threads of equal JSON.

A node's answer has much that the flame graph does not show; of 10,240 ranks that is most of the time. All
else about a bundle is read by `bundle.reader`.
"""

from __future__ import annotations

import msgspec

from snapshotter.bundle.reader import Bundle
from snapshotter.bundle.schema import Manifest
from snapshotter.errors import BundleError
from snapshotter.render.graph import Graph, Merge
from snapshotter.stacks.model import Frame, Role


class _Thread(msgspec.Struct):
    frames: msgspec.Raw
    thread_name: str | None = None


class _Sample(msgspec.Struct):
    outcome: str
    threads: list[_Thread] = []


class _Process(msgspec.Struct):
    node: str
    role: Role
    rank: int | None = None
    samples: list[_Sample] = []


class _Answer(msgspec.Struct):
    processes: list[_Process] = []


_ANSWER = msgspec.json.Decoder(_Answer)
_FRAMES = msgspec.json.Decoder(tuple[Frame, ...])


def merge(bundle: Bundle, manifest: Manifest) -> Graph:
    """The graph of a bundle, without what is missing from it. Raises BundleError, NotFound."""
    merged = Merge[bytes]()
    for entry in manifest.nodes:
        try:
            answer = _ANSWER.decode(bundle.answer_bytes(entry))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BundleError(f"{manifest.capture_id}/{entry.file}: cannot be read: {error}") from error
        for process in answer.processes:
            merged.add_process(process.node, process.role, process.rank)
            for number, sample in enumerate(process.samples):
                if sample.outcome == "ok":
                    stacks = ((thread.thread_name, bytes(thread.frames)) for thread in sample.threads)
                    merged.add_sample(process.role, process.rank, number, stacks)
    known: dict[bytes, tuple[Frame, ...]] = {}

    def frames(raw: bytes) -> tuple[Frame, ...]:
        if raw not in known:
            try:
                known[raw] = _FRAMES.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise BundleError(f"{manifest.capture_id}: a stack cannot be read: {error}") from error
        return known[raw]

    return merged.graph(manifest.job_id, (), frames)
