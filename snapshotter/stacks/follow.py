"""From a rank that waits for data into its DataLoader workers: which of them is to blame, and with what."""

from __future__ import annotations

from dataclasses import dataclass

from snapshotter.stacks.activity import Activity
from snapshotter.stacks.case import Case, RankView
from snapshotter.stacks.digest import ProcessFacts


@dataclass(frozen=True, slots=True)
class Followed:
    """The worker that tells most. `trouble`: blocked, stopped, ended, busy; "" where all are idle."""

    worker: ProcessFacts
    activity: Activity
    trouble: str


_ORDER = ("stopped", "blocked", "ended", "busy", "")


def follow(case: Case, view: RankView) -> Followed | None:
    """The worker that keeps this rank waiting; None where no worker was seen."""
    found = [_followed(case, worker) for worker in view.workers]
    return min(found, key=lambda one: _ORDER.index(one.trouble), default=None)


def _followed(case: Case, worker: ProcessFacts) -> Followed:
    activity = case.activity(worker.stack)
    states = set(worker.states)
    if states and states <= {"T", "t"}:
        trouble = "stopped"
    elif worker.outcome == "uninterruptible" or states == {"D"}:
        trouble = "blocked"
    elif worker.outcome == "gone" or (states and states <= {"Z", "X"}):
        trouble = "ended"
    elif worker.stack and activity.kind not in ("idle", "plumbing"):
        trouble = "busy"
    else:
        trouble = ""
    return Followed(worker, activity, trouble)


def workers_move(case: Case, view: RankView) -> bool:
    """Does the rank wait for workers that get on?"""
    return view.now.kind == "dataloader" and any(worker.motion == "progressing" for worker in view.workers)
