"""When one hang asks for a capture: the state machine of an incident, pure.

An incident is one hang of one job, from its first firing alert until all its alerts are resolved. However the
notifications about it repeat, are regrouped or come twice from a pair of Alertmanagers, it is captured once,
and again at growing intervals while it lasts.

Alerts are told apart by fingerprint; one that fires again after its end is the same message arriving late if
it started before that end, and a new hang if it started afterwards.

The clock may be set, forwards and backwards: no interval is waited for longer than it is long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

# Alerts that are told apart per job; further ones count, but their end does not.
_MAX_ALERTS = 1000
# How old `last_seen_at` may grow before a mere repetition is worth a write.
_SEEN_RESOLUTION = 60.0


@dataclass(frozen=True, slots=True)
class Policy:
    """How often alerts may ask for captures; seconds."""

    cool_down: float = 600.0  # at least this between two captures of a job
    recapture_after: float = 900.0  # from the first to the second of an incident; doubled each time
    max_captures: int = 4  # of one incident
    forget_after: float = 86400.0  # an incident of which nothing was heard for so long is over


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """One alert of a notification. Unix seconds by Prometheus' clock, None: not said."""

    fingerprint: str
    firing: bool
    starts_at: float | None = None
    ends_at: float | None = None


@dataclass(frozen=True, slots=True)
class Incident:
    """One hang of one job, as far as alerts told."""

    id: str
    job_id: str
    opened_at: float
    last_seen_at: float  # when an alert of it last came in
    closed_at: float | None = None  # None: it lasts
    firing: Mapping[str, float] = field(default_factory=dict)  # fingerprint -> when the alert started
    ended: Mapping[str, float] = field(default_factory=dict)  # fingerprint -> when it ended
    captures: int = 0
    last_capture_at: float | None = None

    @property
    def is_open(self) -> bool:
        return self.closed_at is None


@dataclass(frozen=True, slots=True)
class Step:
    """What a notification changed: the incident to store (None: nothing to store), and whether to capture."""

    incident: Incident | None
    capture: bool = False


def observe(
    last: Incident | None,
    job_id: str,
    events: Iterable[AlertEvent],
    policy: Policy,
    *,
    now: float,
    new_id: Callable[[], str],
) -> Step:
    """Take in one notification's alerts of one job; `last` is the job's newest incident, open or closed."""
    events = tuple(events)
    if last is not None and _says_nothing_new(last, events, now):
        return Step(None)
    firing = dict(last.firing) if last else {}
    ended = dict(last.ended) if last else {}
    heard_firing = False
    for event in sorted(events, key=lambda one: one.firing):  # ends first: a group may hold both of one alert
        if event.firing:
            known = firing.get(event.fingerprint)
            started = event.starts_at if event.starts_at is not None else now if known is None else known
            if started < ended.get(event.fingerprint, started) <= now + policy.cool_down:
                continue  # a late copy; an end that is yet to come is of a clock that was set back since
            heard_firing = True
            if known is not None or len(firing) < _MAX_ALERTS:
                firing[event.fingerprint] = started if known is None else max(started, known)
        else:
            over = now if event.ends_at is None else event.ends_at
            if firing.get(event.fingerprint, over) <= over:
                firing.pop(event.fingerprint, None)
                ended[event.fingerprint] = max(over, ended.get(event.fingerprint, over))
    ended = _newest({key: end for key, end in ended.items() if key not in firing}, _MAX_ALERTS)

    if not firing:
        if last is None or not (last.is_open or ended != last.ended):
            return Step(None)
        closed_at = last.closed_at if last.closed_at is not None else now
        return Step(replace(last, closed_at=closed_at, firing=firing, ended=ended))
    if not heard_firing:  # some of its alerts ended, others still fire
        assert last is not None
        changed = firing != last.firing or ended != last.ended
        return Step(replace(last, firing=firing, ended=ended) if changed else None)
    if last is not None and (last.is_open or _cooling(last, policy, now)):
        again = replace(last, closed_at=None, firing=firing, ended=ended, last_seen_at=now)
        same = replace(again, last_seen_at=last.last_seen_at) == last
        return Step(None if same and abs(now - last.last_seen_at) < _SEEN_RESOLUTION else again)
    opened = Incident(id=new_id(), job_id=job_id, opened_at=now, last_seen_at=now, firing=firing, ended=ended)
    return Step(captured(opened, now), capture=True)


def captured(incident: Incident, now: float) -> Incident:
    """The incident after one more capture was asked for."""
    return replace(incident, captures=incident.captures + 1, last_capture_at=now)


def next_capture_at(incident: Incident, policy: Policy) -> float | None:
    """When the incident is to be captured again if it lasts (Unix seconds), None: never."""
    if not incident.is_open or incident.captures >= policy.max_captures:
        return None
    if incident.last_capture_at is None:
        return incident.opened_at
    interval = policy.recapture_after * 2.0 ** max(incident.captures - 1, 0)
    return incident.last_capture_at + max(interval, policy.cool_down)


def is_due(incident: Incident, policy: Policy, now: float) -> bool:
    """Whether the incident is to be captured again now."""
    at = next_capture_at(incident, policy)
    since = incident.opened_at if incident.last_capture_at is None else incident.last_capture_at
    return at is not None and not 2 * since - at < now < at


def forgotten(incident: Incident, policy: Policy, now: float) -> bool:
    """Whether an open incident is over because nothing was heard of it: its end was lost, or its sender."""
    return incident.is_open and abs(now - incident.last_seen_at) >= policy.forget_after


def close(incident: Incident, now: float) -> Incident:
    return replace(incident, closed_at=now, firing={})


def _says_nothing_new(incident: Incident, events: Sequence[AlertEvent], now: float) -> bool:
    """Whether all that is heard is known and was heard lately: the common case, and to be cheap."""
    if not incident.is_open or not 0 <= now - incident.last_seen_at < _SEEN_RESOLUTION:
        return False
    for event in events:
        known = incident.firing.get(event.fingerprint)
        if not event.firing or known is None or (event.starts_at is not None and event.starts_at > known):
            return False
    return True


def _cooling(incident: Incident, policy: Policy, now: float) -> bool:
    return incident.last_capture_at is not None and abs(now - incident.last_capture_at) < policy.cool_down


def _newest(ended: dict[str, float], most: int) -> dict[str, float]:
    if len(ended) <= most:
        return ended
    return dict(sorted(ended.items(), key=lambda item: item[1], reverse=True)[:most])
