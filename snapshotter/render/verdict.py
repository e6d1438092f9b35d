"""A report's verdict in words: what a page or an offline file says first, and what to do next."""

from __future__ import annotations

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
    """The verdict of a report (report.json as a dict); without one, that the analysis failed."""
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
    """What to do about this verdict: the steps of the report, and a command for the culprit's node."""
    if report is None:
        return (Step("Look at the stacks and the flame graph: they are there without an analysis."),)
    verdict = report["verdict"]
    steps = [Step(str(text)) for text in verdict.get("next_steps") or ()]
    if verdict.get("hung") is False:
        return tuple(steps) or (
            Step("Nothing to do now: the job moves. If the alert was wrong, raise this job's limit."),
            Step("If it moves too slowly, compare the two samples to see where the time goes."),
        )
    node, pid = _first_culprit(report)
    command = _COMMANDS.get(str(verdict.get("cause")))
    if node and command:
        steps.append(
            Step(f"A first look on {node}:", command.format(proc=f"/proc/{pid or 'PID'}", pid=pid or "PID"))
        )
    if not steps:
        steps.append(Step("Look at the rarest groups below: a rank that stands apart is the first suspect."))
        steps.append(Step("Capture again in a minute: a second look shows who moves."))
    return tuple(steps)


_COMMANDS = {
    "storage_io": "cat {proc}/wchan {proc}/stack; ls -l {proc}/fd; dmesg -T | tail -30",
    "data": "cat {proc}/wchan {proc}/io; ls -l {proc}/fd; dmesg -T | grep -i -E 'oom|blocked'",
    "compute": "nvidia-smi -q -d ECC,PERFORMANCE,POWER; dmesg -T | grep -i xid",
    "communication": "ibstat; dmesg -T | grep -i -E 'mlx|link|nvrm'",
    "checkpoint": "df -h; cat {proc}/wchan {proc}/io; dmesg -T | tail -30",
    "compile": "free -g; df -h; ps -o pid,stat,etime,args --ppid {pid}",
    "application": "py-spy dump --native --pid {pid}",
    "process_exit": "dmesg -T | grep -i -E 'killed|oom|segfault|xid'",
    "process_stopped": "grep -E '^(State|TracerPid)' {proc}/status; kill -CONT {pid}",
}


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
