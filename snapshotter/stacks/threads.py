"""The other threads of a trainer, where the main thread only waits for one of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import takewhile

from snapshotter.stacks.activity import Activity
from snapshotter.stacks.digest import UNNAMED, ProcessFacts, Stack

# A main thread that only waits for another thread of its process: that one does the work.
_JOINS = frozenset({"join", "_wait_for_tstate_lock", "result", "shutdown", "exception", "as_completed"})
_THREADS = re.compile(r"/threading\.py$|/queue\.py$|/concurrent/futures/\w+\.py$|/multiprocessing/pool\.py$")
_IDLE = frozenset({"get", "_worker", "worker"})  # of a queue or a pool: there is nothing to do
_BACKGROUND = ("pin_memory", "QueueFeeder", "tqdm", "wandb", "Heartbeat", "monitor", "heartbeat")
_ENGINE = "pt_autograd"  # PyTorch 2.2 to 2.13: one for each device; py-spy may know no name of it


def joins(stack: Stack) -> bool:
    """Does the main thread wait for another one of its process to end or to answer?"""
    return not _JOINS.isdisjoint(_within_threading(stack))


def _within_threading(stack: Stack) -> list[str]:
    """The innermost functions of a stack that are those of threads, queues and pools."""
    inner = takewhile(lambda frame: _THREADS.search(frame.filename), stack)
    return [frame.name.rsplit(".", 1)[-1] for frame in inner]


def working_thread(trainer: ProcessFacts, activity: Callable[[Stack], Activity]) -> Activity | None:
    """What the thread that is waited for does; None where none of them tells."""
    for name, stack in trainer.other_stacks:
        if not _IDLE.isdisjoint(_within_threading(stack)):
            continue
        found = activity(stack)
        plain = found.kind in ("plumbing", "lock", "network", "idle")
        if not plain and not any(part in name for part in _BACKGROUND):
            return found
    return None


def engine_thread(trainer: ProcessFacts, activity: Callable[[Stack], Activity]) -> Activity | None:
    """What Python code autograd's engine runs while the main thread waits for it: hooks, backward of functions.

    None where it runs none, or computes: an operator there may itself wait for the device, and so for others.
    """
    for name, stack in trainer.other_stacks:
        if stack and (name.startswith(_ENGINE) or (name == UNNAMED and not _is_pythons(stack))):
            found = activity(stack)
            if found.kind not in ("plumbing", "compute", "idle") and not found.in_module:
                return found
    return None


def engine_moves(trainer: ProcessFacts) -> bool:
    """Did the engine's thread get on between the samples?"""
    threads = trainer.delta.threads if trainer.delta is not None else ()
    return any(
        motion == "progressing" and (name == UNNAMED or name.startswith(_ENGINE)) for name, motion in threads
    )


def _is_pythons(stack: Stack) -> bool:
    """Was the thread started by Python, not by a library in C++?"""
    return stack[-1].name.rsplit(".", 1)[-1] in ("_bootstrap", "_bootstrap_inner", "<module>")
