"""Taking one capture that is claimed: ask the nodes, analyse, store, record. Each step leaves evidence.

running, no bundle → captured again
running, bundle    → entered from the bundle's manifest; the processes are left alone
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from snapshotter import extracts
from snapshotter.audit import audit
from snapshotter.bundle import schema, writer
from snapshotter.bundle.index import CaptureRecord, Index
from snapshotter.bundle.reader import open_bundle
from snapshotter.bundle.schema import CaptureRequest, Manifest
from snapshotter.bundle.store import BundleStore
from snapshotter.errors import CannotStore
from snapshotter.gathered import Gathered
from snapshotter.metrics import Metrics
from snapshotter.stacks.premerge import NodeTree

log = logging.getLogger(__name__)

Progress = Callable[[str], None]

_MAX_ATTEMPTS = 5  # a capture that kills the snapshotter every time is given up
STORE_RETRIES = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 240.0)  # seconds; the evidence waits in memory


class Capture(Protocol):
    """Takes the stacks of a job on all its nodes; `progress` takes a line for people."""

    def __call__(self, request: CaptureRequest, progress: Progress) -> tuple[Gathered, ...]: ...


class Analyse(Protocol):
    """Makes report.json (as a dict) of a job's nodes, merged; `at` is the analysis time in Unix seconds."""

    def __call__(self, job_id: str, trees: Iterable[NodeTree], at: float) -> dict[str, Any]: ...


class Taker:
    """Takes claimed captures; safe for many threads."""

    def __init__(
        self,
        index: Index,
        store: BundleStore,
        metrics: Metrics,
        *,
        owner: str,
        capture: Capture,
        analyse: Analyse,
        make_room: Callable[[], None],
        stopping: threading.Event,
        retries: Sequence[float],
        now: Callable[[], float],
    ) -> None:
        """`make_room` deletes what may go; `retries` are the seconds between attempts to store a bundle."""
        self._index = index
        self._store = store
        self._metrics = metrics
        self._owner = owner
        self._capture = capture
        self._analyse = analyse
        self._make_room = make_room
        self._stopping = stopping
        self._retries = retries
        self._now = now

    def take(self, record: CaptureRecord) -> None:
        """Take the capture to its end. Raises CannotStore, OSError; it is then taken up again later."""
        request, capture_id = record.request, record.capture_id
        if self._store.exists(capture_id):  # it was stored, but its end was not recorded
            self._adopt(capture_id)
            return
        started = self._now()
        if record.attempts > _MAX_ATTEMPTS:
            self._failed(
                request, f"given up: the snapshotter ended in each of {_MAX_ATTEMPTS} attempts", started
            )
            return
        try:
            gathered = self._capture(request, _Throttled(self._index, capture_id, self._now))
        except Exception as error:
            log.exception("capture %s failed", capture_id)
            self._failed(request, f"the capture failed: {error}", started)
            return
        report, problem = self._report(request, gathered)
        manifest, files = writer.build(
            request, gathered, report, started_at=started, finished_at=self._now(), error=problem
        )
        files |= _extracts(manifest, report, files)
        try:
            written = self._put(capture_id, files)
        except OSError as error:
            if self._stopping.is_set():
                raise  # it stays running, and is taken again at the next start
            self._failed(request, f"the bundle cannot be stored: {error}", started)
            return
        if not written:  # another snapshotter took this one for dead and was faster
            self._adopt(capture_id)
            return
        self._finish(manifest, sum(map(len, files.values())))
        self._metrics.count_capture(request.trigger, manifest.outcome, manifest.finished_at - started)
        self._metrics.count_answers(gathered)
        audit(
            "capture_taken",
            capture_id=capture_id,
            job_id=manifest.job_id,
            trigger=request.trigger,
            reason=request.reason,
            requested_by=request.requested_by,
            nodes=[node.node for node in manifest.nodes],
            processes=len(manifest.targets),
            outcome=manifest.outcome,
        )

    def _report(
        self, request: CaptureRequest, gathered: tuple[Gathered, ...]
    ) -> tuple[dict[str, Any] | None, str | None]:
        """report.json, or why there is none: the evidence is kept either way."""
        try:
            trees = [one.tree for one in gathered]
            report = self._analyse(writer.job_of(request, gathered), trees, self._now())
            schema.verdict_summary(report)  # what lists and metrics will want of it
            return report, None
        except Exception as error:
            log.exception("the analysis of %s failed", request.capture_id)
            return None, f"the analysis failed: {type(error).__name__}: {error}"

    def _adopt(self, capture_id: str) -> None:
        manifest = open_bundle(self._store, capture_id).manifest()
        self._finish(manifest, self._store.size(capture_id))

    def _finish(self, manifest: Manifest, size: int) -> None:
        self._index.finish(manifest, size, self._owner)
        record = self._index.get(manifest.capture_id)
        if record is not None and record.pinned and not manifest.pinned:  # it was pinned while it was taken
            pinned = schema.with_pin(manifest, True)
            self._store.replace(manifest.capture_id, schema.MANIFEST, writer.encode_manifest(pinned))

    def _put(self, capture_id: str, files: dict[str, bytes]) -> bool:
        """Store a bundle; while the store fails, make room as far as the cap allows and try again."""
        for pause in self._retries:
            try:
                return self._store.put(capture_id, files)
            except OSError as error:
                log.error("the bundle %s cannot be stored: %s; next try in %g s", capture_id, error, pause)
            self._make_room()
            if self._stopping.wait(pause):
                break
        return self._store.put(capture_id, files)

    def _failed(self, request: CaptureRequest, why: str, started: float) -> None:
        log.error("capture %s: %s", request.capture_id, why)
        self._index.fail(request.capture_id, self._owner, why, self._now())
        self._metrics.count_capture(request.trigger, "failed", self._now() - started)
        audit(
            "capture_failed",
            capture_id=request.capture_id,
            job_id=request.job_id,
            trigger=request.trigger,
            reason=request.reason,
            requested_by=request.requested_by,
            error=why,
        )


def _extracts(manifest: Manifest, report: dict[str, Any] | None, files: dict[str, bytes]) -> dict[str, bytes]:
    """What pages show, or nothing: they can work it out from the bundle."""
    try:
        return extracts.build(manifest, report, files)
    except Exception:
        log.exception("the extracts of %s cannot be made", manifest.capture_id)
        return {}


class _Throttled:
    """Progress lines of a capture, stored at most twice a second."""

    def __init__(self, index: Index, capture_id: str, now: Callable[[], float]) -> None:
        self._index = index
        self._capture_id = capture_id
        self._now = now
        self._written_at = 0.0

    def __call__(self, text: str) -> None:
        if self._now() - self._written_at < 0.5:
            return
        self._written_at = self._now()
        try:
            self._index.set_progress(self._capture_id, text[:500])
        except CannotStore as error:
            log.warning("progress is not stored: %s", error)
