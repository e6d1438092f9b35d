"""Rules about what is known beside stacks: ranks not captured, NCCL's RAS, the logs of job and kernel."""

from __future__ import annotations

from collections import Counter

from snapshotter.stacks import joblog, rankset
from snapshotter.stacks.case import MISSING, Case
from snapshotter.stacks.finding import Finding, speaks_for
from snapshotter.stacks.joblog import JobLog
from snapshotter.stacks.model import NcclFact
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.verdict import Cause, Evidence
from snapshotter.stacks.wording import MAX_LINE, named, shown

# Reasons that say something of the rank, not of the capture.
TELLING = ("gone", "unreachable", MISSING, "uninterruptible")

_REASONS = {
    "missing": "no process and no dump of it was found",
    "unreachable": "its node did not answer",
    "gone": "its process ended meanwhile",
    "denied": "reading it was not permitted",
    "timeout": "reading it took too long",
    "not_python": "no Python interpreter was found in it",
    "uninterruptible": "it is in a page fault and was left alone",
    "error": "reading it failed",
}

_MOST_LINES = 6


def not_captured(case: Case, *, telling: bool) -> Finding | None:
    """All that were captured wait; the others are suspect. `telling`: only with a reason of their own."""
    ranks = rankset.union(p.ranks for p in case.not_captured if not telling or p.reason in TELLING)
    if not ranks:
        return None
    share = ranks.bit_count() / max(1, case.world.bit_count())
    many = ranks.bit_count() > 1
    if not telling and share > 0.5:
        return None
    return Finding(
        rule="not_captured",
        cause="unknown",
        strength=(0.7 if telling else 0.5) if share <= 0.25 else 0.4,
        culprits=ranks,
        doing=f"could not be captured ({reasons(case, ranks)}), so that nothing says what "
        f"{'they do' if many else 'it does'}",
        evidence=(speaks_for("not_captured", f"{named(ranks)}: {reasons(case, ranks)}; all others wait."),),
    )


def reasons(case: Case, ranks: RankSet) -> str:
    """Why these ranks were not captured."""
    parts = [part for part in case.not_captured if part.ranks & ranks]
    if len(parts) == 1:
        return _REASONS.get(parts[0].reason, parts[0].reason)
    return ", ".join(f"{_REASONS.get(p.reason, p.reason)}: {rankset.fold(p.ranks & ranks)}" for p in parts)


def nccl_facts(case: Case) -> list[NcclFact]:
    """What RAS found, each once, whichever node asked."""
    return list(dict.fromkeys(fact for answer in case.digest.nodes for fact in answer.nccl_facts))


def ras(case: Case) -> Finding | None:
    """Ranks that NCCL considers dead or missing, or that launched fewer collectives than the rest."""
    order: tuple[tuple[str, Cause, float], ...] = (
        ("dead", "process_exit", 0.8),
        ("missing", "unknown", 0.6),
        ("behind", "communication", 0.65),
        ("error", "communication", 0.55),
        ("state", "communication", 0.5),
    )
    facts = [f for f in nccl_facts(case) if f.rank is not None and 0 <= f.rank <= rankset.MAX_RANK]
    for kind, cause, strength in order:
        found = [f for f in facts if f.kind == kind and (f.size is None or 2 * f.alike < f.size)]
        ranks = rankset.of([f.rank for f in found if f.rank is not None]) & case.world
        if not ranks or 2 * ranks.bit_count() > case.world.bit_count():
            continue
        read = ranks & case.captured
        return Finding(
            rule="ras",
            cause="communication" if cause == "process_exit" and read == ranks else cause,
            strength=strength,
            culprits=ranks,
            doing={
                "dead": "did not answer NCCL for a minute or more",
                "missing": "does not answer NCCL",
                "behind": "launched fewer collectives than the others",
                "error": "reported a communication error",
                "state": "is in another communicator state than the others",
            }[kind],
            evidence=tuple(speaks_for("nccl", shown(f.text, MAX_LINE)) for f in found[:8]),
        )
    return None


def local_ranks(case: Case) -> dict[tuple[str, int], int]:
    """(node, local rank) -> rank."""
    trainers = (view.trainer for view in case.ranks.values())
    return {
        (t.node, t.local_rank): t.rank for t in trainers if t.local_rank is not None and t.rank is not None
    }


def log(case: Case) -> Finding | None:
    """A rank left behind by the collectives that timed out, or the only one with an error."""
    lines = joblog.read(case.digest.nodes, local_ranks(case))
    failed = lines.few_failed(case.world)
    if failed:
        first = lines.failed[rankset.lowest(failed) or 0]
        return Finding(
            rule="log",
            cause="process_exit" if not failed & case.captured else "application",
            strength=0.7,
            culprits=failed,
            doing=f"{'have' if failed.bit_count() > 1 else 'has'} an error in the job's log",
            evidence=(speaks_for("log", f"{named(failed)}: {shown(first, MAX_LINE)}"),),
        )
    behind = lines.behind(case.world)
    if not behind:
        return _unlike(lines, case.world)
    numbers = Counter((lines.enqueued or lines.timed_out).values()).most_common(1)
    usual = f" {numbers[0][0]}" if numbers else ""
    return Finding(
        rule="log",
        cause="communication",
        strength=0.7,
        culprits=behind,
        doing="did not launch the collective that the others' watchdogs timed out in",
        evidence=(
            speaks_for(
                "log", f"{named(behind)} never reached collective{usual}, which timed out on the others."
            ),
        ),
    )


def _unlike(lines: JobLog, world: RankSet) -> Finding | None:
    found = lines.unlike(world)
    if found is None:
        return None
    ranks, odd, usual = found
    text = f"collective {usual.sequence} was {odd} on {named(ranks).lower()}, and {usual} on the others."
    return Finding(
        rule="log",
        cause="communication",
        strength=0.7,
        culprits=ranks,
        doing=f"timed out in {odd} where the others did in {usual}",
        evidence=(speaks_for("log", f"{text[:1].upper()}{text[1:]}"),),
    )


def kernel_log(case: Case, nodes: tuple[str, ...]) -> list[Evidence]:
    """Lines of the kernel's log that bear on the verdict: for it on the culprits' nodes, else against it."""
    found: list[Evidence] = []
    for answer in case.digest.nodes:
        for line in answer.kernel_log:
            if not line.startswith("hangscope:"):  # that the log could not be read
                concerns = not nodes or answer.node in nodes
                text = f"{answer.node or 'kernel'}: {shown(line.strip(), MAX_LINE)}"
                found.append(Evidence("kernel_log", concerns, text))
    found.sort(key=lambda evidence: not evidence.supports)
    return found[:_MOST_LINES]
