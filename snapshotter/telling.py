"""What a one-shot capture tells on a terminal: how far it is, and whose stacks it did not get."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from snapshotter.capture.node import Progress
from snapshotter.gathered import Gathered
from snapshotter.stacks.wording import shown

_MOST_REASONS = 20


class Teller:
    """Progress on a terminal as one line that changes, elsewhere as a line now and then."""

    def __init__(self, err: TextIO, now: Callable[[], float], every: float = 1.0) -> None:
        self._err = err
        self._now = now
        self._terminal = err.isatty()
        self._every = 0.1 if self._terminal else every
        self._last = ("", 0.0)

    def __call__(self, step: Progress) -> None:
        stage, at = self._last
        ended = step.done == step.total
        if stage == step.stage and not ended and self._now() - at < self._every:
            return
        self._last = (step.stage, self._now())
        line = f"{shown(step.node)}: {step.stage}: {step.done} of {step.total}"
        end = "\n" if ended or not self._terminal else ""
        print(f"\r\x1b[K{line}" if self._terminal else line, end=end, file=self._err, flush=True)


def unread(gathered: tuple[Gathered, ...]) -> tuple[str, ...]:
    """Whose stacks could not be read and why, one line for each reason of each node."""
    pids: dict[tuple[str, str], list[int]] = {}
    for process in (process for one in gathered for process in one.processes):
        if process.outcome not in ("ok", "not_python"):
            reason = f"{process.outcome}, {process.error}" if process.error else process.outcome
            pids.setdefault((process.node, reason), []).append(process.pid)
    lines = [
        f"{node}: {len(its)} process{'es' if len(its) > 1 else ''} (pid {', '.join(map(str, its[:8]))}"
        f"{', …' if len(its) > 8 else ''}): {reason}"
        for (node, reason), its in pids.items()
    ]
    more = len(lines) - _MOST_REASONS
    return (
        (*lines[:_MOST_REASONS], f"{more} more reasons are in what is written") if more > 0 else tuple(lines)
    )
