"""What one thread is doing, told from its stack by the knowledge of frames."""

from __future__ import annotations

import re
from dataclasses import dataclass

from snapshotter.stacks.knowledge import DECISIVE, WAITS, Kind, Knowledge, cause_of
from snapshotter.stacks.model import Frame

_VARIANT = re.compile(
    r"^_*(?:grouped_|hierarchical_)?|(?:_coalesced|_into_tensor|_tensor|_object|_list|_single|_multigpu|_base|_async|_)+$"
)
_OPERATIONS = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}
_OPERATIONS |= {"reducescatter": "reduce_scatter", "monitored_barrier": "barrier"}


@dataclass(frozen=True, slots=True)
class Activity:
    """`frame` is where it happens: the innermost frame that is not plumbing, or the innermost of all.

    `operation` names a wait for others as far as the stack tells: all_reduce, barrier, wait, synchronize, ….
    `anchor` is the index of the frame that decided; `site` the first frame outside it that is the job's code.
    """

    kind: Kind
    frame: Frame | None
    anchor: int
    operation: str = ""
    site: Frame | None = None

    @property
    def waits(self) -> bool:
        """Does it wait for other ranks?"""
        return self.kind in WAITS

    @property
    def cause(self) -> str:
        """The cause that a report names."""
        return cause_of(self.kind)


NOTHING = Activity("plumbing", None, 0)


def operation_of(name: str) -> str:
    """The collective behind a function's name: `all_gather_into_tensor` is an all_gather."""
    plain = _VARIANT.sub("", name.rsplit(".", 1)[-1]) or name
    return _OPERATIONS.get(plain, plain)


def classify(frames: tuple[Frame, ...], knowledge: Knowledge) -> Activity:
    """The activity of a thread with these frames, innermost first.

    A wait for others counts only if nothing but plumbing lies inside it. Own work (compute, a lock, a read) takes
    the purpose of the nearest outer frame that gives one: a read called from a dataset is data.
    """
    first: tuple[Kind, int] | None = None
    fallback: tuple[Kind, int] | None = None
    for index, frame in enumerate(frames):
        entry = knowledge.look_up(frame)
        kind = entry.kind
        if kind == "plumbing":
            if entry.fallback and fallback is None and first is None:
                fallback = (entry.fallback, index)
        elif kind in WAITS:
            if first is None:
                return _waiting(kind, index, frames, knowledge)
        elif kind in DECISIVE:
            if kind == "idle" and first is not None:
                kind = "data"
            where = first[1] if first else index
            return Activity(kind, frames[where], index, site=frames[where])
        elif first is None or (first[0] == "user" and kind not in ("user", "compute")):
            first = (kind, first[1] if first else index)
    if first is not None:
        kind, index = first
        if kind == "user" and fallback is not None:
            kind = fallback[0]
        return Activity(kind, frames[index], index, site=frames[index])
    if fallback is not None:
        return Activity(fallback[0], frames[fallback[1]], fallback[1])
    return Activity("plumbing", frames[0], 0) if frames else NOTHING


def _waiting(kind: Kind, index: int, frames: tuple[Frame, ...], knowledge: Knowledge) -> Activity:
    frame = frames[index]
    operation = operation_of(frame.name)
    site: Frame | None = None
    for outer in frames[index + 1 :]:
        meaning = knowledge.look_up(outer).kind
        if operation == "wait" and meaning == "point_to_point":
            kind = "point_to_point"
        if meaning not in WAITS and meaning != "plumbing":
            site = outer
            break
    return Activity(kind, frame, index, operation, site)
