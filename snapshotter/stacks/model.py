"""The data of a capture: frames, threads, samples, processes, nodes. Frozen, and the same on the wire.

The agent answers a `NodeAnswer` as JSON, a bundle stores it verbatim, the analysis takes a `JobCapture`.
Field names of `Frame` and `Thread` are py-spy's own (`py-spy dump --json`, 0.4): frames come innermost first.
Later versions may add fields with defaults; none is ever renamed or dropped: old bundles stay readable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Role = Literal["trainer", "dataloader", "launcher", "checkpoint", "other"]

Outcome = Literal[
    "ok",
    "timeout",
    "gone",
    "denied",
    "not_python",
    "uninterruptible",  # in a page fault: reading it could hang the reader, so it was left alone
    "error",
    "unreachable",  # its node did not answer
]


@dataclass(frozen=True, slots=True)
class Frame:
    """One function activation."""

    name: str
    filename: str
    line: int
    short_filename: str | None = None
    module: str | None = None


@dataclass(frozen=True, slots=True)
class Thread:
    """One Python thread as py-spy saw it. `active` false: waiting; `frames` innermost first, may be empty."""

    thread_id: int
    thread_name: str | None
    os_thread_id: int | None
    active: bool
    owns_gil: bool
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Counters:
    """Monotonic counters of a process or thread; None where the kernel does not let us read or account it.

    Seconds for times, bytes for I/O; `rchar`/`wchar` count what passed read()/write(), page cache and network
    file systems included (/proc/PID/io). `peak_resident_bytes` is the most memory that was ever resident.
    """

    cpu_seconds: float | None = None
    io_wait_seconds: float | None = None
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None
    rchar: int | None = None
    wchar: int | None = None
    peak_resident_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class KernelThread:
    """One task of a process as /proc/PID/task/TID shows it. `state`: the letter of stat, R S D T t Z I X."""

    tid: int
    name: str
    state: str
    wchan: str | None = None
    counters: Counters = Counters()


@dataclass(frozen=True, slots=True)
class Sample:
    """One process looked at once: its Python stacks (if they could be read) and what /proc said meanwhile."""

    taken_at: float  # Unix seconds of the node's clock
    outcome: Outcome
    error: str | None = None  # one line: what failed and what to do
    threads: tuple[Thread, ...] = ()
    state: str | None = None  # of the main thread
    wchan: str | None = None
    kernel_stack: tuple[str, ...] = ()  # innermost first, without addresses
    syscall: str | None = None
    counters: Counters = Counters()
    kernel_threads: tuple[KernelThread, ...] = ()
    pause_seconds: float | None = None  # how long the target was kept stopped, None where it was not


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the job and its samples (usually two, some seconds apart)."""

    pid: int
    node: str
    role: Role
    rank: int | None  # for a helper process: the rank that owns it; None for the launcher
    outcome: Outcome  # of the best sample
    start_ticks: int = 0
    parent_pid: int = 0
    local_rank: int | None = None
    world_size: int | None = None
    worker: int | None = None  # number of a DataLoader worker within its rank
    gpu: str | None = None
    pod: str | None = None
    name: str = ""  # comm
    command_line: str = ""  # secrets masked
    environment: dict[str, str] = field(default_factory=dict)  # allow-listed variables alone
    open_files: tuple[str, ...] = ()  # of a blocked process, on network file systems
    error: str | None = None
    samples: tuple[Sample, ...] = ()
    native_threads: tuple[
        Thread, ...
    ] = ()  # with C frames between the Python ones, where they were asked for


@dataclass(frozen=True, slots=True)
class NcclAnswer:
    """What RAS said on one node: `raw` is the reply byte for byte (UTF-8, replaced where invalid)."""

    raw: str
    format: Literal["text", "json"] = "text"
    error: str | None = None  # why there is none


@dataclass(frozen=True, slots=True)
class NcclFact:
    """One thing that NCCL's RAS found about one rank. Of the communicator's `size` ranks, `alike` are so."""

    kind: Literal["dead", "missing", "behind", "error", "state"]
    rank: int | None  # of the job; None where it could not be told
    text: str  # a sentence that names rank and node
    node: str | None = None
    pid: int | None = None
    communicator: str | None = None  # None: said of the process
    alike: int = 1
    size: int | None = None


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """Everything one node answered to one capture, or why it did not."""

    node: str
    outcome: Outcome
    started_at: float
    finished_at: float
    job_id: str = ""
    error: str | None = None
    processes: tuple[Process, ...] = ()
    expected_ranks: tuple[int, ...] = ()  # ranks that should live here but had no process
    nccl: NcclAnswer | None = None
    kernel_log: tuple[str, ...] = ()
    job_log: tuple[str, ...] = ()  # lines of trouble from the job's own log
    schema_version: int = 1
    nccl_facts: tuple[NcclFact, ...] = ()  # what `nccl` says against single ranks


@dataclass(frozen=True, slots=True)
class JobCapture:
    """What the analysis takes: all nodes' answers about one job."""

    job_id: str
    nodes: tuple[NodeAnswer, ...]
    world_size: int | None = None  # None: as the processes' own environment says

    @property
    def processes(self) -> tuple[Process, ...]:
        return tuple(process for node in self.nodes for process in node.processes)
