"""Captures and incidents as rows: what the index knows of each, and how that is written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from snapshotter.bundle.schema import CaptureRequest, Manifest, VerdictSummary
from snapshotter.incidents import Incident

_INCIDENT = msgspec.json.Decoder(Incident)

CaptureState = Literal["queued", "running", "done", "failed"]


@dataclass(frozen=True, slots=True)
class CaptureRecord:
    """One capture as the index knows it."""

    request: CaptureRequest
    state: CaptureState
    job_id: str
    attempts: int = 0
    progress: str = ""
    started_at: float | None = None
    finished_at: float | None = None
    outcome: str | None = None
    error: str | None = None
    verdict: VerdictSummary | None = None
    processes: int = 0
    processes_ok: int = 0
    bytes: int = 0
    pinned: bool = False

    @property
    def capture_id(self) -> str:
        return self.request.capture_id

    @property
    def has_bundle(self) -> bool:
        return self.bytes > 0


def incident(data: str) -> Incident:
    return _INCIDENT.decode(data)


def incident_row(incident: Incident) -> dict[str, Any]:
    return {
        "id": incident.id,
        "job_id": incident.job_id,
        "opened_at": incident.opened_at,
        "closed_at": incident.closed_at,
        "data": _json(incident),
    }


def new_row(request: CaptureRequest, *, enqueued_at: float | None) -> dict[str, Any]:
    return {
        "id": request.capture_id,
        "job_id": request.job_id,
        "state": "queued",
        "trigger": request.trigger,
        "requested_at": request.requested_at,
        "request": _json(request),
        "enqueued_at": enqueued_at,
    }


def manifest_row(manifest: Manifest, size: int) -> dict[str, Any]:
    return {
        "job_id": manifest.job_id,
        "state": "done",
        "owner": None,
        "lease_until": None,
        "progress": "",
        "started_at": manifest.started_at,
        "finished_at": manifest.finished_at,
        "outcome": manifest.outcome,
        "error": manifest.error,
        "verdict": None if manifest.verdict is None else _json(manifest.verdict),
        "processes": len(manifest.targets),
        "processes_ok": sum(target.outcome == "ok" for target in manifest.targets),
        "bytes": size,
        "pinned": manifest.pinned,
    }


def record(row: sa.Row[Any]) -> CaptureRecord:
    return CaptureRecord(
        request=msgspec.json.decode(row.request, type=CaptureRequest),
        state=row.state,
        job_id=row.job_id,
        attempts=row.attempts,
        progress=row.progress,
        started_at=row.started_at,
        finished_at=row.finished_at,
        outcome=row.outcome,
        error=row.error,
        verdict=None if row.verdict is None else msgspec.json.decode(row.verdict, type=VerdictSummary),
        processes=row.processes,
        processes_ok=row.processes_ok,
        bytes=row.bytes,
        pinned=row.pinned,
    )


def _json(value: Incident | CaptureRequest | VerdictSummary) -> str:
    return msgspec.json.encode(value).decode()
