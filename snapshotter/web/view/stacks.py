"""The Stacks tab: choosing processes, and one process as it is shown, alone or beside another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snapshotter.extracts.rows import ProcessRow
from snapshotter.render.groups import FrameLine, frame_line
from snapshotter.stacks import rankset
from snapshotter.stacks.model import KernelThread, NodeAnswer, Process, Sample, Thread
from snapshotter.web.view.people import state_words


@dataclass(frozen=True, slots=True)
class Choice:
    """What the reader asked for; empty strings mean any."""

    worker: str = ""
    gpu: str = ""
    ranks: str = ""
    role: str = ""
    thread: str = ""
    pid: str = ""
    beside: str = ""
    sample: int = 1

    @property
    def is_empty(self) -> bool:
        return not (self.worker or self.gpu or self.ranks or self.role or self.pid or self.beside)


@dataclass(frozen=True, slots=True)
class Roster:
    """All processes of a capture, and the values of the menus. `workers`: node, text with its pods."""

    processes: Sequence[ProcessRow]
    workers: tuple[tuple[str, str], ...]
    gpus: tuple[str, ...]
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ThreadView:
    """One thread: frames innermost first; `differing` of them, from the innermost, are not in the other."""

    name: str
    facts: str
    frames: tuple[FrameLine, ...]
    differing: int
    main: bool


@dataclass(frozen=True, slots=True)
class ProcessView:
    """One process in one sample."""

    title: str
    process: Process
    samples: int
    state: str
    wchan: str
    blocked: bool  # in uninterruptible sleep: what the kernel says comes first then
    kernel_stack: tuple[str, ...]
    syscall: str
    kernel_threads: tuple[KernelThread, ...]  # those that are blocked, stopped or dead come first
    error: str
    threads: tuple[ThreadView, ...]
    native_threads: tuple[ThreadView, ...]  # with C frames between Python's; read once, after the samples
    taken_at: float | None
    pause_seconds: float | None


def roster(processes: Sequence[ProcessRow]) -> Roster:
    """All processes of a capture, and what the menus offer, each in its natural order."""
    pods: dict[str, dict[str, None]] = {}
    for one in processes:
        of_node = pods.setdefault(one.node, {})
        if one.pod:
            of_node[one.pod] = None
    workers = tuple(
        (node, f"{node} · {', '.join(list(names)[:2])}" if names else node)
        for node, names in pods.items()
        if node
    )
    gpus = sorted({one.gpu for one in processes if one.gpu}, key=_numbers_first)
    roles = sorted({one.role for one in processes if one.role})
    return Roster(processes, workers, tuple(gpus), tuple(roles))


def _numbers_first(text: str) -> tuple[bool, int, str]:
    return (not text.isdecimal(), int(text) if text.isdecimal() else 0, text)


def found(processes: Iterable[ProcessRow], choice: Choice) -> tuple[ProcessRow, ...]:
    """The processes that match. Raises ValueError for ranks that cannot be read."""
    ranks = rankset.parse(choice.ranks.replace(",", "/").replace(" ", "")) if choice.ranks else None
    return tuple(
        one
        for one in processes
        if (not choice.worker or choice.worker in (one.node, one.pod))
        and (not choice.gpu or one.gpu == choice.gpu)
        and (not choice.role or one.role == choice.role)
        and (not choice.pid or str(one.pid) == choice.pid)
        and (ranks is None or (one.rank is not None and one.rank >= 0 and ranks >> one.rank & 1))
    )


def first_choice(report: Mapping[str, Any]) -> Choice:
    """What to show to a reader who asked for nothing: the first culprit beside the first waiting rank."""
    verdict = report.get("verdict", {})
    culprit, waiting = _first(verdict.get("culprit_ranks")), _first(verdict.get("waiting_ranks"))
    if culprit is not None:
        return Choice(ranks=str(culprit), role="trainer", beside="" if waiting is None else str(waiting))
    return Choice(role="trainer")


def find_process(answer: NodeAnswer, wanted: ProcessRow) -> Process | None:
    """The process in its node's answer."""
    return next((one for one in answer.processes if (one.pid, one.role) == (wanted.pid, wanted.role)), None)


def show(process: Process, choice: Choice, other: Process | None = None) -> ProcessView:
    """One process for a column of the page; `other` is what it stands beside."""
    number = min(max(1, choice.sample), max(1, len(process.samples)))
    sample = process.samples[number - 1] if process.samples else None
    theirs = _sample(other, choice.sample) if other else None
    threads = sample.threads if sample else ()
    main = _main(threads, process.pid)
    shown = [one for one in threads if not choice.thread or (one.thread_name or "unknown") == choice.thread]
    shown.sort(key=lambda one: (one is not main, not one.active, one.thread_name or ""))
    return ProcessView(
        title=_title(process),
        process=process,
        samples=len(process.samples),
        state=state_words(sample.state) if sample and sample.state else "",
        wchan=(sample.wchan if sample else None) or "",
        kernel_stack=sample.kernel_stack if sample else (),
        blocked=bool(sample and sample.state == "D"),
        syscall=syscall_words(sample) if sample else "",
        kernel_threads=_by_state(sample.kernel_threads) if sample else (),
        error=(sample.error if sample else None) or process.error or "",
        threads=tuple(_thread(one, theirs, other, main) for one in shown),
        native_threads=_native(process, choice),
        taken_at=sample.taken_at if sample else None,
        pause_seconds=sample.pause_seconds if sample else None,
    )


def _native(process: Process, choice: Choice) -> tuple[ThreadView, ...]:
    main = _main(process.native_threads, process.pid)
    shown = [
        one
        for one in process.native_threads
        if one.frames and (not choice.thread or (one.thread_name or "unknown") == choice.thread)
    ]
    shown.sort(key=lambda one: (one is not main, one.thread_name or ""))
    return tuple(_thread(one, None, None, main) for one in shown)


_SYSCALL = re.compile(r"__(?:x64|arm64|se|do|ia32)_sys_(\w+)")


def syscall_words(sample: Sample) -> str:
    """`clone3 (435)`, of /proc/PID/syscall; the name is the kernel stack's, as numbers differ by machine."""
    number = (sample.syscall or "").split(" ")[0]
    name = next((found[1] for line in sample.kernel_stack if (found := _SYSCALL.search(line))), "")
    if not number.isdecimal():  # "running", or -1: in the kernel for another reason
        return name
    return f"{name} ({number})" if name else f"number {number}"


def _by_state(threads: Sequence[KernelThread]) -> tuple[KernelThread, ...]:
    return tuple(sorted(threads, key=lambda one: ("DTtZXRSI".find(one.state), one.tid)))


def thread_names(processes: Sequence[Process]) -> list[str]:
    """Names of the threads of the processes shown, the main thread first."""
    names = {
        one.thread_name or "unknown" for p in processes for sample in p.samples for one in sample.threads
    }
    return sorted(names, key=lambda name: (name != "MainThread", name))


def _first(folded: object) -> int | None:
    try:
        return rankset.lowest(rankset.parse(str(folded or "")))
    except ValueError:
        return None


def _title(process: Process) -> str:
    if process.role == "trainer":
        return f"Rank {process.rank}" if process.rank is not None else f"Trainer {process.pid}"
    owner = "" if process.rank is None else f" of rank {process.rank}"
    if process.role == "dataloader":
        worker = "" if process.worker is None else f" {process.worker}"
        return f"DataLoader worker{worker}{owner}"
    return f"{process.role.capitalize()}{owner} (pid {process.pid})"


def _sample(process: Process, number: int) -> Sample | None:
    if not process.samples:
        return None
    return process.samples[min(max(1, number), len(process.samples)) - 1]


def _main(threads: Sequence[Thread], pid: int) -> Thread | None:
    named = next((one for one in threads if one.thread_name == "MainThread"), None)
    return (
        named or next((one for one in threads if one.os_thread_id == pid), None) or next(iter(threads), None)
    )


def _thread(thread: Thread, theirs: Sample | None, other: Process | None, main: Thread | None) -> ThreadView:
    frames = thread.frames
    differing = 0
    if theirs is not None and other is not None:
        same = _main(theirs.threads, other.pid) if thread is main else None
        if same is None:
            same = next((one for one in theirs.threads if one.thread_name == thread.thread_name), None)
        if same is not None:
            common = 0
            for mine, their in zip(reversed(frames), reversed(same.frames), strict=False):
                if (mine.name, mine.filename, mine.line) != (their.name, their.filename, their.line):
                    break
                common += 1
            differing = len(frames) - common
    facts = ["active" if thread.active else "idle"]
    if thread.owns_gil:
        facts.append("holds the GIL")
    if thread.os_thread_id is not None:
        facts.append(f"tid {thread.os_thread_id}")
    if not frames:
        facts.append("no Python frames: native code" if thread.active else "no Python frames")
    return ThreadView(
        name=thread.thread_name or "unknown",
        facts=", ".join(facts),
        frames=tuple(frame_line(one.name, one.filename, one.line, one.short_filename) for one in frames),
        differing=differing,
        main=thread is main,
    )
