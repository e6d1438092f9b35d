"""From a rank that waits for its own helpers, DataLoader workers or child processes, to the one it waits for."""

from __future__ import annotations

from dataclasses import dataclass

from snapshotter.stacks.activity import Activity
from snapshotter.stacks.case import Case, RankView
from snapshotter.stacks.digest import ProcessFacts
from snapshotter.stacks.motion import IO_BYTES


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


def child_of(view: RankView) -> ProcessFacts | None:
    """The child process that this rank waits for: the youngest that is not multiprocessing's own."""
    if view.now.kind != "subprocess":
        return None
    return next((child for child in reversed(view.children) if not _keeps_house(child)), None)


def _keeps_house(child: ProcessFacts) -> bool:
    return any(frame.filename.endswith(("/resource_tracker.py", "/forkserver.py")) for frame in child.stack)


def helpers_move(view: RankView) -> bool:
    """Does the rank wait for workers or child processes that get on?"""
    if view.now.kind == "dataloader":
        return any(worker.motion == "progressing" for worker in view.workers)
    if view.now.kind == "subprocess":
        return any(child.motion == "progressing" or _transfers(child) for child in view.children)
    return False


def _transfers(child: ProcessFacts) -> bool:
    """Does a program in another language read, write or fill memory?"""
    delta = child.delta
    return delta is not None and not child.stack and ((delta.io_bytes or 0) >= IO_BYTES or delta.fills)
