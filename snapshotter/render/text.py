"""The report for a terminal: the answer first, then the evidence."""

from __future__ import annotations

from snapshotter.render.words import seen
from snapshotter.stacks import rankset
from snapshotter.stacks.model import Frame
from snapshotter.stacks.report import Report
from snapshotter.stacks.tree import code_path

MAX_CLASSES = 12


def render(report: Report) -> str:
    """Headline, evidence, next steps, and the rarest classes with their stacks."""
    verdict = report.verdict
    hung = {True: "hung", False: "not hung", None: "cannot tell"}[verdict.hung]
    lines = [
        verdict.headline,
        "",
        f"job {report.summary.job_id}: {hung}, scope {verdict.scope}, cause {verdict.cause}, "
        f"confidence {verdict.confidence:.0%}",
    ]
    for title, ranks in (
        ("culprit ranks", verdict.culprit_ranks),
        ("waiting ranks", verdict.waiting_ranks),
        ("not captured", verdict.not_captured),
    ):
        if ranks:
            lines.append(f"{title}: {rankset.fold(ranks)}")
    if verdict.culprit_nodes:
        lines.append(f"culprit nodes: {', '.join(verdict.culprit_nodes)}")
    if verdict.evidence:
        lines += ["", "Evidence"]
        lines += [f"  {'+' if e.supports else '-'} {e.text}" for e in verdict.evidence]
    if verdict.next_steps:
        lines += ["", "Next"]
        lines += [f"  {step}" for step in verdict.next_steps]
    lines += ["", f"Classes, rarest first ({len(report.equivalence_classes)})"]
    for found in report.equivalence_classes[:MAX_CLASSES]:
        lines.append(f"  {found.role} {found.thread}: {found.count} of ranks {rankset.fold(found.ranks)}")
        lines += [f"      {_frame(frame)}" for frame in found.stack]
    native = [process for process in report.process_infos if process.native_stack]
    if native:
        lines += ["", f"With native frames ({len(native)})"]
    for process in native[:MAX_CLASSES]:
        lines.append(f"  {process.source} (pid {process.pid})")
        lines += [f"      {_frame(frame)}" for frame in process.native_stack]
        lines += [f"      {name} (kernel)" for name in process.kernel_stack]
    return "\n".join(seen(line) for line in lines) + "\n"


def _frame(frame: Frame) -> str:
    """A function and where it is; of a C function py-spy knows the library and no line."""
    place = code_path(frame) if frame.line else frame.filename or code_path(frame)
    return f"{frame.name or 'unknown'} ({place})"
