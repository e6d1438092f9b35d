"""Whose C frames are worth a pause: outliers, and one process of every class of equal stacks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from snapshotter.stacks import rankset, report
from snapshotter.stacks.digest import Digest, ProcessFacts
from snapshotter.stacks.model import NodeAnswer, Process, Thread

_MOST = 16  # processes of a round; each is stopped for 0.1 s, with PyTorch's libraries more than 1 s
# Causes of which the innermost Python frame says no more than that.
_UNTOLD = frozenset({"compute", "unknown"})


def chosen(processes: Iterable[ProcessFacts], outliers: int = rankset.EMPTY) -> tuple[ProcessFacts, ...]:
    """One process of the largest class and one of each other, then `outliers`, then the rest but the largest.

    At most 16, trainers alone, and only what was read and is not in state D or stopped: py-spy has to stop a
    process to see its C frames. `outliers`: ranks that are known to be, as a bit set.
    """
    classes: dict[object, list[ProcessFacts]] = {}
    for process in processes:
        if (
            process.role != "trainer"
            or not process.threads
            or process.last_outcome != "ok"
            or process.states[-1:] in (("D",), ("T",), ("t",))
        ):
            continue
        stack = process.stack if process.later_stack is None else process.later_stack
        classes.setdefault(stack, []).append(process)
    by_rarity = sorted(classes.values(), key=len)
    ordered = [group[0] for group in (*by_rarity[-1:], *by_rarity[:-1])]
    ordered += [one for group in by_rarity for one in group if _is_in(one.rank, outliers)]
    ordered += [one for group in by_rarity[:-1] for one in group]
    return tuple({(one.node, one.pid): one for one in ordered}.values())[:_MOST]


def wanted(job_id: str, digest: Digest) -> tuple[ProcessFacts, ...]:
    """The processes whose C frames are needed, as Python's alone do not tell what a hang is; else none.

    Needed they are where the verdict is undetermined, where the culprits are in native code or in nobody knows
    what, and where all alike are in the same code of the job's own.
    """
    if not any(process.rank is not None for process in digest.processes):
        return ()
    verdict = report.analyse_digest(digest, job_id=job_id, at=0.0).verdict
    if verdict.hung is False or verdict.scope == "none":
        return ()
    alike = verdict.scope == "global" and verdict.cause == "application"
    if verdict.scope != "undetermined" and verdict.cause not in _UNTOLD and not alike:
        return ()
    return chosen(digest.processes, verdict.culprit_ranks)


def with_native(process: Process, threads: tuple[Thread, ...], pause: float | None) -> Process:
    """With the C frames; that it was stopped for them, for `pause` seconds, counts for its last sample."""
    last = process.samples[-1]
    longest = max(last.pause_seconds or 0.0, pause or 0.0) or None
    samples = (*process.samples[:-1], replace(last, pause_seconds=longest))
    return replace(process, samples=samples, native_threads=threads)


def merged(answer: NodeAnswer, extra: NodeAnswer) -> NodeAnswer:
    """What a node answered, with the C frames that it answered afterwards."""
    later = {(one.pid, one.start_ticks): one for one in extra.processes}
    processes = tuple(
        with_native(one, found.native_threads, found.samples[-1].pause_seconds)
        if (found := later.get((one.pid, one.start_ticks))) is not None and found.samples and one.samples
        else one
        for one in answer.processes
    )
    return replace(answer, processes=processes)


def _is_in(rank: int | None, ranks: int) -> bool:
    return rank is not None and bool(ranks >> rank & 1)
