"""A capture boiled down: each distinct stack once with the ranks that have it, and a few facts per process.

Digests of parts of a job add up to the digest of the whole, in any order, so that each node may boil down its
own and the centre adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from snapshotter.stacks.mainthread import ThreadLike, main_thread, pythons
from snapshotter.stacks.model import Frame, NodeAnswer, Outcome, Process, Role, Sample
from snapshotter.stacks.motion import Delta, Motion, delta_of, spinning_threads

UNNAMED = "unknown"

Stack = tuple[Frame, ...]  # innermost first


@dataclass(slots=True)
class ProcessFacts:
    """What the diagnosis needs to know of one process. `seat` is the rank it counts under in rank sets."""

    node: str
    role: Role
    pid: int
    rank: int | None
    outcome: Outcome
    error: str | None = None
    local_rank: int | None = None
    world_size: int | None = None
    worker: int | None = None
    gpu: str | None = None
    pod: str | None = None
    name: str = ""
    command_line: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    open_files: tuple[str, ...] = ()
    state: str | None = None
    wchan: str | None = None
    kernel_stack: tuple[str, ...] = ()
    stack: Stack = ()  # of the main thread
    later_stack: Stack | None = None  # of the main thread in the second sample
    native_stack: Stack = ()  # of the main thread with its C frames, where they were read
    active: bool = False  # py-spy's word for the main thread
    last_outcome: Outcome = "ok"  # of the last sample
    threads: int = 0
    other_stacks: tuple[tuple[str, Stack], ...] = ()  # (thread name, stack) of all threads but the main one
    blocked_threads: tuple[
        tuple[str, str], ...
    ] = ()  # (name, wchan) of kernel threads in state D, not the main
    states: tuple[str, ...] = ()  # of the main thread in each sample that knows it
    delta: Delta | None = None  # between the samples
    pauses: tuple[float, ...] = ()  # seconds that it was kept stopped, of each sample that did so
    motion: Motion = "unknown"  # of the main thread; told by the diagnosis

    @property
    def source(self) -> str:
        """`gpu33-rank0`, of a DataLoader worker `gpu33-rank0.dataloader-1`; no node where unknown."""
        prefix = f"{self.node}-" if self.node else ""
        if self.role == "trainer":
            return f"{prefix}rank{self.rank}"
        if self.role == "dataloader" and self.worker is not None:
            return f"{prefix}rank{self.rank}.dataloader-{self.worker}"
        owner = "" if self.rank is None else f"rank{self.rank}."
        return f"{prefix}{owner}{self.role}-{self.pid}"


@dataclass(slots=True)
class StackGroup:
    """All threads of one role and name with one stack: the indices of their processes, once per thread."""

    role: Role
    thread: str
    main: bool  # the main thread of its process
    stack: Stack
    processes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Digest:
    """Facts of all processes and the groups of equal stacks; plus what the nodes said as a whole."""

    processes: list[ProcessFacts] = field(default_factory=list)
    groups: list[StackGroup] = field(default_factory=list)
    nodes: list[NodeAnswer] = field(default_factory=list)  # without their processes


def best_sample(process: Process) -> Sample | None:
    """The first sample with stacks, else the first that could be read, else the first of all."""
    for sample in process.samples:
        if sample.outcome == "ok" and sample.threads:
            return sample
    for sample in process.samples:
        if sample.outcome == "ok":
            return sample
    return process.samples[0] if process.samples else None


def _tid(main: ThreadLike | None, pid: int) -> int:
    """The kernel's number of the thread that runs the program."""
    if main is None or main.thread_name == "MainThread" or main.os_thread_id is None:
        return pid
    return main.os_thread_id


@dataclass(frozen=True, slots=True)
class _Shape:
    """What processes with equal threads have in common."""

    groups: tuple[StackGroup, ...]
    main: Stack
    others: tuple[tuple[str, Stack], ...]


class Digester:
    """Adds nodes one after another; equal stacks are recognised by identity first, for speed."""

    def __init__(self) -> None:
        self.digest = Digest()
        self._same: dict[int, Stack] = {}
        self._distinct: dict[Stack, Stack] = {}
        self._plain: dict[int, Stack] = {}
        self._others: dict[tuple[tuple[str, int], ...], tuple[tuple[str, Stack], ...]] = {}
        self._motions: dict[tuple[tuple[str, Motion], ...], tuple[tuple[str, Motion], ...]] = {}
        self._groups: dict[tuple[Role, str, bool, int], StackGroup] = {}
        self._shapes: dict[tuple[object, ...], _Shape] = {}

    def intern(self, frames: Stack) -> Stack:
        """The one object that stands for this stack."""
        known = self._same.get(id(frames))
        if known is None:
            known = self._distinct.setdefault(frames, frames)
            if known is frames:
                self._same[id(frames)] = frames
        return known

    def plain(self, stack: Stack) -> Stack:
        """What the diagnosis reads of a stack from `intern`: its Python frames, which alone name a purpose."""
        known = self._plain.get(id(stack))
        if known is None:
            native = any(frame.module is not None for frame in stack)
            known = self._plain[id(stack)] = self.intern(pythons(stack)) if native else stack
        return known

    def add_node(self, answer: NodeAnswer) -> None:
        """Take in everything a node answered."""
        self.digest.nodes.append(replace(answer, processes=()))
        for process in answer.processes:
            self.add_process(process)

    def add_process(self, process: Process) -> None:
        """Take in one process: its best sample's stacks and its facts."""
        sample = best_sample(process)
        facts = ProcessFacts(
            node=process.node,
            role=process.role,
            pid=process.pid,
            rank=process.rank,
            outcome=process.outcome,
            error=process.error,
            local_rank=process.local_rank,
            world_size=process.world_size,
            worker=process.worker,
            gpu=process.gpu,
            pod=process.pod,
            name=process.name,
            command_line=process.command_line,
            environment=process.environment,
            open_files=process.open_files,
        )
        number = len(self.digest.processes)
        self.digest.processes.append(facts)
        if process.native_threads:
            native_main = main_thread(process.native_threads, process.pid)
            facts.native_stack = () if native_main is None else native_main.frames
        if sample is None:
            return
        facts.state, facts.wchan, facts.kernel_stack = sample.state, sample.wchan, sample.kernel_stack
        facts.error = facts.error or sample.error
        facts.states = tuple(taken.state for taken in process.samples if taken.state)
        facts.last_outcome = process.samples[-1].outcome
        facts.pauses = tuple(
            taken.pause_seconds for taken in process.samples if taken.pause_seconds is not None
        )
        facts.blocked_threads = tuple(
            (thread.name, thread.wchan or "")
            for thread in sample.kernel_threads
            if thread.state == "D" and thread.tid != process.pid
        )
        self.add_threads(number, sample.threads)
        last = process.samples[-1]
        if last is sample:
            return
        if not sample.threads and not last.threads:
            facts.delta = delta_of(sample, last, facts.pid)  # of another language: its counters tell
        elif last.outcome == "ok" and last.threads:
            spinning = spinning_threads(sample, last)
            threads = self.compare(number, sample.threads, last.threads, spinning)
            mains = [main_thread(one.threads, facts.pid) for one in (sample, last)]
            native = not any(main is not None and main.owns_gil for main in mains)
            facts.delta = delta_of(sample, last, _tid(mains[0], facts.pid), threads, native=native)

    def add_threads(self, number: int, threads: Sequence[ThreadLike]) -> None:
        """The stacks of a process already added, by its number."""
        facts = self.digest.processes[number]
        main = main_thread(threads, facts.pid)
        known_stack, intern = self._same.get, self.intern
        stacks = [known_stack(id(thread.frames)) or intern(thread.frames) for thread in threads]
        names = [thread.thread_name for thread in threads]
        shape = (facts.role, -1 if main is None else threads.index(main), *names, *map(id, stacks))
        known = self._shapes.get(shape)
        if known is None:
            known = self._shapes[shape] = self._shape(facts.role, threads, main)
        for group in known.groups:
            group.processes.append(number)
        facts.stack, facts.other_stacks = known.main, known.others
        facts.active = main is not None and main.active
        facts.threads = len(threads)

    def _shape(self, role: Role, threads: Sequence[ThreadLike], main: ThreadLike | None) -> _Shape:
        named = [(t.thread_name or UNNAMED, t is main, self.intern(t.frames)) for t in threads]
        return _Shape(
            tuple(self.group(role, name, is_main, stack) for name, is_main, stack in named),
            next((self.plain(stack) for _, is_main, stack in named if is_main), ()),
            self.share(tuple((name, self.plain(stack)) for name, is_main, stack in named if not is_main)),
        )

    def compare(
        self,
        number: int,
        threads: Sequence[ThreadLike],
        later: Sequence[ThreadLike],
        spinning: frozenset[int] = frozenset(),
    ) -> tuple[tuple[str, Motion], ...]:
        """Note the main thread's stack in the second sample; name and motion of all other threads."""
        facts = self.digest.processes[number]
        main = main_thread(later, facts.pid)
        if main is not None:
            facts.later_stack = self.plain(self.intern(main.frames))
        before = {thread.thread_id: thread.frames for thread in threads}
        found: list[tuple[str, Motion]] = []
        for thread in later:
            if thread is main or thread.thread_id not in before:
                continue
            motion: Motion = "spinning" if thread.os_thread_id in spinning else "frozen"
            earlier, now = self.intern(before[thread.thread_id]), self.intern(thread.frames)
            if earlier is not now and self.plain(earlier) is not self.plain(now):
                motion = "progressing"
            found.append((thread.thread_name or UNNAMED, motion))
        motions = tuple(found)
        return self._motions.setdefault(motions, motions)

    def group(self, role: Role, thread: str, main: bool, stack: Stack) -> StackGroup:
        """The group of these threads; `stack` must come from `intern`."""
        key = (role, thread, main, id(stack))
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = StackGroup(role, thread, main, stack)
            self.digest.groups.append(group)
        return group

    def share(self, others: tuple[tuple[str, Stack], ...]) -> tuple[tuple[str, Stack], ...]:
        """Equal ranks have equal background threads; they need one tuple."""
        key = tuple((name, id(stack)) for name, stack in others)
        return self._others.setdefault(key, others)


def digest(answers: Iterable[NodeAnswer]) -> Digest:
    """The digest of these nodes."""
    digester = Digester()
    for answer in answers:
        digester.add_node(answer)
    return digester.digest
