"""Two samples of one process compared: did it move?"""

from __future__ import annotations

from typing import Literal

from snapshotter.stacks.model import Sample, Thread

Motion = Literal["progressing", "spinning", "frozen", "unknown"]


def motion_of(first: Sample, second: Sample, before: Thread | None, after: Thread | None) -> Motion:
    """How the main thread got on between two samples; `unknown` if either lacks its stack."""
    if before is None or after is None:
        return "unknown"
    if before.frames != after.frames:
        return "progressing"
    return "frozen"
