"""The page that compares two captures, or the two samples of one."""

from __future__ import annotations

from flask import render_template, request
from flask.typing import ResponseReturnValue

from snapshotter.bundle.schema import Manifest
from snapshotter.errors import NotFound
from snapshotter.stacks import rankset
from snapshotter.web.site import derived, find, pages
from snapshotter.web.view import moved


@pages.get("/captures/<before>/compare/<after>")
def compare(before: str, after: str) -> ResponseReturnValue:
    """With the same capture twice, its first sample is compared with its last."""
    first, second = find(before), find(after)
    for record in (first, second):
        if not record.has_bundle:
            raise NotFound(f"The capture {record.capture_id} has nothing to compare.", record.error or "")
    same = before == after
    old, new = derived().graph(before), derived().graph(after)
    roles = list(dict.fromkeys(tree.role for graph in (old, new) for _, tree in graph.trees))
    role = request.args.get("role", "")
    if role not in roles:
        role = roles[0] if roles else "trainer"
    tree_before = old.find(0, role)
    tree_after = new.find(new.samples - 1 if same else 0, role)
    threads = moved.threads_of(tree_before, tree_after)
    thread = request.args.get("thread", "")
    if thread not in threads:
        thread = threads[0] if threads else ""
    two = not same or new.samples > 1
    return render_template(
        "compare.html",
        before=first,
        after=second,
        same=same,
        two=two,
        comparison=moved.compare(tree_before, tree_after if two else None, thread),
        roles=roles,
        role=role,
        threads=threads,
        thread=thread,
        restarted="" if same else _restarted(derived().manifest(before), derived().manifest(after)),
    )


def _restarted(before: Manifest, after: Manifest) -> str:
    """Ranks whose trainer is another process now."""
    old = {one.rank: (one.node, one.pid) for one in before.targets if one.role == "trainer"}
    changed = [
        one.rank
        for one in after.targets
        if one.role == "trainer"
        and one.rank is not None
        and one.rank >= 0
        and old.get(one.rank, (one.node, one.pid)) != (one.node, one.pid)
    ]
    return rankset.fold(rankset.of(changed))
