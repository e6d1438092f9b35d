"""What the pages read of a capture, worked out once: four small files beside the evidence of a bundle.

    head.json        verdict, summary, the rarest classes, the culprits' processes, what was not captured
    processes.json   all processes, a row each
    functions.json   the function statistics without their sources
    graph.json       the merged stacks as flamegraph.js draws them

Of 10,240 ranks the whole bundle takes seconds to read and these take milliseconds. They hold nothing of their
own: where a bundle lacks them, or has those of another version, `make` works them out from the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from snapshotter.bundle import schema
from snapshotter.bundle.reader import Bundle
from snapshotter.bundle.schema import Manifest
from snapshotter.encoding import encode
from snapshotter.extracts import head, rows
from snapshotter.extracts.merging import merge
from snapshotter.render.graph import to_data

Extract = Literal["head", "processes", "functions", "graph"]

VERSION = 1  # of the form of all four; another one is not read


def file(what: Extract) -> str:
    """The name in a bundle."""
    return f"{schema.EXTRACTS}-{VERSION}/{what}.json"


def make(what: Extract, bundle: Bundle, manifest: Manifest, report: Mapping[str, Any] | None) -> bytes:
    """One of them from the rest of the bundle; `report` is None where the analysis failed.

    Raises BundleError, NotFound where the bundle is not whole.
    """
    match what:
        case "head":
            return encode(head.head(bundle, manifest, report))
        case "processes":
            return encode(rows.processes(report, manifest.targets))
        case "functions":
            return encode(rows.functions(report))
        case "graph":
            missing = head.not_captured(bundle, manifest, report)
            return encode(to_data(replace(merge(bundle, manifest), missing=missing)))


def build(
    manifest: Manifest, report: Mapping[str, Any] | None, files: Mapping[str, bytes]
) -> dict[str, bytes]:
    """All of them for a bundle that is about to be stored as `files`, by their name in it."""
    bundle = Bundle(files.__getitem__, manifest.capture_id)
    return {file(what): make(what, bundle, manifest, report) for what in get_args(Extract)}
