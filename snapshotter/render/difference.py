"""Two reports of one job side by side: what changed between them."""

from __future__ import annotations

from snapshotter.render.words import seen
from snapshotter.stacks import rankset
from snapshotter.stacks.rankset import RankSet
from snapshotter.stacks.report import Report
from snapshotter.stacks.tree import code_path

MOST_PLACES = 40

Key = tuple[str, str, str, str]  # role, thread, function, path


def _places(report: Report) -> dict[Key, RankSet]:
    """Where each class of threads is: its innermost frame."""
    found: dict[Key, RankSet] = {}
    for one in report.equivalence_classes:
        if one.stack:
            key = (one.role, one.thread, one.stack[0].name or "unknown", code_path(one.stack[0]))
            found[key] = found.get(key, 0) | one.ranks
    return found


def render(before: Report, after: Report) -> str:
    """Verdicts, then each place that other ranks are in than before, most ranks first."""
    lines = []
    for title, report in (("A", before), ("B", after)):
        verdict = report.verdict
        lines.append(f"{title}: {verdict.headline}")
        lines.append(f"   scope {verdict.scope}, cause {verdict.cause}, confidence {verdict.confidence:.0%}")
    was, now = before.verdict.culprit_ranks, after.verdict.culprit_ranks
    for title, ranks in (("culprits no more", was & ~now), ("culprits now", now & ~was)):
        if ranks:
            lines.append(f"{title}: {rankset.fold(ranks)}")
    first, second = _places(before), _places(after)
    changed = [
        (key, first.get(key, 0), second.get(key, 0))
        for key in first.keys() | second.keys()
        if first.get(key, 0) != second.get(key, 0)
    ]
    changed.sort(key=lambda item: (-(item[1] ^ item[2]).bit_count(), item[0]))
    lines += ["", f"Places that changed ({len(changed)})" if changed else "All threads are where they were."]
    for (role, thread, function, path), old, new in changed[:MOST_PLACES]:
        lines.append(f"  {role} {thread}: {function} ({path})")
        if old & ~new:
            lines.append(f"      left by {rankset.fold(old & ~new)}")
        if new & ~old:
            lines.append(f"      reached by {rankset.fold(new & ~old)}")
    if len(changed) > MOST_PLACES:
        lines.append(f"  … and {len(changed) - MOST_PLACES} more")
    return "\n".join(seen(line) for line in lines) + "\n"
