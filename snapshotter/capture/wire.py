"""What travels between the service and an agent: an order, and the answer of a node, both JSON.

An answer is checked before anything is built on it: the agent of a node may be of another version, broken,
or somebody else. Equal stacks become one object, as thousands of ranks have few different ones.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from snapshotter.stacks.model import Frame, NodeAnswer, Process, Sample, Thread
from snapshotter.stacks.rankset import MAX_RANK

LARGEST_ORDER = 64 * 1024  # bytes
LARGEST_ANSWER = 256 * 1024 * 1024  # bytes, uncompressed
_SCHEMA_VERSION = 1
_MOST_PROCESSES = 16384


class NotAnAnswer(ValueError):
    """What came is no answer to what was asked; the text says what is wrong with it."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is asked to capture, and for whom. Fields it does not know are ignored."""

    job_id: str = ""  # empty: whatever training runs there
    capture_id: str = ""
    reason: str = ""
    requested_by: str = ""
    interval: float = 5.0  # seconds
    deadline: float = 60.0  # seconds
    native_frames: bool = False
    native_pids: tuple[int, ...] = ()  # the C frames of these, and nothing else
    ask_nccl: bool = True


def decode_order(data: bytes) -> Order:
    """Raises NotAnAnswer, which names the field and what was expected."""
    try:
        order = msgspec.json.decode(data or b"{}", type=Order)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotAnAnswer(str(error)) from error
    bounds = (
        (0 <= order.interval <= 60, "interval must be 0 to 60 seconds"),
        (1 <= order.deadline <= 600, "deadline must be 1 to 600 seconds"),
        (len(order.native_pids) <= 64, "native_pids has more than 64 processes"),
        (len(order.job_id) <= 1024, "job_id is longer than 1024 characters"),
    )
    for good, problem in bounds:
        if not good:
            raise NotAnAnswer(problem)
    return order


def encode(message: Order | NodeAnswer) -> bytes:
    return msgspec.json.encode(message)


class AnswerReader:
    """Decodes the answers of one capture; safe to use from many threads."""

    def __init__(self) -> None:
        self._stacks: dict[bytes, tuple[Frame, ...]] = {}

    def decode(self, data: bytes) -> NodeAnswer:
        """Raises NotAnAnswer."""
        try:
            return typing.cast(NodeAnswer, self._whole(_DECODER.decode(data), NodeAnswer))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NotAnAnswer(f"it is no node's answer: {error}") from error

    def _whole(self, given: Any, kind: type) -> Any:
        """The dataclass that a mirrored struct stands for."""
        values = []
        for name, inner in _PLANS[kind]:
            value = getattr(given, name)
            if inner is Frame:
                value = self._stack(value)
            elif inner is not None:
                value = tuple(self._whole(one, inner) for one in value)
            values.append(value)
        return kind(*values)

    def _stack(self, raw: msgspec.Raw) -> tuple[Frame, ...]:
        key = bytes(raw)
        known = self._stacks.get(key)
        if known is None:
            known = self._stacks.setdefault(key, _FRAMES.decode(key))
        return known


def check(answer: NodeAnswer, *, node: str | None, job_id: str) -> None:
    """Raises NotAnAnswer where an answer cannot be that of `node` (None: any) about `job_id` (empty: any)."""
    problems = (
        (answer.schema_version > _SCHEMA_VERSION, "it is of a later version than this program"),
        (not answer.node, "it names no node"),
        (node is not None and answer.node != node, f"it calls itself {answer.node[:100]!r}"),
        (bool(job_id) and answer.job_id != job_id, f"it speaks of job {answer.job_id[:100]!r}"),
        (answer.finished_at < answer.started_at, "it ended before it began"),
        (len(answer.processes) > _MOST_PROCESSES, f"it has more than {_MOST_PROCESSES} processes"),
        (not all(0 <= rank <= MAX_RANK for rank in answer.expected_ranks), "it expects impossible ranks"),
        (len({one.pid for one in answer.processes}) < len(answer.processes), "it has a process twice"),
    )
    for wrong, problem in problems:
        if wrong:
            raise NotAnAnswer(problem)
    for process in answer.processes:
        if process.node != answer.node:
            raise NotAnAnswer(f"it has a process of another node, {process.node[:100]!r}")
        if process.rank is not None and not 0 <= process.rank <= MAX_RANK:
            raise NotAnAnswer(f"it has a process of rank {process.rank}")
        if process.pid <= 0:
            raise NotAnAnswer(f"it has a process with pid {process.pid}")


def _inner(hint: object) -> type | None:
    """The dataclass that a field of type tuple[…, ...] holds, where it is one that is mirrored."""
    arguments = typing.get_args(hint)
    mirrored: tuple[type, ...] = (Frame, Thread, Sample, Process)
    if typing.get_origin(hint) is tuple and len(arguments) == 2 and arguments[0] in mirrored:
        return typing.cast(type, arguments[0])
    return None


def _mirror(kind: type) -> type[msgspec.Struct]:
    """A struct like a dataclass, but that leaves stacks undecoded."""
    hints = typing.get_type_hints(kind)
    fields: list[Any] = []
    plan: list[tuple[str, type | None]] = []
    for one in dataclasses.fields(kind):
        inner = _inner(hints[one.name])
        plan.append((one.name, inner))
        hint: Any = hints[one.name]
        default: Any = one.default
        if inner is Frame:
            hint = msgspec.Raw
            default = msgspec.Raw(b"[]") if default == () else default
        elif inner is not None:
            hint = tuple[_mirror(inner), ...]  # type: ignore[misc]
        if one.default_factory is not dataclasses.MISSING:
            factory: Callable[[], Any] = one.default_factory
            fields.append((one.name, hint, msgspec.field(default_factory=factory)))
        elif default is dataclasses.MISSING:
            fields.append((one.name, hint))
        else:
            fields.append((one.name, hint, default))
    _PLANS[kind] = tuple(plan)
    return msgspec.defstruct(f"_{kind.__name__}", fields)


_PLANS: dict[type, tuple[tuple[str, type | None], ...]] = {}
_DECODER = msgspec.json.Decoder(_mirror(NodeAnswer))
_FRAMES = msgspec.json.Decoder(tuple[Frame, ...])
