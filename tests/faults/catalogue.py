"""Every fault of the suite with its truth: what a person who knows the fault would want the verdict to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Launcher = Literal["fork", "shell", "torchrun", "mpirun", "accelerate"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault with its truth.

    `culprits` and `not_captured` are folded rank lists; no culprits where nothing in stacks, /proc and logs could
    tell who it is. `causes`: each is right. `struck`: the ranks that say when the fault is in effect; the
    culprits by default, or all where there are none. `absent`: ranks that are never started.
    """

    name: str
    module: str  # of tests.faults.kinds; the function is called as the fault, with underscores
    story: str
    hung: bool
    scope: str
    culprits: str
    causes: tuple[str, ...]
    not_captured: str = ""
    launcher: Launcher = "fork"
    ranks: int = 4
    absent: str = ""
    struck: str = ""


def _local(
    name: str, module: str, culprits: str, causes: str, story: str, ranks: int = 4, **more: str
) -> Fault:
    words = tuple(causes.split())
    return Fault(name, module, story, True, "local", culprits, words, ranks=ranks, **more)  # type: ignore[arg-type]


def _global(name: str, module: str, causes: str, story: str, ranks: int = 4, **more: str) -> Fault:
    words = tuple(causes.split())
    return Fault(name, module, story, True, "global", "", words, ranks=ranks, **more)  # type: ignore[arg-type]


def _moving(name: str, module: str, causes: str, story: str, ranks: int = 4, **more: str) -> Fault:
    words = tuple(causes.split())
    return Fault(name, module, story, False, "none", "", words, ranks=ranks, **more)  # type: ignore[arg-type]


FAULTS: tuple[Fault, ...] = (
    # --- one rank waits in code of its own, the others wait for it
    _local("two-threads", "waits", "2", "application", "Two threads of rank 2 take two locks in turn."),
    _local("lost-event", "waits", "3", "application", "Rank 3 waits for an event that nobody sets."),
    _local("queue-get", "waits", "1", "application", "Rank 1 waits at a queue into which nothing is put."),
    _local("coroutine", "waits", "1", "application", "Rank 1 awaits a future that nobody resolves."),
    _local("child-process", "waits", "2", "application", "Rank 2 runs a program that does not return."),
    _local("signal-handler", "waits", "1", "application", "A signal handler of rank 1 waits for ever."),
    _local("fork-deadlock", "waits", "2", "application", "A forked child of rank 2 wants a lock held in it."),
    _local("full-pipe", "waits", "0", "application", "Rank 0 logs into a pipe that nobody reads."),
    _local("breakpoint-left", "waits", "3", "application", "Rank 3 stands in pdb."),
    _local("finalizer", "waits", "2", "application", "A __del__ of rank 2 waits for ever."),
    _local(
        "exit-join",
        "waits",
        "1",
        "application",
        "Rank 1 is done, but one of its threads is not.",
        launcher="torchrun",
    ),
    _local("native-pause", "waits", "2", "application compute", "Rank 2 is in C code that never returns."),
    _local("gradient-hook", "waits", "2", "application", "A gradient hook of rank 2 waits for a lock."),
    _local(
        "marker-file", "waits", "3", "application storage_io", "Rank 3 looks for a file ten times a second."
    ),
    _local("slow-retries", "waits", "0", "application", "Rank 0 asks a service again and again."),
    # --- one rank computes, or is no more
    _local("python-loop", "busy", "1", "application compute", "A search in Python never ends on rank 1."),
    _local("native-loop", "busy", "3", "compute", "Rank 3 multiplies matrices far too large."),
    _local("endless-layer", "busy", "2", "compute", "A layer of rank 2 iterates and does not converge."),
    _local(
        "stopped-rank", "busy", "3", "process_stopped", "Rank 3 is stopped by SIGSTOP.", launcher="torchrun"
    ),
    _local(
        "killed-rank", "busy", "1", "process_exit unknown", "Rank 1 is killed by SIGKILL.", not_captured="1"
    ),
    _local(
        "left-early",
        "busy",
        "3",
        "process_exit unknown",
        "Rank 3 ends early, and well.",
        not_captured="3",
        launcher="mpirun",
    ),
    _local(
        "never-started",
        "busy",
        "3",
        "process_exit unknown",
        "Rank 3 was never started; the others wait to connect.",
        not_captured="3",
        absent="3",
        struck="0-2",
        launcher="shell",
    ),
    _local(
        "late-start",
        "busy",
        "3",
        "application storage_io data",
        "Rank 3 asks a silent service before it connects to the others.",
        struck="0-3",
        launcher="shell",
    ),
    _local("backtracking", "busy", "0", "application compute", "A regular expression of rank 0 never ends."),
    # --- input
    _local("stuck-worker", "inputs", "1", "data", "One DataLoader worker of rank 1 reads a silent socket."),
    _local("stuck-workers", "inputs", "0", "data", "All DataLoader workers of rank 0 read silent sockets."),
    _local(
        "stopped-worker", "inputs", "3", "process_stopped data", "A DataLoader worker of rank 3 is stopped."
    ),
    _local("uninterruptible-worker", "inputs", "2", "storage_io data", "A worker of rank 2 is in state D."),
    _local("read-fifo", "inputs", "2", "data", "The main process of rank 2 reads a shard that never comes."),
    _local("http-read", "inputs", "2", "storage_io", "Rank 2 downloads from a server that is silent."),
    _local("killed-feeder", "inputs", "1", "data application", "The process that feeds rank 1 is killed."),
    _local("dead-producer", "inputs", "1", "data application", "The prefetching thread of rank 1 is dead."),
    _local(
        "dispatched-batches",
        "inputs",
        "0",
        "data",
        "Rank 0 reads for all by Accelerate, from a silent socket.",
        launcher="accelerate",
    ),
    # --- storage and compilers
    _local("uninterruptible", "files", "2", "storage_io", "Rank 2 is in uninterruptible sleep (state D)."),
    _local("stuck-save", "files", "0", "checkpoint", "torch.save of rank 0 never gets its file open."),
    _local(
        "stuck-shard", "files", "2", "checkpoint", "Rank 2 cannot write its part of a distributed checkpoint."
    ),
    _local("background-save", "files", "1", "checkpoint", "Rank 1 waits for its checkpoint thread."),
    _local(
        "cache-in-use",
        "files",
        "2",
        "application storage_io",
        "Rank 2 waits for a file lock of a process left over.",
    ),
    _local(
        "stale-baton", "files", "1", "compile", "Rank 1 waits for the lock of an extension build long dead."
    ),
    _local(
        "stuck-compiler", "files", "0", "compile", "The C++ compiler that torch.compile runs never returns."
    ),
    # --- all wait, in different calls
    _local("collective-mismatch", "calls", "1", "communication", "Rank 1 broadcasts, the others all_reduce."),
    _local("gather-mismatch", "calls", "2", "communication", "Rank 2 gathers, the others all_reduce."),
    _local(
        "conditional-collective", "calls", "2", "communication", "Rank 2 alone reduces its overflow flag."
    ),
    _local("skipped-batch", "calls", "1", "communication", "Rank 1 leaves out one backward of DDP."),
    _local(
        "uneven-data", "calls", "3", "communication", "Rank 3 has no more batches and waits in a barrier."
    ),
    _local("missing-message", "calls", "3", "communication", "Rank 3 waits for a message that is not sent."),
    _local("pipeline-stage", "calls", "2", "application", "A pipeline's stage 2 is stuck in user code."),
    _local(
        "pair-out-of-order",
        "calls",
        "2-3",
        "communication",
        "Ranks 2 and 3 call two groups of theirs in different order.",
        ranks=8,
    ),
    _local("sharded-stuck", "calls", "2", "application", "Rank 2 is stuck in a layer of an FSDP2 model."),
    _local("sharded-branch", "calls", "1", "communication", "Rank 1 leaves out a forward of an FSDP2 model."),
    _local(
        "full-state-dict",
        "calls",
        "0",
        "communication checkpoint",
        "Rank 0 alone gathers the weights of an FSDP2 model.",
    ),
    _local("group-of-some", "calls", "0", "communication", "Rank 0 leaves out a new_group."),
    _global(
        "pipeline-order", "calls", "communication", "A stage leaves out a send: all wait for neighbours."
    ),
    # --- all alike
    _global("stuck-pipeline", "inputs", "data", "The DataLoader workers of all ranks read silent sockets."),
    _global("dead-server", "inputs", "data storage_io", "All ranks read from the same silent server."),
    _global(
        "everyone-polls", "waits", "application storage_io", "All ranks look for a file that never comes."
    ),
    _global("everyone-locks", "files", "application storage_io", "All ranks wait for one file lock."),
    _global("all-in-own-code", "busy", "application compute", "All ranks search in Python and never end."),
    # --- look-alikes
    _moving("slow-checkpoint", "moves", "checkpoint", "Rank 0 writes a checkpoint for long.", struck="0"),
    _moving("long-evaluation", "moves", "none compute", "All ranks evaluate for long."),
    _moving("evaluation-on-one", "moves", "none compute", "Rank 0 evaluates, the others wait.", struck="0"),
    _moving("first-compile", "moves", "compile", "All ranks compile for their first iteration.", ranks=2),
    _moving("log-elsewhere", "moves", "none", "Training goes on, its log does not."),
    _moving("straggler", "moves", "none", "Rank 2 is slow, and everybody with it.", struck="2"),
    _moving(
        "preprocessing", "moves", "none data", "Rank 0 builds a vocabulary, the others wait.", struck="0"
    ),
    _moving("loading", "moves", "none data", "All ranks prepare data before they connect.", launcher="shell"),
    _moving("slow-iterations", "moves", "none compute", "Iterations that take many seconds."),
    _moving("accumulation", "moves", "none compute", "Hundreds of micro-batches without a line."),
    _moving("download", "moves", "none data storage_io", "Rank 0 downloads, the others wait.", struck="0"),
    _moving(
        "child-download",
        "moves",
        "none application data storage_io",
        "A program that rank 0 started copies data, the others wait.",
        struck="0",
    ),
    _moving("slow-workers", "moves", "data", "DataLoader workers that take their time."),
    _moving("pipeline", "moves", "none", "A pipeline that waits most of the time, and works."),
    _moving(
        "last-export",
        "moves",
        "checkpoint none",
        "Three ranks have ended well, rank 0 still writes.",
        not_captured="1-3",
        launcher="torchrun",
    ),
)


def find(name: str) -> Fault:
    """The fault of that name. Raises KeyError."""
    return {fault.name: fault for fault in FAULTS}[name]
