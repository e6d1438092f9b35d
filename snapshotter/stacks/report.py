"""A capture analysed: verdict, classes, statistics, trees; and the JSON that bundles and the API carry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from snapshotter.stacks import rankset
from snapshotter.stacks.case import Case
from snapshotter.stacks.classes import EquivalenceClass, FunctionStat, equivalence_classes, function_stats
from snapshotter.stacks.diagnose import diagnose
from snapshotter.stacks.digest import Digest, ProcessFacts, digest
from snapshotter.stacks.groups import NO_SIZES, ParallelSizes
from snapshotter.stacks.knowledge import Knowledge, with_entries
from snapshotter.stacks.model import Frame, JobCapture, Role
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.tree import NotCaptured, Tree, build
from snapshotter.stacks.verdict import Evidence, Verdict

SCHEMA_VERSION = 1

ROLES: tuple[Role, ...] = ("trainer", "dataloader", "checkpoint", "other", "launcher")


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts over the whole capture. `analysis_time` in Unix seconds."""

    analysis_time: float
    job_id: str
    node_name: str  # of the only node, else "N nodes"
    total_processes: int
    successful_processes: int
    failed_processes: int
    total_function_calls: int
    unique_functions: int


@dataclass(frozen=True, slots=True)
class Report:
    """Everything the analysis says about one capture. `trees` has one entry per role that was seen."""

    summary: Summary
    verdict: Verdict
    equivalence_classes: tuple[EquivalenceClass, ...]
    function_stats: tuple[FunctionStat, ...]
    process_infos: tuple[ProcessFacts, ...]
    trees: tuple[Tree, ...]

    def tree(self, role: Role = "trainer") -> Tree | None:
        """The merged tree of this role, None where no such process was seen."""
        return next((tree for tree in self.trees if tree.role == role), None)


def analyse(
    capture: JobCapture,
    *,
    at: float,
    knowledge: Knowledge | None = None,
    sizes: ParallelSizes = NO_SIZES,
) -> Report:
    """The report on a capture, written at Unix second `at`."""
    return analyse_digest(
        digest(capture.nodes),
        job_id=capture.job_id,
        at=at,
        world_size=capture.world_size,
        knowledge=knowledge,
        sizes=sizes,
    )


def analyse_digest(
    facts: Digest,
    *,
    job_id: str,
    at: float,
    world_size: int | None = None,
    knowledge: Knowledge | None = None,
    sizes: ParallelSizes = NO_SIZES,
) -> Report:
    """The report on a digest, which may be the sum of what many nodes boiled down themselves."""
    case = Case.of(facts, world_size=world_size, knowledge=knowledge or with_entries(()))
    verdict = diagnose(case, sizes)
    stats = function_stats(facts, case.seats)
    read = sum(1 for process in facts.processes if process.outcome == "ok")
    nodes = sorted({answer.node for answer in facts.nodes} | {process.node for process in facts.processes})
    summary = Summary(
        analysis_time=at,
        job_id=job_id,
        node_name=nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes",
        total_processes=len(facts.processes),
        successful_processes=read,
        failed_processes=len(facts.processes) - read,
        total_function_calls=sum(stat.count for stat in stats),
        unique_functions=len(stats),
    )
    order = sorted(range(len(facts.processes)), key=lambda n: _order(facts.processes[n], case.seats[n]))
    return Report(
        summary=summary,
        verdict=verdict,
        equivalence_classes=equivalence_classes(facts, case.seats),
        function_stats=stats,
        process_infos=tuple(facts.processes[n] for n in order),
        trees=tuple(_trees(facts, case)),
    )


def _order(process: ProcessFacts, seat: int) -> tuple[int, int, int, int]:
    worker = -1 if process.worker is None else process.worker
    return (seat, ROLES.index(process.role), worker, process.pid)


def _trees(facts: Digest, case: Case) -> Iterable[Tree]:
    for role in ROLES:
        # A process without a rank, such as the launcher, has no place in a tree of ranks.
        numbers = [n for n, p in enumerate(facts.processes) if p.role == role and case.seats[n] >= 0]
        if not numbers:
            continue
        captured = rankset.of([case.seats[n] for n in numbers if facts.processes[n].outcome == "ok"])
        stacks: dict[tuple[str, tuple[Frame, ...]], RankSet] = {}
        for group in facts.groups:
            if group.role == role:
                key = (group.thread, group.stack)
                ranks = rankset.of([case.seats[n] for n in group.processes if case.seats[n] >= 0])
                stacks[key] = stacks.get(key, 0) | ranks
        missing = case.not_captured if role == "trainer" else _failed(facts, case, numbers)
        yield build(role, stacks, captured=captured, not_captured=missing)


def _failed(facts: Digest, case: Case, numbers: list[int]) -> list[NotCaptured]:
    failed = [n for n in numbers if facts.processes[n].outcome != "ok"]
    return [NotCaptured(facts.processes[n].outcome, 1 << case.seats[n]) for n in failed]


def to_json(report: Report) -> dict[str, Any]:
    """The report as plain data: field names and folding of ranks are those of the schema, version 1."""
    summary = report.summary
    return {
        "schema_version": SCHEMA_VERSION,
        "summary": {
            "analysis_time": datetime.fromtimestamp(summary.analysis_time, UTC).isoformat(timespec="seconds"),
            "job_id": summary.job_id,
            "node_name": summary.node_name,
            "total_processes": summary.total_processes,
            "successful_processes": summary.successful_processes,
            "failed_processes": summary.failed_processes,
            "total_function_calls": summary.total_function_calls,
            "unique_functions": summary.unique_functions,
        },
        "verdict": verdict_json(report.verdict),
        "equivalence_classes": [_class_json(c) for c in report.equivalence_classes],
        "function_stats": [
            {
                "function": s.function,
                "count": s.count,
                "sources": list(s.sources),
                "ranks": rankset.fold(s.ranks),
            }
            for s in report.function_stats
        ],
        "process_infos": [_process_json(process) for process in report.process_infos],
    }


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict as plain data."""
    return {
        "hung": verdict.hung,
        "scope": verdict.scope,
        "cause": verdict.cause,
        "culprit_ranks": rankset.fold(verdict.culprit_ranks),
        "culprit_nodes": list(verdict.culprit_nodes),
        "waiting_ranks": rankset.fold(verdict.waiting_ranks),
        "not_captured": rankset.fold(verdict.not_captured),
        "confidence": round(verdict.confidence, 2),
        "headline": verdict.headline,
        "evidence": [_evidence_json(evidence) for evidence in verdict.evidence],
        "group": verdict.group,
        "next_steps": list(verdict.next_steps),
    }


def _evidence_json(evidence: Evidence) -> dict[str, Any]:
    return {"kind": evidence.kind, "supports": evidence.supports, "text": evidence.text}


def frame_json(frame: Frame) -> dict[str, Any]:
    """A frame with py-spy's field names."""
    return {
        "name": frame.name,
        "filename": frame.filename,
        "short_filename": frame.short_filename,
        "module": frame.module,
        "line": frame.line,
    }


def _class_json(found: EquivalenceClass) -> dict[str, Any]:
    return {
        "ranks": rankset.fold(found.ranks),
        "count": found.count,
        "role": found.role,
        "thread": found.thread,
        "stack": [frame_json(frame) for frame in found.stack],
    }


def _process_json(process: ProcessFacts) -> dict[str, Any]:
    return {
        "Rank": process.rank,
        "GpuID": process.gpu,
        "PodName": process.pod,
        "ProcessName": process.name,
        "Node": process.node,
        "Role": process.role,
        "Pid": process.pid,
        "Outcome": process.outcome,
        "State": process.state,
        "LocalRank": process.local_rank,
        "Worker": process.worker,
        "Wchan": process.wchan,
        "KernelStack": list(process.kernel_stack),
        "Threads": process.threads,
        "Motion": process.motion,
        "ThreadMotions": [list(pair) for pair in process.delta.threads] if process.delta else [],
        "Error": process.error,
    }
