"""Figures that cannot be: NCCL walks its own data wrongly in some versions, and prints what it finds there.

NVIDIA/nccl#1762 (2.26 to 2.29.1, text, several communicators and a missing process) replaces communicators
by garbage: rows of size 0, hundreds of missing ranks. NVIDIA/nccl#2346 (2.27.3 on, still open) prints
communicators of size 0 while one is being set up, and takes ranks away from others. Either way the answer
is called corrupt.
"""

from __future__ import annotations

from dataclasses import replace

from exporter.nccl.model import INCOMPLETE, Communicator, Group, RasReport, parse_version


def without_nonsense(report: RasReport) -> RasReport:
    """The report with what is provably wrong left out, and marked as corrupt.

    After #1762 nothing that came from the table is kept but missing ranks whose process is known to be
    missing; otherwise impossible entries alone are dropped.
    """
    groups = tuple(one for one in report.groups if not _impossible_group(one, report))
    communicators = tuple(one for one in report.communicators if not _impossible_communicator(one))
    dropped_groups = sum(one.communicators for one in report.groups) - sum(
        one.communicators for one in groups
    )
    dropped = max(dropped_groups, len(report.communicators) - len(communicators))
    if len(groups) == len(report.groups) and not dropped:
        return report
    if _misread_by_nccl(report):
        groups, communicators = (), _confirmed(report, communicators)
    return replace(report, groups=groups, communicators=communicators, corrupt=True, dropped=dropped)


def _misread_by_nccl(report: RasReport) -> bool:
    version = parse_version(report.nccl_version)
    affected = report.format == "text" and (version is None or (2, 26, 0) <= version < (2, 29, 2))
    return affected and bool(report.dead_count or report.missing_count)


def _impossible_group(group: Group, report: RasReport) -> bool:
    summary = report.summary
    return (
        group.size <= 0
        or group.communicators <= 0
        or not 0 <= group.ranks_per_node.low <= group.ranks_per_node.high <= group.size
        or not 0 <= group.ranks <= group.size * group.communicators
        or group.nodes < 0
        or (summary is not None and (group.nodes > summary.nodes or group.ranks > summary.gpus))
    )


def _impossible_communicator(communicator: Communicator) -> bool:
    size = communicator.size
    if size is None:
        return False
    numbers = [rank.rank for rank in communicator.named]
    explained = (
        communicator.missing or communicator.mismatched or communicator.rank_errors or not communicator.errors
    )
    strange = communicator.missing > size or any(not 0 <= number < size for number in numbers)
    return size <= 0 or strange or not explained


def _confirmed(report: RasReport, possible: tuple[Communicator, ...]) -> tuple[Communicator, ...]:
    """Missing ranks that the list of missing processes, which is read rightly, bears out."""
    gone = {(process.pid, process.node) for process in (*report.dead, *report.missing)}
    kept: list[Communicator] = []
    for one in possible:
        ranks = tuple(rank for rank in one.missing_ranks if (rank.pid, rank.node) in gone)
        if ranks:
            kept.append(Communicator(one.hash, one.group, one.size, (INCOMPLETE,), len(ranks), ranks))
    return tuple(kept)
