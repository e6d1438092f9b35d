"""A report's verdict in words: what a page or an offline file says first, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from snapshotter.stacks import rankset

Tone = Literal["bad", "warn", "good", "plain"]

SCOPES = {
    "local": ("Local", "some hang, the rest wait"),
    "global": ("Global", "all ranks alike"),
    "none": ("None", ""),
    "undetermined": ("Undetermined", ""),
}

CAUSES = {
    "data": "Data loading",
    "storage_io": "Storage I/O",
    "compute": "Computation",
    "communication": "Communication",
    "checkpoint": "Checkpoint",
    "compile": "Compilation",
    "application": "Application code",
    "process_exit": "A process ended",
    "process_stopped": "A process is stopped",
    "none": "None",
    "unknown": "Unknown",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, perhaps with a command to run on the culprit's node."""

    text: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the top of the page says."""

    state: str
    tone: Tone
    headline: str
    scope: str
    scope_note: str
    cause: str
    cause_key: str
    culprit_ranks: str
    culprits: int
    culprit_nodes: tuple[str, ...]
    waiting_ranks: str
    waiting: int
    not_captured: str
    missing: int
    confidence: str
    supports: tuple[str, ...]
    against: tuple[str, ...]
    steps: tuple[Step, ...]


def view(report: Mapping[str, Any] | None) -> Verdict:
    """The verdict of a report (DESIGN's report.json as a dict); without one, that the analysis failed."""
    verdict: Mapping[str, Any] = report["verdict"] if report else {}
    hung = verdict.get("hung")
    cause = str(verdict.get("cause", "unknown"))
    culprits = str(verdict.get("culprit_ranks", ""))
    waiting = str(verdict.get("waiting_ranks", ""))
    missing = str(verdict.get("not_captured", ""))
    nodes = tuple(str(node) for node in verdict.get("culprit_nodes", ()))
    state, tone = _state(hung, cause, has_report=report is not None)
    evidence = verdict.get("evidence", ())
    scope, scope_note = SCOPES.get(str(verdict.get("scope")), SCOPES["undetermined"])
    return Verdict(
        state=state,
        tone=tone,
        headline=str(verdict.get("headline") or "This capture could not be analysed."),
        scope=scope,
        scope_note=scope_note,
        cause=CAUSES.get(cause, cause),
        cause_key=cause,
        culprit_ranks=culprits,
        culprits=size(culprits),
        culprit_nodes=nodes,
        waiting_ranks=waiting,
        waiting=size(waiting),
        not_captured=missing,
        missing=size(missing),
        confidence=confidence(verdict.get("confidence")),
        supports=tuple(str(one["text"]) for one in evidence if one.get("supports")),
        against=tuple(str(one["text"]) for one in evidence if not one.get("supports")),
        steps=next_steps(report),
    )


def confidence(value: Any) -> str:
    """`High (0.92)`; a word first, as nobody knows what 0.6 means at night."""
    if not isinstance(value, (int, float)):
        return "None"
    word = "High" if value >= 0.8 else "Medium" if value >= 0.5 else "Low"
    return f"{word} ({value:.2f})"


def size(ranks: str) -> int:
    """How many ranks a folded set has; 0 for text that is none (a report of a later version)."""
    try:
        return rankset.parse(ranks).bit_count()
    except ValueError:
        return 0


def _state(hung: bool | None, cause: str, *, has_report: bool) -> tuple[str, Tone]:
    if not has_report:
        return "Not analysed", "warn"
    if hung:
        return "Hung", "bad"
    if hung is None:
        return "Cannot tell whether it hangs", "warn"
    return ("Not hung", "good") if cause == "none" else ("Making progress, not hung", "good")


def next_steps(report: Mapping[str, Any] | None) -> tuple[Step, ...]:
    """What to do about this verdict, most useful first. Commands name the first culprit's process."""
    if report is None:
        return (Step("Look at the stacks and the flame graph: they are there without an analysis."),)
    verdict = report["verdict"]
    hung, cause = verdict.get("hung"), str(verdict.get("cause", "unknown"))
    node, pid = _first_culprit(report)
    on = f"On {node}" if node else "On the culprit's node"
    if hung is False:
        return _NOT_HUNG.get(cause, _NOT_HUNG["none"])
    steps = list(_steps(cause, on, pid))
    if verdict.get("not_captured"):
        steps.append(
            Step("Find out why some ranks could not be captured (below): the culprit may be one of them.")
        )
    if verdict.get("culprit_nodes") and cause in ("storage_io", "compute", "communication", "process_exit"):
        names = ", ".join(verdict["culprit_nodes"][:4])
        steps.append(Step(f"If it happens there again, drain {names} and restart the job without it."))
    return tuple(steps)


_NOT_HUNG = {
    "none": (
        Step(
            "Nothing to do now: both samples show progress. If this alert was wrong, raise the job's limit."
        ),
    ),
    "checkpoint": (
        Step("Wait: a checkpoint is being written and moves on."),
        Step("If it takes this long each time, raise the limit for checkpoints or look at the storage."),
    ),
    "compile": (
        Step("Wait: code is being compiled and moves on; the first iterations are slow."),
        Step("If it recompiles again and again, look for changing shapes (TORCH_LOGS=recompiles)."),
    ),
}
for _slow in ("data", "storage_io", "compute", "communication", "application", "unknown"):
    _NOT_HUNG[_slow] = (
        Step("The job moves on, but slowly. Compare the two samples to see where the time goes."),
        Step("Capture again in a few minutes; if the same ranks lag, they are the slow ones."),
    )


def _steps(cause: str, on: str, pid: int | None) -> tuple[Step, ...]:
    proc = f"/proc/{pid}" if pid else "/proc/PID"
    if cause == "storage_io":
        return (
            Step(f"{on}: see what the process waits for in the kernel.", f"cat {proc}/stack {proc}/wchan"),
            Step("Check the file system it reads or writes.", "dmesg -T | tail -50; df -h; nfsstat -m"),
            Step("Compare the node's disk and network-storage panels with its neighbours at this time."),
        )
    if cause == "data":
        return (
            Step(
                "Open the stacks of the DataLoader workers of a culprit: the innermost frame is what they do."
            ),
            Step(
                f"{on}: look for a blocked read or a worker that was killed.",
                "dmesg -T | grep -i -E 'oom|hung'",
            ),
            Step("If all ranks wait for data, read the dataset code in the innermost frames first."),
        )
    if cause == "compute":
        return (
            Step(
                f"{on}: look for GPU errors and clocks.",
                "nvidia-smi -q -d ECC,PERFORMANCE; dmesg -T | grep -i xid",
            ),
            Step(
                "Read the innermost own frame of the culprit: an endless loop looks the same as a lost GPU."
            ),
            Step(
                "Compare the GPU's power and utilisation with its neighbours: busy at full power is a loop."
            ),
        )
    if cause == "communication":
        return (
            Step("Look at the NCCL tab for a communicator with missing or lagging ranks."),
            Step(
                "Check links and network errors between the nodes named.",
                "ibstat; dmesg -T | grep -i -E 'mlx|link'",
            ),
            Step("If one group of ranks is in another collective, look for a branch on rank or data."),
        )
    if cause == "checkpoint":
        return (
            Step("Check the checkpoint's file system: full, slow or gone.", "df -h; dmesg -T | tail -50"),
            Step("Look at the stack of the rank that still writes; the others wait at a barrier for it."),
        )
    if cause == "compile":
        return (
            Step("Look at the compile workers in the stacks; a worker that died leaves the rank waiting."),
            Step(f"{on}: check memory and the compile cache's file system.", "free -g; df -h"),
        )
    if cause == "application":
        return (
            Step(
                "Read the innermost frames of the culprit: a lock, a queue or a wait of the job's own code."
            ),
            Step("Compare with a waiting rank side by side in the Stacks tab; send both to the job's owner."),
        )
    if cause == "process_exit":
        return (
            Step("Read the end of the job's log of that rank: it ended before the others."),
            Step(f"{on}: was it killed?", "dmesg -T | grep -i -E 'killed|oom|segfault'"),
            Step("Restart the job from its last checkpoint; the rest will not move again."),
        )
    if cause == "process_stopped":
        return (
            Step(
                f"{on}: the process is stopped; continue it.", f"kill -CONT {shlex.quote(str(pid or 'PID'))}"
            ),
            Step("Find out who stopped it: a debugger, a shell's job control, or a scheduler's suspension."),
        )
    return (
        Step("Look at the rarest groups in the flame graph: a rank that stands apart is the first suspect."),
        Step("Capture again: a second look a minute later shows who moves."),
        Step("Look at the NCCL tab, the kernel log and the GPUs of the nodes."),
    )


def _first_culprit(report: Mapping[str, Any]) -> tuple[str, int | None]:
    """Node and pid of the lowest culprit rank's trainer."""
    try:
        first = rankset.lowest(rankset.parse(str(report["verdict"].get("culprit_ranks", ""))))
    except ValueError:
        first = None
    nodes = report["verdict"].get("culprit_nodes") or ("",)
    if first is None:
        return "", None
    for process in report.get("process_infos", ()):
        if process.get("Rank") == first and process.get("Role") == "trainer":
            pid = process.get("Pid")
            return str(process.get("Node") or nodes[0]), pid if isinstance(pid, int) else None
    return str(nodes[0]), None
