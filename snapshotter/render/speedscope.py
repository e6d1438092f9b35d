"""Merged trees in speedscope's file format: one sampled profile per role and thread name.

A sample is one stack, its weight the number of ranks in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from snapshotter.stacks import rankset
from snapshotter.stacks.tree import Node, Tree

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def render(trees: Iterable[Tree], *, title: str = "") -> str:
    """The whole file. Each frame's name carries the ranks that are in it and those that are not."""
    frames: list[dict[str, Any]] = []
    profiles: list[dict[str, Any]] = []
    for tree in trees:
        profiles.extend(_profiles(tree, frames))
    return json.dumps(
        {
            "$schema": SCHEMA,
            "name": title,
            "exporter": "hangscope",
            "activeProfileIndex": 0,
            "shared": {"frames": frames},
            "profiles": profiles,
        },
        separators=(",", ":"),
    )


def _profiles(tree: Tree, frames: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    stacks: dict[str, tuple[list[list[int]], list[int]]] = {}
    path: list[int] = []
    for depth, node in tree.walk():
        del path[depth:]
        path.append(len(frames))
        frames.append(_frame(tree, node))
        if node.ends:
            samples, weights = stacks.setdefault(node.thread, ([], []))
            samples.append(list(path))
            weights.append(node.ends.bit_count())
    for thread in sorted(stacks, key=lambda name: (name != "MainThread", name)):
        samples, weights = stacks[thread]
        yield {
            "type": "sampled",
            "name": f"{tree.role} {thread}",
            "unit": "none",
            "startValue": 0,
            "endValue": sum(weights),
            "samples": samples,
            "weights": weights,
        }


def _frame(tree: Tree, node: Node) -> dict[str, Any]:
    inside, outside = rankset.fold(node.ranks), rankset.fold(tree.captured & ~node.ranks)
    file, _, line = node.path.rpartition(":")
    frame: dict[str, Any] = {"name": f"{node.function} [{inside}|{outside}]", "file": file or node.path}
    if line.isdecimal() and int(line) > 0:
        frame["line"] = int(line)
    return frame
