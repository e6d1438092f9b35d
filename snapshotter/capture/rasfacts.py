"""What NCCL's RAS says of a job, asked once during a capture, and what of it concerns single ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exporter.nccl.evidence import KnownProcess, RankFact, facts
from exporter.nccl.find import SKIPS, own_pids
from exporter.nccl.question import NcclConfig, ask_job
from exporter.nccl.sockets import local_addresses
from exporter.procfs import ProcFS
from exporter.ranks import Scan, TrainingProcess
from snapshotter.stacks.model import NcclAnswer, NcclFact


@dataclass(frozen=True, slots=True)
class RasFacts:
    """The answer as it came, and what it holds against single ranks."""

    answer: NcclAnswer
    facts: tuple[NcclFact, ...] = ()


def ask(procfs: ProcFS, scan: Scan, job_id: str, *, unsafe_versions: bool = False) -> RasFacts:
    """Ask the RAS service of a job that runs on this node, where version and age of the job allow.

    Why it was not asked is an answer too.
    """
    processes = [one for one in scan.processes if one.job_id == job_id]
    asked = ask_job(procfs, processes, NcclConfig(ask_unsafe_versions=unsafe_versions))
    if asked.answer is None:
        reason = "there was nobody to ask" if asked.skip is None else SKIPS[asked.skip]
        return RasFacts(NcclAnswer("", error=f"not asked: {reason}"))
    answer = asked.answer
    problem = None if answer.reason is None else f"{answer.reason}: {answer.detail}"
    said = NcclAnswer(answer.text, answer.report.format, problem)
    if problem is not None:
        return RasFacts(said)
    sizes = {one.world_size for one in processes if one.world_size is not None}
    found = facts(
        answer.report,
        _known(procfs, processes, scan.node),
        world_size=next(iter(sizes)) if len(sizes) == 1 else None,
    )
    return RasFacts(said, tuple(_plain(one) for one in found))


def _known(procfs: ProcFS, processes: Sequence[TrainingProcess], node: str) -> list[KnownProcess]:
    return [
        KnownProcess(node, one.rank, own_pids(procfs, one.id.pid), local_addresses(procfs, one.id.pid))
        for one in processes
        if one.role == "trainer" and one.rank is not None
    ]


def _plain(fact: RankFact) -> NcclFact:
    return NcclFact(
        kind=fact.kind,
        rank=fact.rank,
        text=fact.text,
        node=fact.node,
        pid=fact.pid,
        communicator=fact.communicator,
        alike=fact.alike,
        size=fact.size,
    )
