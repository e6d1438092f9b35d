"""What travels between the service and an agent: an order, and the answer of a node, both JSON.

An order that wants the answer merged, too, gets `{"answer": …, "tree": …}`; without it, and from an agent that
does not know of trees, comes the answer alone.

An answer is checked before anything is built on it: the agent of a node may be of another version, broken,
or somebody else. Its tree is believed of the processes in the answer, and of nothing else.
"""

from __future__ import annotations

import dataclasses
import logging
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from snapshotter.encoding import encode
from snapshotter.gathered import Gathered, pack
from snapshotter.stacks import premerge
from snapshotter.stacks.model import Frame, NodeAnswer, Process, Sample, Thread
from snapshotter.stacks.premerge import GroupPart, NodeTree, ProcessPart
from snapshotter.stacks.rankset import MAX_RANK

log = logging.getLogger(__name__)

LARGEST_ORDER = 64 * 1024  # bytes
LARGEST_ANSWER = 256 * 1024 * 1024  # bytes, uncompressed
_SCHEMA_VERSION = 1
_MOST_PROCESSES = 16384
_SMALLEST_FRAME = 32  # bytes of JSON

T = TypeVar("T")


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
    with_tree: bool = False  # the answer merged, beside it


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


class _Reply(msgspec.Struct):
    answer: msgspec.Raw = msgspec.Raw()
    tree: msgspec.Raw = msgspec.Raw()


class _Tree(msgspec.Struct):
    """A tree whose tables stay undecoded until they are new: most nodes of a job have the same ones."""

    frames: msgspec.Raw
    stacks: msgspec.Raw
    groups: msgspec.Raw
    processes: tuple[ProcessPart, ...]
    schema_version: int


def reply(answer: NodeAnswer, order: Order) -> bytes:
    """What an agent says to an order that this is the answer to."""
    encoded = encode(answer)
    if not order.with_tree:
        return encoded
    tree = dataclasses.replace(premerge.premerge(answer), answers=())
    return msgspec.json.encode(_Reply(msgspec.Raw(encoded), msgspec.Raw(encode(tree))))


class AnswerReader:
    """Reads what agents say to one order; safe to use from many threads. Equal stacks become one object."""

    def __init__(self) -> None:
        self._stacks: dict[bytes, tuple[Frame, ...]] = {}
        self._tables: dict[tuple[int, bytes], Any] = {}

    def read(self, data: bytes) -> Gathered:
        """Raises NotAnAnswer. A tree that is not of the answer it came with is left, and the answer merged."""
        try:
            said = _REPLY.decode(data)
            encoded = bytes(said.answer) or data
            answer = _ANSWER.decode(encoded)
            for process in answer.processes:
                for threads in (process.native_threads, *(sample.threads for sample in process.samples)):
                    for thread in threads:
                        self._stack(thread.frames)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NotAnAnswer(f"it is no node's answer: {error}") from error
        if said.tree:
            try:
                return Gathered(pack(encoded), self._tree(said.tree, answer, len(encoded)))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
                named = answer.node[:100]
                log.warning("the tree of %r is refused: %s; its stacks are merged here", named, error)
        whole = typing.cast(NodeAnswer, self._whole(answer, NodeAnswer))
        return Gathered(pack(encoded), premerge.premerge(whole))

    def _tree(self, raw: msgspec.Raw, answer: Any, size: int) -> NodeTree:
        """Raises ValueError and msgspec's errors for a tree that cannot be that of `answer`, of `size` bytes."""
        read = _TREE.decode(raw)
        if read.schema_version > premerge.SCHEMA_VERSION:
            raise ValueError("it is of a later version than this program")
        listed = [_identity(process) for process in answer.processes]
        if listed != [_identity(part.facts) for part in read.processes]:
            raise ValueError("it is of other processes than the answer")
        tree = NodeTree(
            answers=(typing.cast(NodeAnswer, self._whole(answer, NodeAnswer, processes=())),),
            frames=self._table(read.frames, _FRAMES),
            stacks=self._table(read.stacks, _STACKS),
            groups=self._table(read.groups, _GROUPS),
            processes=read.processes,
        )
        premerge.check(tree, most_frames=size // _SMALLEST_FRAME)
        return tree

    def _table(self, raw: msgspec.Raw, decoder: msgspec.json.Decoder[T]) -> T:
        key = id(decoder), bytes(raw)
        known = self._tables.get(key)
        if known is None:
            known = self._tables.setdefault(key, decoder.decode(raw))
        return typing.cast(T, known)

    def _whole(self, given: Any, kind: type, **instead: Any) -> Any:
        """The dataclass that a mirrored struct stands for, with some fields other than there."""
        values = []
        for name, inner in _PLANS[kind]:
            value = instead[name] if name in instead else getattr(given, name)
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


def _identity(process: Any) -> tuple[object, ...]:
    return process.node, process.pid, process.role, process.rank, process.outcome


def check(gathered: Gathered, *, node: str | None, job_id: str) -> None:
    """Raises NotAnAnswer where an answer cannot be that of `node` (None: any) about `job_id` (empty: any)."""
    answer, processes = gathered.answer, gathered.processes
    problems = (
        (answer.schema_version > _SCHEMA_VERSION, "it is of a later version than this program"),
        (not answer.node, "it names no node"),
        (node is not None and answer.node != node, f"it calls itself {answer.node[:100]!r}"),
        (bool(job_id) and answer.job_id != job_id, f"it speaks of job {answer.job_id[:100]!r}"),
        (answer.finished_at < answer.started_at, "it ended before it began"),
        (len(processes) > _MOST_PROCESSES, f"it has more than {_MOST_PROCESSES} processes"),
        (not all(0 <= rank <= MAX_RANK for rank in answer.expected_ranks), "it expects impossible ranks"),
        (len({one.pid for one in processes}) < len(processes), "it has a process twice"),
    )
    for wrong, problem in problems:
        if wrong:
            raise NotAnAnswer(problem)
    for process in processes:
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
_REPLY = msgspec.json.Decoder(_Reply)
_ANSWER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_mirror(NodeAnswer))
_TREE = msgspec.json.Decoder(_Tree)
_FRAMES = msgspec.json.Decoder(tuple[Frame, ...])
_STACKS = msgspec.json.Decoder(tuple[tuple[int, ...], ...])
_GROUPS = msgspec.json.Decoder(tuple[GroupPart, ...])
