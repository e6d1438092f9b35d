"""Verdicts in words: what a rank does, the headline, and what to do next for each cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from snapshotter.stacks import rankset
from snapshotter.stacks.activity import Activity
from snapshotter.stacks.case import Case
from snapshotter.stacks.groups import Explanation
from snapshotter.stacks.knowledge import Kind
from snapshotter.stacks.model import Frame
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.verdict import Cause

MAX_NAMED = 60  # characters of a rank list or a name in a sentence
MAX_LINE = 240  # of a line quoted from a log

# One rank, several ranks. {at}: function and place.
_DOES: dict[Kind, tuple[str, str]] = {
    "collective": ("waits in {at}", "wait in {at}"),
    "point_to_point": ("waits for another rank in {at}", "wait for other ranks in {at}"),
    "rendezvous": ("sets up or ends communication in {at}", "set up or end communication in {at}"),
    "device": ("waits for its device in {at}", "wait for their devices in {at}"),
    "backward": ("is in autograd's backward", "are in autograd's backward"),
    "dataloader": ("waits for its DataLoader workers", "wait for their DataLoader workers"),
    "data": ("loads data in {at}", "load data in {at}"),
    "checkpoint": ("is busy with a checkpoint in {at}", "are busy with a checkpoint in {at}"),
    "compile": ("compiles in {at}", "compile in {at}"),
    "debugger": ("stands in a debugger at {at}", "stand in a debugger at {at}"),
    "tracking": ("reports to an experiment tracker in {at}", "report to an experiment tracker in {at}"),
    "teardown": ("is ending, in {at}", "are ending, in {at}"),
    "garbage": ("collects garbage in {at}", "collect garbage in {at}"),
    "storage": ("reads or writes in {at}", "read or write in {at}"),
    "compute": ("computes in {at}", "compute in {at}"),
    "lock": ("waits for a lock, event or queue in {at}", "wait for a lock, event or queue in {at}"),
    "sleep": ("sleeps or retries in {at}", "sleep or retry in {at}"),
    "subprocess": ("waits for a child process in {at}", "wait for child processes in {at}"),
    "network": ("waits for the network in {at}", "wait for the network in {at}"),
    "user": ("is in {at}", "are in {at}"),
    "idle": ("waits for work", "wait for work"),
    "plumbing": (
        "is in code without Python functions of its own",
        "are in code without Python functions of their own",
    ),
}

_NEXT: dict[Cause, tuple[str, ...]] = {
    "data": (
        "Look at the DataLoader workers of the ranks named: their stacks say which file or sample they read.",
        "Try to read that shard by hand on the node named, with a time limit.",
        "If no rank is named, the input pipeline itself is stuck: its code, or the storage that all share.",
    ),
    "storage_io": (
        "On the node named: dmesg for 'not responding' or 'blocked for more', then timeout 5 stat MOUNT.",
        "Drain the node if only its mount hangs; if all nodes hang, the file server is to blame.",
        "A process in uninterruptible sleep cannot be killed: the node may need a restart.",
    ),
    "compute": (
        "Check its GPU: nvidia-smi -q on the node named (ECC, clocks, power), and dmesg for NVRM: Xid.",
        "If only one rank ever does this, restart the job without that GPU.",
        "If the place differs from run to run, look for an endless loop or a deadlock in that function.",
    ),
    "communication": (
        "Compare the collectives in the stacks: a rank in another one than the rest took another branch.",
        "Look at the NCCL status and at the job's log for the sequence number each rank stopped at.",
        "Run again with TORCH_DISTRIBUTED_DEBUG=DETAIL and TORCH_FR_BUFFER_SIZE=2000 for a flight record.",
    ),
    "checkpoint": (
        "See whether the checkpoint's files still grow, and whether the file system they go to has room.",
        "If they do not grow, treat it as a storage problem of the ranks named.",
    ),
    "compile": (
        "Look for a stale lock in the compiler's cache: TORCH_EXTENSIONS_DIR, ~/.triton, torchinductor_*.",
        "Compile once beforehand, or give each node a cache of its own.",
    ),
    "application": (
        "Read the innermost function of the ranks named: it is the job's own code that does not return.",
        "Look for what only these ranks do: a condition on the rank, a lock, a child process, a service.",
    ),
    "process_exit": (
        "Read the end of the log of the ranks named, and dmesg on their node: out of memory, segfault.",
        "The rest of the job will not recover: restart it.",
    ),
    "process_stopped": (
        "Find out who stopped it: a debugger, a scheduler, Ctrl-Z. kill -CONT PID continues it.",
    ),
    "none": (),
    "unknown": ("Look at the ranks named by hand: nothing that was captured says what they do.",),
}

_WITHOUT_CULPRIT = (
    "Nothing tells the ranks apart: look at GPU power and clocks, the fabric, the NCCL status of all nodes.",
)


def next_steps(cause: Cause, *, culprits: bool) -> tuple[str, ...]:
    """What to do, most useful first."""
    if cause == "communication" and not culprits:
        return (*_WITHOUT_CULPRIT, *_NEXT[cause][1:])
    return _NEXT[cause]


def base(path: str) -> str:
    """The last part of a path."""
    return path.rsplit("/", 1)[-1]


def shown(text: str, most: int = MAX_NAMED) -> str:
    """Text from outside as a sentence can hold it: printable, and at most so many characters."""
    plain = "".join(char if char.isprintable() else "?" for char in text[: most + 1])
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def at(frame: Frame | None) -> str:
    """`read (indexed_dataset.py:344)`."""
    if frame is None:
        return "unknown code"
    name = shown(frame.name or "an unnamed function")
    return f"{name} ({shown(base(frame.filename))}:{frame.line})" if frame.filename else name


def named(ranks: RankSet) -> str:
    """`Rank 5`, `Ranks 40-47`; long lists are cut and counted."""
    folded = rankset.fold(ranks)
    if len(folded) > MAX_NAMED:
        folded = f"{folded[:MAX_NAMED].rsplit('/', 1)[0]}/… ({ranks.bit_count()} ranks)"
    return f"Rank {folded}" if ranks.bit_count() == 1 else f"Ranks {folded}"


def count(number: int, word: str = "rank") -> str:
    """`1 rank`, `56 ranks`."""
    return f"{number} {word}" if number == 1 else f"{number:,} {word}s"


def does(activity: Activity, *, many: bool) -> str:
    """What one rank, or several, are doing."""
    place = at(activity.frame)
    if activity.queues:
        return f"{'wait' if many else 'waits'} for a lock in {place}"
    if activity.site is not None and not activity.waits:
        place += f", called from {at(activity.site)}"
    return _DOES[activity.kind][1 if many else 0].replace("{at}", place)


def common(activities: Iterable[Activity]) -> Activity | None:
    """The most frequent one; of equals the first."""
    # Ranks with one stack share one object, and objects count faster than their contents.
    objects: dict[int, Activity] = {}
    numbers: Counter[int] = Counter()
    for activity in activities:
        objects[id(activity)] = activity
        numbers[id(activity)] += 1
    counted: Counter[Activity] = Counter()
    for number, times in numbers.items():
        counted[objects[number]] += times
    return counted.most_common(1)[0][0] if counted else None


def doing(case: Case, ranks: RankSet) -> str:
    """What most of these ranks are doing, and how many do something else."""
    activities = [view.now for view in case.views(ranks & case.captured)]
    usual = common(activities)
    if usual is None:
        return "could not be looked at"
    text = does(usual, many=ranks.bit_count() > 1)
    places = {activity.place for activity in activities}
    if len(places) > 1:
        text += f" and {count(len(places) - 1, 'other place')}"
    return text


def waits_in(case: Case, ranks: RankSet) -> str:
    """` in all_reduce`: what most of the waiting ranks wait in; "" where it has no name."""
    usual = common(view.now for view in case.views(ranks))
    if usual is None or usual.frame is None:
        return ""
    if usual.kind == "backward":
        return " in autograd's backward"
    if usual.kind == "point_to_point" and usual.frame.name.endswith("wait"):
        return " in point-to-point communication"
    if usual.kind == "collective" and usual.operation:
        return f" in {shown(usual.operation)}"
    return f" in {shown(usual.frame.name.rsplit('.', 1)[-1])}"


def whose(explanation: Explanation | None, culprits: RankSet) -> str:
    """`, all of node gpu-node-5,`: the group that explains the culprits."""
    if explanation is None:
        return ""
    if explanation.whole:
        return f", all of {explanation.text},"
    total = explanation.groups[0].ranks.bit_count()
    return f", {culprits.bit_count()} of the {total} ranks of {explanation.text},"
