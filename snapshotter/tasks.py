"""The durable work behind a request: each capture is taken exactly once, whatever dies in between.

The index holds every capture from the moment it was accepted: queued, running (with an owner and a lease that
the owner renews), done or failed. The queue carries ids alone and may lose or repeat them. Who dies between
two steps leaves a row that says how far it came:

    queued            → handed out again, at the start of its owner or by the periodic task
    running, no bundle→ captured again
    running, bundle   → entered from the bundle's manifest; the processes are left alone
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import huey

from snapshotter.alertmanager import Reading
from snapshotter.bundle import schema, writer
from snapshotter.bundle.index import CaptureRecord, Index
from snapshotter.bundle.reader import open_bundle
from snapshotter.bundle.retention import expired
from snapshotter.bundle.schema import CaptureRequest
from snapshotter.bundle.store import BundleStore
from snapshotter.config import Config
from snapshotter.errors import CannotStore, Conflict, NotFound, SnapshotterError
from snapshotter.intake import Accepted, Intake, audit
from snapshotter.metrics import Metrics, Published
from snapshotter.stacks.model import JobCapture, NodeAnswer
from snapshotter.workqueue import Workers

log = logging.getLogger(__name__)

Progress = Callable[[str], None]

LEASE = 60.0  # seconds after which a capture whose owner fell silent is another's
RENEW_EVERY = 5.0
PUBLISH_EVERY = 5.0
_MESSAGE_LOST_AFTER = 300.0  # a queued capture whose message is older is sent again
_MAX_ATTEMPTS = 5  # a capture that kills the snapshotter every time is given up
_REFILL = 50
_STORE_RETRIES = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 240.0)  # seconds; the evidence waits in memory


class Capture(Protocol):
    """Takes the stacks of a job on all its nodes; `progress` takes a line for people."""

    def __call__(self, request: CaptureRequest, progress: Progress) -> tuple[NodeAnswer, ...]: ...


class Analyse(Protocol):
    """Makes report.json (as a dict) of a capture; `at` is the analysis time in Unix seconds."""

    def __call__(self, capture: JobCapture, at: float) -> dict[str, Any]: ...


class Tasks:
    """Accepts requests, works them off in threads, keeps the store within its bounds."""

    def __init__(
        self,
        config: Callable[[], Config],
        index: Index,
        store: BundleStore,
        queue: huey.Huey,
        metrics: Metrics,
        *,
        owner: str,
        capture: Capture,
        analyse: Analyse,
        now: Callable[[], float] = time.time,
        store_retries: Sequence[float] = _STORE_RETRIES,
    ) -> None:
        self._config = config
        self._index = index
        self._store = store
        self._queue = queue
        self._metrics = metrics
        self._owner = owner
        self._capture = capture
        self._analyse = analyse
        self._now = now
        self._store_retries = store_retries
        self._intake = Intake(config, index, store, now=now)
        self._running: set[str] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._changed = threading.Event()
        self._workers = Workers(queue, config().workers)
        self._take = queue.task(name="take_capture")(self.take)
        queue.periodic_task(huey.crontab(minute="*"), name="tick")(self.tick)
        queue.periodic_task(huey.crontab(minute="*/10"), name="collect_garbage")(self.collect_garbage)

    # Requests

    def notify(self, reading: Reading, sender: str) -> Accepted:
        """Take in a notification; what it asks for is committed when this returns. Raises CannotStore."""
        return self._handed_over(self._intake.notification(reading, sender))

    def request(self, job_id: str, reason: str, requested_by: str) -> CaptureRequest:
        """Ask for a capture by hand. Raises BadRequest, CannotStore."""
        return self._handed_over(self._intake.manual(job_id, reason, requested_by)).requests[0]

    def alertnames(self) -> tuple[str, ...]:
        """Globs of the names of alerts that ask for captures."""
        return self._config().incidents.alertnames

    def pin(self, capture_id: str, pinned: bool, who: str) -> None:
        """Keep a capture for ever, or no longer. Raises NotFound, CannotStore."""
        record = self._known(capture_id)
        if record.has_bundle:
            manifest = schema.with_pin(open_bundle(self._store, capture_id).manifest(), pinned)
            self._store.replace(capture_id, schema.MANIFEST, writer.encode_manifest(manifest))
        self._index.set_pinned(capture_id, pinned)
        audit("capture_pinned" if pinned else "capture_unpinned", capture_id=capture_id, who=who)

    def delete(self, capture_id: str, who: str) -> None:
        """Remove a capture and its bundle. Raises NotFound, Conflict, CannotStore."""
        record = self._known(capture_id)
        if record.pinned:
            raise Conflict(f"the capture {capture_id} is pinned", "unpin it first")
        if record.state == "running":
            raise Conflict(f"the capture {capture_id} is under way", "wait until it has ended")
        self._store.delete(capture_id)
        if not self._index.delete(capture_id):
            raise Conflict(f"the capture {capture_id} is under way", "wait until it has ended")
        self._changed.set()
        audit("capture_deleted", capture_id=capture_id, job_id=record.job_id, who=who)

    # Life

    def start(self) -> None:
        """Take up what was left behind, then work. Raises CannotStore."""
        self._store.sweep()
        self._index.requeue_own(self._owner)
        self.hand_out()
        self.publish()
        threading.Thread(target=self._keep_leases, name="leases", daemon=True).start()
        threading.Thread(target=self._keep_published, name="publish", daemon=True).start()
        self._workers.start()

    def stop(self) -> None:
        """End; a capture that does not end within seconds is taken up at the next start."""
        self._stop.set()
        self._changed.set()
        self._workers.stop()

    # Work

    def take(self, capture_id: str) -> None:
        """Take one capture, if it still waits and nobody else takes it."""
        record = self._index.claim(capture_id, self._owner, now=self._now(), lease=LEASE)
        if record is None:
            return
        with self._lock:
            self._running.add(capture_id)
        try:
            self._work(record)
        finally:
            with self._lock:
                self._running.discard(capture_id)
            self._changed.set()
            self.hand_out()

    def tick(self) -> None:
        """Every minute: re-captures and schedules that are due, and captures that were left behind."""
        now = self._now()
        for accepted in self._intake.due():
            self._handed_over(accepted)
        self._index.requeue_lost(now=now, enqueued_before=now - _MESSAGE_LOST_AFTER)
        self.hand_out()

    def collect_garbage(self) -> int:
        """Delete what is too old or too much; returns how many captures went."""
        limits = self._config().storage
        gone = expired(
            self._index.finished(), now=self._now(), keep_seconds=limits.keep, max_bytes=limits.max_size
        )
        for record in gone:
            self._store.delete(record.capture_id)
            self._index.delete(record.capture_id)
            audit("capture_expired", capture_id=record.capture_id, job_id=record.job_id)
        if gone:
            self._changed.set()
        return len(gone)

    def hand_out(self) -> None:
        """Send waiting captures to the queue that were not sent yet."""
        ids = self._index.unqueued(_REFILL)
        self._index.set_enqueued(ids, self._now())
        self._enqueue(ids)

    def publish(self) -> None:
        """Read from the index what the metrics show."""
        try:
            self._metrics.published = Published(
                index_up=True,
                queue_length=self._index.queue_length(),
                bundle_bytes=self._index.total_bytes(),
                verdicts=self._index.newest(verdicts_only=True),
            )
        except CannotStore as error:
            log.error("%s", error)
            self._metrics.published = Published(verdicts=self._metrics.published.verdicts)

    def _known(self, capture_id: str) -> CaptureRecord:
        record = self._index.get(capture_id)
        if record is None:
            raise NotFound(f"there is no capture {capture_id}")
        return record

    def _handed_over(self, accepted: Accepted) -> Accepted:
        if accepted.requests:
            self._changed.set()
        self._enqueue(accepted.enqueue)
        return accepted

    def _enqueue(self, ids: Sequence[str]) -> None:
        try:
            for capture_id in ids:
                self._take(capture_id)
        except Exception:
            # Whatever the queue's driver raises: the captures are committed, and the tick sends them again.
            log.exception("the queue cannot be used; captures wait for it")

    def _work(self, record: CaptureRecord) -> None:
        request, capture_id = record.request, record.capture_id
        if self._store.exists(capture_id):  # it was stored, but its end was not recorded
            manifest = open_bundle(self._store, capture_id).manifest()
            self._index.finish(manifest, self._store.size(capture_id), self._owner)
            return
        started = self._now()
        if record.attempts > _MAX_ATTEMPTS:
            self._failed(
                request, f"given up: the snapshotter ended in each of {_MAX_ATTEMPTS} attempts", started
            )
            return
        try:
            answers = self._capture(request, _Throttled(self._index, capture_id, self._now))
        except Exception as error:
            log.exception("capture %s failed", capture_id)
            self._failed(request, f"the capture failed: {error}", started)
            return
        report, problem = self._report(request, answers)
        manifest, files = writer.build(
            request, answers, report, started_at=started, finished_at=self._now(), error=problem
        )
        try:
            size = self._put(capture_id, files)
        except OSError as error:
            if self._stop.is_set():
                raise  # it stays running, and is taken again at the next start
            self._failed(request, f"the bundle cannot be stored: {error}", started)
            return
        self._index.finish(manifest, size, self._owner)
        self._metrics.count_capture(request.trigger, manifest.outcome, manifest.finished_at - started)
        self._metrics.count_answers(answers)
        audit(
            "capture_taken",
            capture_id=capture_id,
            job_id=manifest.job_id,
            trigger=request.trigger,
            requested_by=request.requested_by,
            nodes=[node.node for node in manifest.nodes],
            processes=len(manifest.targets),
            outcome=manifest.outcome,
        )

    def _report(
        self, request: CaptureRequest, answers: tuple[NodeAnswer, ...]
    ) -> tuple[dict[str, Any] | None, str | None]:
        """report.json, or why there is none: the evidence is kept either way."""
        try:
            capture = JobCapture(job_id=writer.job_of(request, answers), nodes=answers)
            return self._analyse(capture, self._now()), None
        except Exception as error:
            log.exception("the analysis of %s failed", request.capture_id)
            return None, f"the analysis failed: {type(error).__name__}: {error}"

    def _put(self, capture_id: str, files: dict[str, bytes]) -> int:
        """Store a bundle; while the store fails, make room as far as the cap allows and try again."""
        for pause in self._store_retries:
            try:
                return self._store.put(capture_id, files)
            except OSError as error:
                log.error("the bundle %s cannot be stored: %s; next try in %g s", capture_id, error, pause)
            self.collect_garbage()
            if self._stop.wait(pause):
                break
        return self._store.put(capture_id, files)

    def _failed(self, request: CaptureRequest, why: str, started: float) -> None:
        log.error("capture %s: %s", request.capture_id, why)
        self._index.fail(request.capture_id, self._owner, why, self._now())
        self._metrics.count_capture(request.trigger, "failed", self._now() - started)
        audit("capture_failed", capture_id=request.capture_id, job_id=request.job_id, error=why)

    def _keep_leases(self) -> None:
        while not self._stop.wait(RENEW_EVERY):
            with self._lock:
                running = frozenset(self._running)
            if not running:
                continue
            try:
                self._index.renew(running, self._owner, self._now() + LEASE)
            except SnapshotterError as error:
                log.error("leases were not renewed: %s", error)

    def _keep_published(self) -> None:
        while not self._stop.is_set():
            self._changed.wait(PUBLISH_EVERY)
            self._changed.clear()
            self.publish()


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
