"""What one thread is doing, told from its stack by the knowledge of frames."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from snapshotter.stacks.knowledge import DECISIVE, WAITS, Kind, Knowledge, cause_of
from snapshotter.stacks.model import Frame
from snapshotter.stacks.verdict import Cause

# An unknown function takes the meaning of a caller's name (read_block, acquire_slot) only from close by.
_NEAR = 3

_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3\.|^<|^$")

_VARIANT = re.compile(
    r"(?:_coalesced|_into_tensor|_tensor|_object|_list|_single|_multigpu|_base|_async|_out|_)+$"
)
_PREFIX = re.compile(r"^_*(?:grouped_|hierarchical_|monitored_)?")
_OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "reducescatter": "reduce_scatter",
}


_OPEN_ENDED = frozenset({"wait", "wait_tensor", "result", "synchronize"})


@dataclass(frozen=True, slots=True)
class Activity:
    """`frame` is where it happens: the innermost frame that is not plumbing.

    `anchor` is the index of that frame. For a wait, `operation` is the collective as far as the stack tells
    ("" where it goes together with any). `site` is the code outside of it that called for it, the job's own
    where that can be told. `in_module`: own work inside the forward or backward of a module. `queues`: its own
    work waits for a lock that another rank may hold.
    """

    kind: Kind
    frame: Frame | None
    anchor: int = 0
    operation: str = ""
    site: Frame | None = None
    in_module: bool = False
    queues: bool = False

    @property
    def waits(self) -> bool:
        """Does it wait for other ranks?"""
        return self.kind in WAITS

    @property
    def cause(self) -> Cause:
        """The cause that a report names."""
        return cause_of(self.kind)

    @property
    def place(self) -> tuple[str, str]:
        """Function and file, which tell classes of ranks apart whatever the line."""
        return (self.frame.name, self.frame.filename) if self.frame else ("", "")


NOTHING = Activity("plumbing", None)


def operation_of(name: str) -> str:
    """The collective behind a function's name: `all_gather_into_tensor` is an all_gather."""
    plain = _PREFIX.sub("", name.rsplit(".", 1)[-1])
    plain = _VARIANT.sub("", plain) or name
    return _OPERATIONS.get(plain, plain)


def classify(frames: tuple[Frame, ...], knowledge: Knowledge) -> Activity:
    """The activity of a thread with these frames, innermost first.

    A wait for others counts only if nothing but plumbing lies inside it. Own work (compute, a lock, a read)
    takes the purpose of the nearest outer frame that gives one: a read called from a dataset is data.
    """
    own: Kind | None = None
    anchor = 0
    fallback: Kind | None = None
    fallback_at = 0
    for index, frame in enumerate(frames):
        entry = knowledge.look_up(frame)
        kind = entry.kind
        if kind == "plumbing":
            # Sockets and selectors are means: what uses them says more, and a child process most of all.
            telling = fallback in (None, "network") or entry.fallback == "subprocess"
            if entry.fallback and telling and own is None:
                fallback, fallback_at = entry.fallback, index
        elif kind in WAITS:
            if own is None:
                return _waiting(index, frames, knowledge)
        elif kind in DECISIVE:
            if own is None:
                return Activity(kind, frame, index, site=_caller(frames, index), queues=entry.unspecific)
            kind = "data" if kind == "idle" else kind
            return Activity(kind, frames[anchor], anchor, site=_caller(frames, anchor))
        elif own is None:
            own, anchor = kind, index
        elif own == "user" and kind not in ("user", "compute") and index - anchor <= _NEAR:
            own = kind
    if own is not None:
        if own == "user" and fallback is not None:
            own = fallback
        inside = _inside_module(frames, anchor)
        return Activity(own, frames[anchor], anchor, site=_caller(frames, anchor), in_module=inside)
    if fallback is not None:
        site = _caller(frames, fallback_at)
        return Activity(fallback, frames[fallback_at], fallback_at, site=site)
    return Activity("plumbing", frames[0]) if frames else NOTHING


def _caller(frames: tuple[Frame, ...], anchor: int) -> Frame | None:
    """The job's own code that called library code; None where the frame itself is the job's own."""
    if not _LIBRARY.search(frames[anchor].filename):
        return None
    callers = frames[anchor + 1 :]
    return next((frame for frame in callers if not _LIBRARY.search(frame.filename)), None)


def as_computing(activity: Activity) -> Activity:
    """The same place, known to compute: unknown code that is native or a module's, and uses the processor."""
    return replace(activity, kind="compute")


def _inside_module(frames: tuple[Frame, ...], anchor: int) -> bool:
    """Called through torch.nn.Module's __call__ or by autograd; the frame itself or its near callers."""
    callers = frames[anchor + 1 :]
    return any(frame.name.endswith(("_call_impl", "_engine_run_backward")) for frame in callers)


def _waiting(index: int, frames: tuple[Frame, ...], knowledge: Knowledge) -> Activity:
    frame = frames[index]
    entry = knowledge.look_up(frame)
    kind = entry.kind
    operation = "" if entry.unspecific else operation_of(frame.name)
    open_ended = entry.unspecific or operation in _OPEN_ENDED
    operation = "" if open_ended else operation
    site: Frame | None = None
    for at, outer in enumerate(frames[index + 1 :], index + 1):
        meaning = knowledge.look_up(outer)
        if meaning.kind == "plumbing":
            continue
        if kind == "device" and meaning.kind == "compile":
            # A compiler tries what it made on the device: for itself, not for others.
            return Activity("compile", outer, at, site=_caller(frames, at))
        if meaning.kind not in WAITS:
            site = outer
            break
        if open_ended and not meaning.unspecific and (asked := operation_of(outer.name)) not in _OPEN_ENDED:
            # `wait` of a request: what was asked for is in an outer frame.
            kind = meaning.kind
            operation = operation or asked
    return Activity(kind, frame, index, operation, site)
