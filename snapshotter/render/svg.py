"""The flame graph as one SVG: a panel per thread, root on top, width = ranks; titles have the full labels."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from snapshotter.render.graph import Graph
from snapshotter.stacks import rankset
from snapshotter.stacks.tree import Node, Tree

_WIDTH, _ROW, _MARGIN, _CHARACTER = 1200.0, 18, 12, 6.7
_LEAST = 0.004  # of the parent's width: one odd rank of thousands stays visible
_MAX_FRAMES = 20_000
_MAX_LABEL = 4_000  # characters of each set of ranks in a title

_COLOURS = (  # share of ranks from, ground, text
    (0.90, "#d5dbe3", "#22262b", "90% of ranks and more"),
    (0.50, "#b9cbe6", "#14233a", "50–90%"),
    (0.25, "#f6d98a", "#3a2c00", "25–50%"),
    (0.05, "#f2a04e", "#331a00", "5–25%"),
    (0.00, "#b3261e", "#ffffff", "under 5%"),
)

# Characters that XML 1.0 does not allow, whatever the escape.
_NOT_XML = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 65534, 65535, *range(55296, 57344)), "�")


@dataclass(frozen=True, slots=True)
class _Box:
    node: Node
    left: float
    width: float
    depth: int


def render_svg(graph: Graph, *, title: str = "", sample: int | None = None, main_only: bool = False) -> str:
    """The merged stacks of one sample (the last by default) of all roles.

    `main_only` draws nothing but the trainers' main thread.
    """
    number = graph.samples - 1 if sample is None else sample
    top = _MARGIN
    parts: list[str] = []
    for line in textwrap.wrap(title, 125)[:4]:
        parts.append(_text(_MARGIN, top + 14, line, size=15, weight=600))
        top += 21
    top += 7 if title else 0
    parts.extend(_legend(top))
    top += 26
    for line in _not_captured(graph):
        parts.append(_text(_MARGIN, top + 10, line, size=12))
        top += 18
    drawn = 0
    for merged, thread, roots in _panels(graph, number, main_only):
        parts.append(_text(_MARGIN, top + 18, f"{merged.role} · {thread}", size=13, weight=600))
        top += 26
        depth = 0
        for box in _layout(roots, merged):
            if drawn >= _MAX_FRAMES:
                break
            drawn += 1
            depth = max(depth, box.depth)
            parts.append(_frame(box, merged, top))
        top += (depth + 1) * _ROW + 8
    if not drawn:
        parts.append(_text(_MARGIN, top + 14, "No stacks were captured.", size=13))
        top += 24
    if drawn >= _MAX_FRAMES:
        parts.append(_text(_MARGIN, top + 14, f"Only the first {_MAX_FRAMES} frames are drawn.", size=12))
        top += 24
    height = top + _MARGIN
    width = _WIDTH + 2 * _MARGIN
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" font-family="ui-monospace, DejaVu Sans Mono, Menlo, monospace">\n'
        f"<title>{_clean(title or 'Merged stacks of all ranks')}</title>\n"
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _panels(graph: Graph, sample: int, main_only: bool) -> Iterator[tuple[Tree, str, list[Node]]]:
    for number, merged in graph.trees:
        if number != sample or (main_only and merged.role != "trainer"):
            continue
        threads = sorted(
            {root.thread for root in merged.roots}, key=lambda name: (name != "MainThread", name)
        )
        if main_only and "MainThread" in threads:
            threads = ["MainThread"]
        for thread in threads:
            yield merged, thread, [root for root in merged.roots if root.thread == thread]


def _weights(roots: list[Node]) -> dict[int, int]:
    """Width of each node, in ranks: those that end in it and in all below, without recursion."""
    order: list[Node] = []
    pending = list(roots)
    while pending:
        node = pending.pop()
        order.append(node)
        pending.extend(node.children)
    weights: dict[int, int] = {}
    for node in reversed(order):
        weights[id(node)] = node.ends.bit_count() + sum(weights[id(child)] for child in node.children)
    return weights


def _layout(roots: list[Node], merged: Tree) -> Iterator[_Box]:
    """Boxes, parents first, breadth first; within a parent the rare ones come first."""
    weights = _weights(roots)
    whole = max(merged.captured.bit_count(), sum(weights[id(root)] for root in roots), 1)
    level = list(_row(roots, weights, whole, 0.0, _WIDTH, 0))
    while level:
        yield from level
        level = [
            box
            for parent in level
            for box in _row(
                parent.node.children,
                weights,
                max(weights[id(parent.node)], 1),
                parent.left,
                parent.width,
                parent.depth + 1,
            )
        ]


def _row(
    nodes: list[Node] | tuple[Node, ...],
    weights: dict[int, int],
    whole: int,
    left: float,
    width: float,
    depth: int,
) -> Iterator[_Box]:
    ordered = sorted(nodes, key=lambda node: (weights[id(node)], node.function, node.path))
    shares = [max(weights[id(node)] / whole, _LEAST) for node in ordered]
    scale = 1 / max(1.0, sum(shares))
    for node, share in zip(ordered, shares, strict=True):
        own = width * share * scale
        if own >= 0.05:
            yield _Box(node, left, own, depth)
        left += own


def _frame(box: _Box, merged: Tree, top: int) -> str:
    node = box.node
    share = node.ranks.bit_count() / max(1, merged.captured.bit_count())
    _, ground, ink, _ = next(colour for colour in _COLOURS if share >= colour[0])
    x, y = _MARGIN + box.left, top + box.depth * _ROW
    count = node.ranks.bit_count()
    tail = f" · rank {rankset.fold(node.ranks)}" if count == 1 else f" · {count}"
    room = int((box.width - 6) / _CHARACTER)
    caption = f"{node.function}{tail}"
    if room > 40:
        caption += f" · {'/'.join(node.path.split('/')[-2:])}"
    if len(caption) > room:
        caption = f"{caption[: room - 1]}…" if room >= 4 else ""
    text = _text(x + 3, y + 13, caption, size=11, colour=ink) if caption else ""
    wide = max(box.width - 0.5, 0.3)
    return (
        f'<g><title>{_clean(_label(node, merged))}</title><rect x="{x:.2f}" y="{y}" width="{wide:.2f}" '
        f'height="{_ROW - 1}" rx="1.5" fill="{ground}"/>{text}</g>'
    )


def _label(node: Node, merged: Tree) -> str:
    label = merged.label(node)
    head, _, out = label.rpartition("|")
    name, _, inside = head.rpartition("@")
    return f"{name}@{_clip(inside)}|{_clip(out)}"


def _clip(text: str) -> str:
    return text if len(text) <= _MAX_LABEL else text[:_MAX_LABEL].rpartition("/")[0] + "/…"


def _legend(top: int) -> Iterator[str]:
    x = float(_MARGIN)
    for _, ground, _, words in reversed(_COLOURS):
        yield f'<rect x="{x:.0f}" y="{top}" width="14" height="12" rx="2" fill="{ground}"/>'
        yield _text(x + 19, top + 10, words, size=11)
        x += 19 + len(words) * _CHARACTER + 22


def _not_captured(graph: Graph) -> Iterator[str]:
    for one in graph.missing[:12]:
        ranks = f"ranks {_clip(rankset.fold(one.ranks))[:120]}" if one.ranks else "some ranks"
        yield f"Not captured: {ranks}{f' on {one.node}' if one.node else ''} ({one.role}): {one.reason}"[:180]
    if len(graph.missing) > 12:
        yield f"Not captured: {len(graph.missing) - 12} more groups of ranks"


def _text(x: float, y: float, text: str, *, size: int, weight: int = 400, colour: str = "#1b1c1e") -> str:
    style = f'font-size="{size}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x:.2f}" y="{y}" {style}>{_clean(text)}</text>'


def _clean(text: str) -> str:
    return escape(text.translate(_NOT_XML))
