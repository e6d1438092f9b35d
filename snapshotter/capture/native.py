"""Whose C frames are worth a pause: outliers, and one process of every class of equal stacks."""

from __future__ import annotations

from collections.abc import Sequence

from snapshotter.stacks.model import Process

_MOST = 16  # processes of a node; each is stopped for 0.1 s, with PyTorch's libraries more than 1 s


def chosen(processes: Sequence[Process]) -> tuple[Process, ...]:
    """One of the largest class, then all others by rarity of their stacks; trainers, at most 16.

    Only what was read and is not in state D: py-spy has to stop a process to see its C frames.
    """
    classes: dict[object, list[Process]] = {}
    for process in processes:
        sample = process.samples[-1] if process.samples else None
        if (
            process.role != "trainer"
            or sample is None
            or sample.outcome != "ok"
            or sample.state in tuple("DTt")
        ):
            continue
        main = next((one for one in sample.threads if one.os_thread_id == process.pid), None)
        classes.setdefault(main and main.frames, []).append(process)
    by_rarity = sorted(classes.values(), key=len)
    if not by_rarity:
        return ()
    return (by_rarity[-1][0], *(process for group in by_rarity[:-1] for process in group))[:_MOST]
