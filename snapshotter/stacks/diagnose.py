"""From the facts of a job to a verdict: rules in order, and everything that speaks for or against the first.

Does the job move; facts of processes; who does work of its own while others wait; all alike; all waiting.
docs/verdict.md tells it at length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from snapshotter.stacks import rankset
from snapshotter.stacks import rules_beside as beside
from snapshotter.stacks import rules_motion as motion
from snapshotter.stacks import rules_process as process
from snapshotter.stacks import rules_stack as stack
from snapshotter.stacks import rules_waiting as waits
from snapshotter.stacks.case import Case
from snapshotter.stacks.finding import Finding, speaks_against, speaks_for
from snapshotter.stacks.groups import NO_SIZES, Explanation, ParallelSizes, explain, sizes_of
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.verdict import Evidence, Verdict
from snapshotter.stacks.wording import count, named, next_steps, waits_in, whose

_MOST_EVIDENCE = 24


def diagnose(case: Case, sizes: ParallelSizes = NO_SIZES) -> Verdict:
    """The verdict on a job."""
    if not case.captured:
        return _nothing_read(case)
    if _ending(case):
        return Verdict(
            None,
            "undetermined",
            "process_exit",
            0.5,
            "The job ended while it was captured: most of its processes are gone.",
            not_captured=case.uncaptured,
        )
    progress = motion.progress(case)
    hard = [finding for rule in (process.stopped, process.ended, process.blocked) if (finding := rule(case))]
    if progress is not None and not _outweighed(case, progress, hard):
        return _not_hung(case, progress)
    found = [*hard, *_stacks(case)]
    beside_stacks = [finding for rule in (beside.log, beside.ras) if (finding := rule(case))]
    chosen = next(_choices(case, found, beside_stacks), None)
    if chosen is None:
        return _undetermined(case, beside_stacks)
    others = [finding for finding in (*found, *beside_stacks) if finding is not chosen]
    return _hung(case, chosen, others, sizes)


def _stacks(case: Case) -> list[Finding]:
    return [finding for rule in (stack.odd_one_out, stack.all_alike) if (finding := rule(case))]


def _choices(case: Case, found: list[Finding], beside_stacks: list[Finding]) -> Iterator[Finding]:
    """Findings from the one that weighs most."""
    yield from found
    yield from beside_stacks
    if case.waiting != case.captured:
        return
    rules: tuple[Callable[[], Finding | None], ...] = (
        lambda: beside.not_captured(case, telling=True),
        lambda: waits.mismatch(case),
        lambda: beside.not_captured(case, telling=False),
        lambda: waits.symmetric(case),
    )
    for rule in rules:
        finding = rule()
        if finding is not None:
            yield finding


def _outweighed(case: Case, progress: Finding, hard: list[Finding]) -> bool:
    """Is a rank dead, stopped or blocked while only a few others still move?"""
    moving = motion.moving(case)
    few = 2 * moving.bit_count() < case.captured.bit_count()
    return few and progress.rule == "progress" and any(f.culprits and not f.culprits & moving for f in hard)


def _ending(case: Case) -> bool:
    gone = case.where(lambda view: view.ended)
    return 2 * gone.bit_count() > len(case.ranks)


def _nothing_read(case: Case) -> Verdict:
    hard = process.stopped(case)
    if hard is not None:
        return _hung(case, hard, [], NO_SIZES)
    if not case.digest.processes and all(answer.outcome == "ok" for answer in case.digest.nodes):
        return _all_gone(case)
    ranks = case.uncaptured
    why = f": {beside.reasons(case, ranks)}" if ranks else ""
    return Verdict(
        None,
        "undetermined",
        "unknown",
        0.0,
        f"No rank of the job could be captured{why}.",
        not_captured=ranks,
        next_steps=next_steps("unknown", culprits=False),
    )


def _all_gone(case: Case) -> Verdict:
    """Every node answered, and none has a process of the job."""
    told = tuple(speaks_for("gone", answer.error) for answer in case.digest.nodes if answer.error)
    return Verdict(
        None,
        "undetermined",
        "process_exit",
        0.5,
        "No process of the job is left: it has ended, or it runs on nodes that were not asked.",
        not_captured=case.uncaptured,
        evidence=told[:_MOST_EVIDENCE],
        next_steps=next_steps("process_exit", culprits=False),
    )


def _not_hung(case: Case, finding: Finding) -> Verdict:
    evidence = list(finding.evidence)
    if case.uncaptured:
        evidence.append(_missing(case))
    return Verdict(
        False,
        "none",
        finding.cause,
        finding.strength,
        finding.says,
        waiting_ranks=case.waiting & ~motion.moving(case),
        not_captured=case.uncaptured,
        evidence=tuple(evidence),
        next_steps=next_steps(finding.cause, culprits=False),
    )


def _undetermined(case: Case, beside_stacks: list[Finding]) -> Verdict:
    still = case.compared == case.captured
    change, evidence = motion.stillness(case, rankset.EMPTY)
    for finding in beside_stacks:
        evidence.extend(finding.evidence)
    evidence.append(speaks_against("mixed", "Ranks are in many places, and none of them stands out."))
    return Verdict(
        True if still else None,
        "undetermined",
        "unknown",
        max(0.1, 0.3 + change),
        "Ranks do different things and nothing tells which of them keeps the others waiting.",
        waiting_ranks=case.waiting,
        not_captured=case.uncaptured,
        evidence=tuple(evidence),
        next_steps=next_steps("unknown", culprits=False),
    )


def _hung(case: Case, chosen: Finding, others: list[Finding], sizes: ParallelSizes) -> Verdict:
    culprits = chosen.culprits
    waiting = (case.waiting | chosen.presumed_waiting) & ~culprits
    change, still = motion.stillness(case, culprits)
    confidence = chosen.strength + change
    evidence = [*chosen.evidence, *still]
    for other in others:
        agrees = bool(other.culprits & culprits) if other.culprits else other.cause == chosen.cause
        confidence += 0.05 if agrees else -0.05
        evidence.extend(_second(other, agrees=agrees))
    if case.uncaptured & ~culprits:
        confidence -= 0.05
        evidence.append(_missing(case))
    explanation = explain(case, culprits, sizes_of(case, sizes))
    if explanation is not None:
        confidence += 0.03
        evidence.append(speaks_for("group", _group_text(explanation, culprits)))
    nodes = _nodes(case, culprits)
    evidence.extend(beside.kernel_log(case, nodes))
    return Verdict(
        chosen.hung,
        chosen.scope,
        chosen.cause,
        min(0.98, max(0.05, confidence)),
        chosen.says or _headline(case, chosen, waiting, explanation),
        culprit_ranks=culprits,
        culprit_nodes=nodes,
        waiting_ranks=waiting,
        not_captured=case.uncaptured,
        group=explanation.text if explanation else None,
        evidence=tuple(evidence[:_MOST_EVIDENCE]),
        next_steps=next_steps(chosen.cause, culprits=bool(culprits)),
    )


def _second(other: Finding, *, agrees: bool) -> list[Evidence]:
    """Another rule's evidence, turned into evidence for or against the verdict."""
    return [Evidence(one.kind, one.supports is agrees, one.text) for one in other.evidence]


def _missing(case: Case) -> Evidence:
    ranks = case.uncaptured
    return speaks_against(
        "not_captured", f"{named(ranks)} could not be captured: {beside.reasons(case, ranks)}."
    )


def _nodes(case: Case, culprits: RankSet) -> tuple[str, ...]:
    nodes = {case.ranks[rank].trainer.node for rank in rankset.members(culprits) if rank in case.ranks}
    unseen = culprits & ~rankset.of(list(case.ranks))
    for answer in case.digest.nodes:
        if unseen and rankset.of([r for r in answer.expected_ranks if 0 <= r <= rankset.MAX_RANK]) & unseen:
            nodes.add(answer.node)
    return tuple(sorted(nodes - {""}))


def _group_text(explanation: Explanation, culprits: RankSet) -> str:
    if explanation.whole:
        return f"{named(culprits)} are exactly {explanation.text}."
    total = explanation.groups[0].ranks.bit_count()
    return f"{culprits.bit_count()} of the {total} ranks of {explanation.text} are concerned, and no others."


def _headline(case: Case, chosen: Finding, waiting: RankSet, explanation: Explanation | None) -> str:
    culprits = chosen.culprits
    text = f"{named(culprits)}{whose(explanation, culprits)} {chosen.doing}"
    nodes = _nodes(case, culprits)
    if explanation is None and len(nodes) == 1 and culprits.bit_count() == 1:
        text = f"{named(culprits)} (on {nodes[0]}) {chosen.doing}"
    if waiting:
        verb = "waits" if waiting.bit_count() == 1 else "wait"
        them = "it" if culprits.bit_count() == 1 else "them"
        text += f"; {count(waiting.bit_count(), 'other rank')} {verb} for {them}{waits_in(case, waiting)}"
    return f"{text}."
