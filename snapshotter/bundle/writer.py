"""Turning a finished capture into the files of a bundle, and a bundle into a folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from snapshotter.bundle import schema
from snapshotter.bundle.schema import CaptureOutcome, CaptureRequest, Manifest, NodeEntry, Target
from snapshotter.bundle.store import write_aside
from snapshotter.encoding import encode
from snapshotter.gathered import Gathered


def build(
    request: CaptureRequest,
    gathered: tuple[Gathered, ...],
    report: dict[str, Any] | None,
    *,
    started_at: float,
    finished_at: float,
    error: str | None = None,
) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest and all files of a bundle by their name in it, the manifest last.

    `report` is report.json as a dict, None where the analysis failed (`error` then says why).
    """
    files: dict[str, bytes] = {}
    entries: list[NodeEntry] = []
    stems: set[str] = set()
    for one in gathered:
        answer = one.answer
        stem = _unused(schema.file_stem(answer.node), stems)
        node_file = f"nodes/{stem}.json.gz"
        files[node_file] = one.packed
        nccl_file = None
        if answer.nccl is not None and answer.nccl.raw:
            nccl_file = f"nccl/{stem}.txt"
            files[nccl_file] = answer.nccl.raw.encode("utf-8", "replace")
        entries.append(
            NodeEntry(
                node=answer.node,
                outcome=answer.outcome,
                file=node_file,
                started_at=answer.started_at,
                finished_at=answer.finished_at,
                error=answer.error,
                nccl_file=nccl_file,
                expected_ranks=answer.expected_ranks,
            )
        )
    if report is not None:
        files[schema.REPORT] = msgspec.json.format(encode(report), indent=1)
    manifest = Manifest(
        request=request,
        started_at=started_at,
        finished_at=finished_at,
        outcome=outcome(gathered),
        nodes=tuple(entries),
        targets=tuple(_targets(gathered)),
        verdict=None if report is None else schema.verdict_summary(report),
        error=error,
        job_id=job_of(request, gathered),
    )
    files[schema.MANIFEST] = encode_manifest(manifest)
    return manifest, files


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.format(encode(manifest), indent=1)


def job_of(request: CaptureRequest, gathered: Iterable[Gathered]) -> str:
    """The job of a capture: the one asked for, else the one that all nodes found, else none."""
    found = {one.answer.job_id for one in gathered if one.answer.job_id}
    return request.job_id or (found.pop() if len(found) == 1 else "")


def outcome(gathered: Iterable[Gathered]) -> CaptureOutcome:
    """What became of a capture as a whole."""
    gathered = tuple(gathered)
    outcomes = [process.outcome for one in gathered for process in one.processes]
    unwell = [one for one in gathered if one.answer.outcome != "ok"]
    if not outcomes:
        return "failed" if unwell else "empty"
    return "complete" if not unwell and all(one == "ok" for one in outcomes) else "partial"


def write_folder(folder: Path, files: dict[str, bytes]) -> None:
    """Write a bundle's files as one folder, aside and renamed. Raises OSError, FileExistsError."""
    if not write_aside(folder, files, aside=folder.parent):
        raise FileExistsError(f"{folder} is there already")


def _targets(gathered: tuple[Gathered, ...]) -> Iterable[Target]:
    for one in gathered:
        for process in one.processes:
            yield Target(
                node=one.answer.node,
                pid=process.pid,
                role=process.role,
                rank=process.rank,
                outcome=process.outcome,
                error=process.error,
            )


def _unused(stem: str, used: set[str]) -> str:
    """`stem`, or with a number where another node has it; upper and lower case count as the same."""
    candidate, number = stem, 1
    while candidate.lower() in used:
        number += 1
        candidate = f"{stem}~{number}"
    used.add(candidate.lower())
    return candidate
