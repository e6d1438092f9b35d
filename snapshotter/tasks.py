"""The durable work behind a request: each capture is taken exactly once, whatever dies in between.

The index holds every capture from the moment it was accepted: queued, running (with an owner and a lease that
the owner renews), done or failed. The queue carries ids alone and may lose or repeat them. Who dies between
two steps leaves a row that says how far it came; it is handed out again at the start of its owner, or by the
periodic task once its lease is over.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import ParamSpec

import huey

from snapshotter.alertmanager import Reading
from snapshotter.audit import audit
from snapshotter.bundle import schema, writer
from snapshotter.bundle.index import CaptureRecord, Index
from snapshotter.bundle.reader import open_bundle
from snapshotter.bundle.retention import collect
from snapshotter.bundle.schema import CaptureRequest
from snapshotter.bundle.store import BundleStore
from snapshotter.config import Config
from snapshotter.errors import CannotStore, Conflict, NotFound, SnapshotterError
from snapshotter.intake import Accepted, Intake
from snapshotter.metrics import Measured, Metrics, Published
from snapshotter.taking import STORE_RETRIES, Analyse, Capture, Progress, Taker
from snapshotter.workqueue import Workers

__all__ = ["Analyse", "Capture", "Progress", "Tasks"]

log = logging.getLogger(__name__)
Given = ParamSpec("Given")

LEASE = 60.0  # seconds after which a capture whose owner fell silent is another's
RENEW_EVERY = 5.0
PUBLISH_EVERY = 5.0
_PUBLISH_PAUSE = 0.5  # between two times, however much changes
MEASURE_EVERY = 10.0
_CLAIM_AGAIN = 5.0
_MESSAGE_LOST_AFTER = 300.0  # a queued capture whose message is older is sent again
_LOST_AFTER_WHEN_IDLE = 30.0  # where workers wait for messages
_REFILL = 50
_LEFT_BEHIND_AFTER = 3600.0  # an unfinished bundle that old has no writer any more


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
        store_retries: Sequence[float] = STORE_RETRIES,
    ) -> None:
        self._config = config
        self._index = index
        self._store = store
        self._metrics = metrics
        self._owner = owner
        self._now = now
        self._intake = Intake(config, index, store, now=now)
        self._running: set[str] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._taker = Taker(
            index,
            store,
            metrics,
            owner=owner,
            capture=capture,
            analyse=analyse,
            make_room=self._make_room,
            stopping=self._stop,
            retries=store_retries,
            now=now,
        )
        self._changed = threading.Event()
        self._unsent = threading.Event()
        self._workers = Workers(queue, config().workers)
        self._take = queue.task(name="take_capture")(_told(self.take))
        queue.periodic_task(huey.crontab(minute="*"), name="tick")(_told(self.tick))
        queue.periodic_task(huey.crontab(minute="*/10"), name="collect_garbage")(_told(self.collect_garbage))

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
        self._store.sweep(0.0 if self._config().storage.bundles is None else _LEFT_BEHIND_AFTER)
        self._index.requeue_own(self._owner)
        self.hand_out()
        self.publish()
        threading.Thread(target=self._keep_measured, name="measure", daemon=True).start()
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
        record = self._claimed(capture_id)
        if record is None:
            return
        with self._lock:
            self._running.add(capture_id)
        try:
            self._taker.take(record)
        finally:
            with self._lock:
                self._running.discard(capture_id)
            self._changed.set()
            self.hand_out()

    def _claimed(self, capture_id: str) -> CaptureRecord | None:
        """The capture, now ours; while the index cannot be written, nothing else can be done either."""
        while True:
            try:
                return self._index.claim(capture_id, self._owner, now=self._now(), lease=LEASE)
            except CannotStore as error:
                log.error("capture %s waits: %s", capture_id, error)
                if self._stop.wait(_CLAIM_AGAIN):
                    raise

    def tick(self) -> None:
        """Every minute: re-captures and schedules that are due, and captures that were left behind."""
        now = self._now()
        for accepted in self._intake.due():
            self._handed_over(accepted)
        self._renew_leases()  # after a leap of the clock, or a sleep of the machine, before they count as over
        with self._lock:
            lost_after = _MESSAGE_LOST_AFTER if self._running else _LOST_AFTER_WHEN_IDLE
        self._index.requeue_lost(now=now, enqueued_before=now - lost_after)
        self.hand_out()

    def collect_garbage(self) -> None:
        """Every ten minutes: delete what is too old or too much, and what dead writers left."""
        limits = self._config().storage
        gone = collect(
            self._index,
            self._store,
            now=self._now(),
            keep_seconds=limits.keep,
            max_bytes=limits.max_size,
        )
        for record in gone:
            audit("capture_expired", capture_id=record.capture_id, job_id=record.job_id)
        if gone:
            self._changed.set()
        self._store.sweep(_LEFT_BEHIND_AFTER)

    def hand_out(self) -> None:
        """Send waiting captures to the queue that were not sent yet."""
        self._enqueue(self._index.hand_out(_REFILL, self._now()))

    def publish(self) -> None:
        """Read from the index what the metrics show."""
        try:
            self._metrics.published = Published(
                index_up=True,
                queue_length=self._index.queue_length(),
                bundle_bytes=self._index.total_bytes(),
                bundle_limit_bytes=self._config().storage.max_size,
                verdicts=self._index.newest(verdicts_only=True),
            )
        except CannotStore as error:
            log.error("%s", error)
            self._metrics.published = Published(verdicts=self._metrics.published.verdicts)

    def measure(self) -> None:
        """Read how much room there is, for the metrics. Blocks while a file system does not answer."""
        rooms = {}
        for holds, place in (("bundles", self._store), ("index", self._index)):
            try:
                found = place.room()
            except OSError as error:
                log.error("the room for %s cannot be told: %s", holds, error)
                continue
            if found is not None:
                rooms[holds] = found
        self._metrics.measured = Measured(self._now(), rooms)

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
        waiting = list(ids)
        try:
            while waiting:
                self._take(waiting[0])
                del waiting[0]
        except Exception as error:
            # Whatever the queue's driver raises: the captures are committed, and are sent again.
            log.error("the queue cannot be used, captures wait for it: %s", error)
            self._unsent.set()
            with contextlib.suppress(CannotStore):  # then they count as lost after a while
                self._index.take_back(waiting)

    def _make_room(self) -> None:
        try:
            self.collect_garbage()
        except (OSError, CannotStore) as error:
            log.error("no room can be made: %s", error)

    def _keep_leases(self) -> None:
        while not self._stop.wait(RENEW_EVERY):
            try:
                self._renew_leases()
                if self._unsent.is_set():
                    self._unsent.clear()
                    self.hand_out()
            except SnapshotterError as error:
                log.error("leases were not renewed: %s", error)

    def _renew_leases(self) -> None:
        with self._lock:
            running = frozenset(self._running)
        if running:
            self._index.renew(running, self._owner, self._now() + LEASE)

    def _keep_measured(self) -> None:
        """In a thread of its own, so that a file system that hangs holds up nothing else."""
        while not self._stop.is_set():
            self.measure()
            self._stop.wait(MEASURE_EVERY)

    def _keep_published(self) -> None:
        while not self._stop.is_set():
            self._changed.wait(PUBLISH_EVERY)
            self._changed.clear()
            self.publish()
            self._stop.wait(_PUBLISH_PAUSE)


def _told(work: Callable[Given, None]) -> Callable[Given, None]:
    """`work` whose failures for want of index or store are one line each: they last, and come again."""

    @functools.wraps(work)
    def told(*given: Given.args, **named: Given.kwargs) -> None:
        try:
            work(*given, **named)
        except (CannotStore, OSError) as error:
            log.error("%s cannot go on, it is tried again later: %s", work.__name__, error)

    return told
