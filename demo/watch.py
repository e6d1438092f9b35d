"""Prints what happens as it happens: iterations, age against limit, alerts, captures, the verdict."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from standalone.chain import Chain, get_json


@dataclass(frozen=True, slots=True)
class Verdict:
    """The newest verdict about the job, and where to read it."""

    headline: str
    url: str
    report: dict[str, Any]


class Watch:
    """Polls the chain; each change is one line with the seconds since the demo began."""

    def __init__(self, chain: Chain, job_id: str, *, say: Callable[[str], None]) -> None:
        self._chain = chain
        self._job_id = job_id
        self._say = say
        self._began = time.monotonic()
        self._said: dict[str, str] = {}
        self._next_age = 0.0
        self.found: Verdict | None = None
        self.passed_limit_at: float | None = None  # monotonic seconds when age was first seen above the limit

    def line(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began:6.1f} s  {text}")

    def look(self) -> None:
        """Ask the chain once and say what changed; what does not answer is asked again next time."""
        try:
            self._look_at_log()
            self._look_at_alerts()
            self.found = self.verdict()
        except OSError as error:
            self._once("problem", f"{error}")

    def age(self) -> float:
        """Seconds since the newest iteration, as Prometheus has it; 0 where it has none yet."""
        return self._value(f'training_log_iteration_age_seconds{{job_id="{self._job_id}"}}') or 0.0

    def wait_for_verdict(self, stop_at: float) -> Verdict | None:
        """Look until there is a verdict; None where there is none by `stop_at` (monotonic seconds)."""
        while time.monotonic() < stop_at:
            self._chain.check()
            self.look()
            if self.found is not None:
                return self.found
            time.sleep(0.3)
        return None

    def verdict(self) -> Verdict | None:
        """The newest finished capture of the job that has a report. Raises OSError."""
        base = self._chain.snapshotter_url
        captures = get_json(f"{base}/api/v1/captures?job_id={self._job_id}")["captures"]
        for capture in captures:
            name = f"capture {capture['capture_id']}"
            self._once(name, f"{name} is {capture['state']}")
        done = [capture for capture in captures if capture["verdict"] is not None]
        if not done:
            return None
        report = get_json(f"{base}/api/v1/captures/{done[0]['capture_id']}/report")
        return Verdict(report["verdict"]["headline"], f"{base}/captures/{done[0]['capture_id']}", report)

    def _look_at_log(self) -> None:
        selector = f'{{job_id="{self._job_id}"}}'
        age = self._value(f"training_log_iteration_age_seconds{selector}")
        limit = self._value(f"training_log_hang_limit_seconds{selector}")
        iteration = self._value(f"training_log_last_iteration{selector}")
        if age is None or limit is None or iteration is None:
            return
        if age > limit and self.passed_limit_at is None:
            self.passed_limit_at = time.monotonic()
            self.line(f"iteration {iteration:.0f} is {age:.1f} s old: past the limit of {limit:.0f} s")
        elif age <= limit and time.monotonic() >= self._next_age:
            self._next_age = time.monotonic() + 2.0
            self.line(f"iteration {iteration:.0f}, {age:.1f} s old, limit {limit:.0f} s")

    def _look_at_alerts(self) -> None:
        for alert in self._chain.query(f'ALERTS{{job_id="{self._job_id}"}}'):
            labels = alert["metric"]
            self._once(
                f"alert {labels['alertname']}", f"alert {labels['alertname']} is {labels['alertstate']}"
            )

    def _value(self, expression: str) -> float | None:
        found = self._chain.query(expression)
        return min((float(one["value"][1]) for one in found), default=None)

    def _once(self, subject: str, text: str) -> None:
        """Say a line where it differs from the last one about the same subject."""
        if self._said.get(subject) != text:
            self._said[subject] = text
            self.line(text)


def say(text: str) -> None:
    print(text, flush=True, file=sys.stdout)
