"""Alertmanager's webhook, version 4: reading a notification, and which of its alerts ask for a capture.

Fields that newer Alertmanagers add are accepted (0.33 sends `notification_reason`). The rule:

- an alert counts if it has a `job_id` label of at most 1,024 characters;
- it asks for a capture if its `alertname` matches `incidents.alertnames`, or its label `hangscope_capture` is
  `true`; the label `false` forbids;
- an alert with a `capture_id` label is our own verdict come back (`TrainingHangDiagnosed`) and never asks.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial

import msgspec

from snapshotter.bundle.schema import AlertInfo, storable
from snapshotter.errors import BadRequest
from snapshotter.incidents import AlertEvent

MAX_JOB_ID = 1024
_MAX_VALUE = 2000  # characters of a label or annotation that are kept
_MAX_PAIRS = 64  # labels or annotations of an alert that are kept
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Alert(msgspec.Struct, frozen=True, rename="camel"):
    """One alert of a notification. Times are RFC 3339; `ends_at` of a firing alert is the year 1."""

    labels: dict[str, str]
    status: str = "firing"
    annotations: dict[str, str] = {}
    starts_at: str = ""
    ends_at: str = ""
    generator_url: str = msgspec.field(default="", name="generatorURL")
    fingerprint: str = ""


class Notification(msgspec.Struct, frozen=True, rename="camel"):
    """The body of the webhook; `truncated_alerts` says how many `max_alerts` left out."""

    version: str
    alerts: list[Alert]
    receiver: str = ""
    external_url: str = msgspec.field(default="", name="externalURL")
    truncated_alerts: int = 0


_NOTIFICATION = msgspec.json.Decoder(Notification)


@dataclass(frozen=True, slots=True)
class JobAlerts:
    """All alerts of one notification that concern one job."""

    job_id: str
    events: tuple[AlertEvent, ...]
    alert: Callable[[], AlertInfo]  # the first firing one, else the first


@dataclass(frozen=True, slots=True)
class Reading:
    """What a notification says to us, job by job."""

    receiver: str
    jobs: tuple[JobAlerts, ...]
    ignored: int  # alerts that do not concern us


@dataclass(slots=True)
class _Gathered:
    events: list[AlertEvent] = field(default_factory=list)
    chosen: Alert | None = None


def parse(body: bytes) -> Notification:
    """Read the body of a webhook. Raises BadRequest with what is wrong."""
    try:
        notification = _NOTIFICATION.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        notification = _parse_tolerantly(body, str(error))
    if notification.version != "4":
        raise BadRequest(
            f"webhook version {notification.version[:20]!r} is not understood",
            'this is Alertmanager\'s webhook: send "version": "4"',
        )
    return notification


def _parse_tolerantly(body: bytes, problem: str) -> Notification:
    """Again with Python's own reader, which takes half surrogate pairs and bytes that are not UTF-8."""
    try:
        data = json.loads(body.decode("utf-8", "replace"), parse_constant=lambda name: None)
        return msgspec.convert(data, Notification)
    except msgspec.ValidationError as error:
        problem = str(error)
    except (ValueError, RecursionError):
        pass
    raise BadRequest(f"not an Alertmanager notification: {problem}", "send Alertmanager's webhook, version 4")


def read(notification: Notification, alertnames: Iterable[str]) -> Reading:
    """Sort the alerts that ask for captures by job; `alertnames` are globs."""
    wanted = _pattern(tuple(alertnames))
    jobs: dict[str, _Gathered] = {}
    ignored = 0
    for alert in notification.alerts:
        job_id = storable(alert.labels.get("job_id", ""))
        if not 0 < len(job_id) <= MAX_JOB_ID or not _asks(alert, wanted):
            ignored += 1
            continue
        gathered = jobs.setdefault(job_id, _Gathered())
        gathered.events.append(_event(alert))
        if gathered.chosen is None or (gathered.chosen.status != "firing" and alert.status == "firing"):
            gathered.chosen = alert
    return Reading(
        receiver=_short(notification.receiver),
        jobs=tuple(
            JobAlerts(job_id, tuple(gathered.events), partial(_info, gathered.chosen, notification))
            for job_id, gathered in jobs.items()
            if gathered.chosen is not None
        ),
        ignored=ignored,
    )


@cache
def _pattern(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, globs)) or r"(?!)")


def unix_seconds(text: str) -> float | None:
    """An RFC 3339 time as Unix seconds; None for the year 1 (Go's zero time) and for what is no time."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    if time.year < 1900:
        return None
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH).total_seconds()


def _asks(alert: Alert, wanted: re.Pattern[str]) -> bool:
    choice = alert.labels.get("hangscope_capture")
    if "capture_id" in alert.labels or choice == "false":
        return False
    return choice == "true" or wanted.match(alert.labels.get("alertname", "")) is not None


def _event(alert: Alert) -> AlertEvent:
    firing = alert.status != "resolved"
    return AlertEvent(
        fingerprint=_fingerprint(alert),
        firing=firing,
        starts_at=unix_seconds(alert.starts_at),
        ends_at=None if firing else unix_seconds(alert.ends_at),
    )


def _fingerprint(alert: Alert) -> str:
    """Alertmanager's own where it looks like one, else a hash of the labels, the alert's identity."""
    if re.fullmatch(r"[0-9a-f]{1,64}", alert.fingerprint):
        return alert.fingerprint
    labels = json.dumps(sorted(alert.labels.items()))
    return "l" + hashlib.sha256(labels.encode()).hexdigest()[:32]


def _info(alert: Alert, notification: Notification) -> AlertInfo:
    return AlertInfo(
        labels=_short_pairs(alert.labels),
        annotations=_short_pairs(alert.annotations),
        starts_at=unix_seconds(alert.starts_at),
        fingerprint=_fingerprint(alert),
        generator_url=_short(alert.generator_url),
        external_url=_short(notification.external_url),
        receiver=_short(notification.receiver),
    )


def _short_pairs(pairs: dict[str, str]) -> dict[str, str]:
    return {_short(key): _short(value) for key, value in list(pairs.items())[:_MAX_PAIRS]}


def _short(text: str) -> str:
    text = storable(text[: _MAX_VALUE + 1])
    return text if len(text) <= _MAX_VALUE else text[:_MAX_VALUE] + "…"
