"""Taking requests for captures: alerts, people, schedules. Each is committed before it is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from snapshotter import incidents
from snapshotter.alertmanager import MAX_JOB_ID, JobAlerts, Reading
from snapshotter.audit import audit
from snapshotter.bundle.index import Index
from snapshotter.bundle.schema import CaptureRequest, new_capture_id, storable
from snapshotter.bundle.store import BundleStore
from snapshotter.config import Config
from snapshotter.errors import BadRequest, CannotStore
from snapshotter.groupcommit import GroupCommit
from snapshotter.incidents import Incident, Policy, Step

# Below this the disk counts as full: a bundle of one node takes about as much.
_MIN_FREE_BYTES = 16 << 20
# How many new captures go to the queue within one request; the rest follow as workers get free.
_ENQUEUE_AT_ONCE = 50
_MAX_REASON = 500
_RECENT_SECONDS = 5.0
_RECENT_JOBS = 10_000


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a request led to: new captures, all committed, and those of them that go to the queue now."""

    requests: tuple[CaptureRequest, ...]
    enqueue: tuple[str, ...]
    changed: bool  # whether anything was stored


@dataclass(frozen=True, slots=True)
class _Notification:
    reading: Reading
    sender: str


class Intake:
    """Turns what comes from outside into rows of the index. Safe for many threads."""

    def __init__(
        self, config: Callable[[], Config], index: Index, store: BundleStore, *, now: Callable[[], float]
    ) -> None:
        self._config = config
        self._index = index
        self._store = store
        self._now = now
        self._recent = _Recent()
        self._commits: GroupCommit[_Notification, Accepted] = GroupCommit(self._commit)

    def notification(self, reading: Reading, sender: str) -> Accepted:
        """Alerts of one notification. Raises CannotStore, then nothing of it was stored."""
        now = self._now()
        last = self._recent.get(reading.jobs, now)
        if last is None:
            last = self._index.last_incidents([one.job_id for one in reading.jobs])
            self._recent.put(last, now)
        if not any(self._step(one, last, now).incident for one in reading.jobs):
            return Accepted((), (), changed=False)  # a repetition, the common case: nothing to write
        return self._commits.add(_Notification(reading, sender))

    def _commit(self, batch: Sequence[_Notification]) -> list[Accepted | Exception]:
        """Store what all these ask for in one transaction, each as if they had come one after another."""
        now = self._now()
        jobs = tuple({job.job_id: None for one in batch for job in one.reading.jobs})
        outcomes: list[Accepted | Exception] = []
        requests: list[CaptureRequest] = []
        enqueued_at: dict[str, float] = {}
        changed: dict[str, Incident] = {}
        with self._index.deciding(jobs) as decisions:
            last = decisions.last_incidents(jobs)
            for one in batch:
                try:
                    new, its = self._decide(one, last, now)
                except CannotStore as error:
                    outcomes.append(error)
                    continue
                last |= {incident.job_id: incident for incident in its}
                changed |= {incident.id: incident for incident in its}
                requests += new
                accepted = Accepted(
                    tuple(new), tuple(r.capture_id for r in new[:_ENQUEUE_AT_ONCE]), changed=bool(its)
                )
                enqueued_at |= dict.fromkeys(accepted.enqueue, now)
                outcomes.append(accepted)
            decisions.save(tuple(changed.values()))
            decisions.add(requests, enqueued_at=enqueued_at)
        self._recent.put({one.job_id: one for one in changed.values()}, now)
        _audit(requests)
        return outcomes

    def _decide(
        self, one: _Notification, last: Mapping[str, Incident], now: float
    ) -> tuple[list[CaptureRequest], list[Incident]]:
        """The captures that a notification asks for, and the incidents that it changes. Raises CannotStore."""
        requests: list[CaptureRequest] = []
        changed: list[Incident] = []
        for job in one.reading.jobs:
            step = self._step(job, last, now)
            if step.incident is None:
                continue
            changed.append(step.incident)
            if step.capture:
                requests.append(self._of_alert(job, step.incident, one.reading.receiver, one.sender, now))
        if requests:
            self._check_room()
        return requests, changed

    def manual(self, job_id: str, reason: str, requested_by: str) -> Accepted:
        """Somebody asks; a capture of the job that waits is the answer. Raises BadRequest, CannotStore."""
        job_id, reason = storable(job_id), storable(reason).strip()
        if len(job_id) > MAX_JOB_ID:
            raise BadRequest(f"job_id is longer than {MAX_JOB_ID} characters")
        if len(reason) > _MAX_REASON:
            raise BadRequest(f"reason is longer than {_MAX_REASON} characters")
        waiting = self._index.waiting(job_id)
        if waiting is not None:
            return Accepted((waiting.request,), (), changed=False)
        now = self._now()
        request = CaptureRequest(
            capture_id=new_capture_id(now),
            job_id=job_id,
            trigger="manual",
            reason=reason,
            requested_by=requested_by,
            requested_at=now,
        )
        self._check_room()
        return self._store_request(request)

    def due(self) -> tuple[Accepted, ...]:
        """Captures whose time has come: of hangs that last, and scheduled. Closes forgotten incidents."""
        now, config = self._now(), self._config()
        policy = policy_of(config)
        accepted = []
        for incident in self._index.open_incidents():
            if incidents.forgotten(incident, policy, now) or incidents.is_due(incident, policy, now):
                accepted.append(self._again(incident.job_id, policy, now))
        for schedule in config.schedules:
            # Captures from a time that a clock set back has yet to reach are none.
            last = self._index.last_scheduled_at(schedule.job_id, before=now + schedule.every)
            if last is None or now - last >= schedule.every:
                accepted.append(self._scheduled(schedule.job_id, schedule.reason, schedule.every, now))
        return tuple(one for one in accepted if one.requests)

    def _again(self, job_id: str, policy: Policy, now: float) -> Accepted:
        with self._index.deciding([job_id]) as decisions:
            incident = decisions.last_incidents([job_id]).get(job_id)
            if incident is None or not incident.is_open:
                return Accepted((), (), changed=False)
            if incidents.forgotten(incident, policy, now):
                decisions.save([incidents.close(incident, now)])
                return Accepted((), (), changed=True)
            if not incidents.is_due(incident, policy, now):
                return Accepted((), (), changed=False)
            capture_id = new_capture_id(max(now, incident.last_capture_at or now), after=incident.id)
            incident = incidents.captured(incident, now)
            request = CaptureRequest(
                capture_id=capture_id,
                job_id=job_id,
                trigger="alert",
                reason=f"the hang lasts: capture {incident.captures} of its incident",
                requested_by="hangscope",
                requested_at=now,
                incident_id=incident.id,
                number=incident.captures,
            )
            decisions.save([incident])
            decisions.add([request], enqueued_at={request.capture_id: now})
        _audit([request])
        return Accepted((request,), (request.capture_id,), changed=True)

    def _scheduled(self, job_id: str, reason: str, every: float, now: float) -> Accepted:
        request = CaptureRequest(
            capture_id=new_capture_id(now),
            job_id=job_id,
            trigger="schedule",
            reason=reason,
            requested_by="hangscope",
            requested_at=now,
        )
        with self._index.deciding([job_id]) as decisions:
            last = decisions.last_scheduled_at(job_id, before=now + every)
            if last is not None and now - last < every:  # another snapshotter was first
                return Accepted((), (), changed=False)
            decisions.add([request], enqueued_at={request.capture_id: now})
        _audit([request])
        return Accepted((request,), (request.capture_id,), changed=True)

    def _store_request(self, request: CaptureRequest) -> Accepted:
        with self._index.deciding([request.job_id]) as decisions:
            decisions.add([request], enqueued_at={request.capture_id: request.requested_at})
        _audit([request])
        return Accepted((request,), (request.capture_id,), changed=True)

    def _step(self, job: JobAlerts, last: Mapping[str, Incident], now: float) -> Step:
        known = last.get(job.job_id)
        return incidents.observe(
            known,
            job.job_id,
            job.events,
            policy_of(self._config()),
            now=now,
            new_id=lambda: new_capture_id(now, after=known.id if known else ""),
        )

    @staticmethod
    def _of_alert(
        job: JobAlerts, incident: Incident, receiver: str, sender: str, now: float
    ) -> CaptureRequest:
        alert = job.alert()
        return CaptureRequest(
            capture_id=new_capture_id(now, after=incident.id),
            job_id=job.job_id,
            trigger="alert",
            reason=alert.labels.get("alertname", "") or "alert",
            requested_by=f"alertmanager {receiver} from {sender}",
            requested_at=now,
            incident_id=incident.id,
            number=incident.captures,
            alert=alert,
        )

    def _check_room(self) -> None:
        try:
            room = self._store.room()
        except OSError as error:
            raise CannotStore(f"the bundles' place cannot be used: {error}") from error
        if room is not None and room.free_bytes < _MIN_FREE_BYTES:
            raise CannotStore(
                f"only {room.free_bytes} bytes are left for bundles",
                "make room, or lower storage.max_size and run gc",
            )


class _Recent:
    """Incidents as they were seconds ago, so that a storm of repetitions costs no look-up each.

    What is a repetition of a firing alert to that state is one to the present state too, whoever changed it
    meanwhile; an alert that ended is always looked up.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, Incident]] = {}

    def get(self, jobs: Sequence[JobAlerts], now: float) -> dict[str, Incident] | None:
        """The incidents of these jobs, None if the index has to be asked."""
        found: dict[str, Incident] = {}
        for one in jobs:
            read_at, incident = self._known.get(one.job_id, (0.0, None))
            if incident is None or not 0 <= now - read_at < _RECENT_SECONDS:
                return None
            if not all(event.firing for event in one.events):
                return None
            found[one.job_id] = incident
        return found

    def put(self, incidents_by_job: Mapping[str, Incident], now: float) -> None:
        if len(self._known) > _RECENT_JOBS:
            self._known = {}
        self._known.update({job_id: (now, incident) for job_id, incident in incidents_by_job.items()})


def policy_of(config: Config) -> Policy:
    given = config.incidents
    return Policy(
        cool_down=given.cool_down,
        recapture_after=given.recapture_after,
        max_captures=given.max_captures,
        forget_after=given.forget_after,
    )


def _audit(requests: Sequence[CaptureRequest]) -> None:
    for one in requests:
        audit(
            "capture_requested",
            capture_id=one.capture_id,
            job_id=one.job_id,
            trigger=one.trigger,
            reason=one.reason,
            requested_by=one.requested_by,
        )
