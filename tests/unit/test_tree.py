from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshotter.stacks import rankset
from snapshotter.stacks.model import Frame
from snapshotter.stacks.tree import NotCaptured, Tree, build, escape, merge

functions = st.sampled_from(["train", "forward", "all_reduce", "read", "wait"])
frames = st.builds(
    Frame, name=functions, filename=st.sampled_from(["/a.py", "/b.py"]), line=st.integers(1, 3)
)
stacks = st.lists(frames, min_size=1, max_size=6).map(tuple)
Entry = tuple[int, str, tuple[Frame, ...]]
entries = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from(["MainThread", "worker"]), stacks), max_size=25
)


def tree_of(found: list[Entry], missing: tuple[NotCaptured, ...] = ()) -> Tree:
    ranks_of: dict[tuple[str, tuple[Frame, ...]], int] = {}
    for rank, thread, stack in found:
        ranks_of[thread, stack] = ranks_of.get((thread, stack), 0) | 1 << rank
    return build(
        "trainer", ranks_of, captured=rankset.of([rank for rank, _, _ in found]), not_captured=missing
    )


@given(entries, st.integers(0, 25), st.integers(0, 25), st.randoms(use_true_random=False))
def test_merging_parts_in_any_order_and_grouping_gives_the_whole(
    found: list[Entry], cut: int, other: int, shuffler: random.Random
) -> None:
    first, second = sorted((cut, other))
    parts = [tree_of(found[:first]), tree_of(found[first:second]), tree_of(found[second:])]
    whole = tree_of(found)
    shuffler.shuffle(parts)
    a, b, c = parts
    assert merge([a, b, c]) == whole
    assert merge([merge([a, b]), c]) == whole
    assert merge([a, merge([b, c])]) == whole
    assert merge([a, a, b, c, c]) == whole


@given(entries)
def test_a_frame_holds_the_ranks_below_it_and_those_that_end_in_it(found: list[Entry]) -> None:
    for _, node in tree_of(found).walk():
        assert node.ranks == rankset.union(child.ranks for child in node.children) | node.ends
        assert node.ranks


@given(entries)
def test_every_stack_is_found_again(found: list[Entry]) -> None:
    tree = tree_of(found)
    path: list[tuple[str, str, str]] = []
    seen: set[tuple[int, tuple[tuple[str, str, str], ...]]] = set()
    for depth, node in tree.walk():
        del path[depth:]
        path.append((node.thread, node.function, node.path))
        seen |= {(rank, tuple(path)) for rank in rankset.members(node.ends)}
    wanted = {
        (rank, tuple((thread, frame.name, f"{frame.filename}:{frame.line}") for frame in reversed(stack)))
        for rank, thread, stack in found
    }
    assert seen == wanted


def test_label_names_captured_ranks_in_and_out() -> None:
    stuck = (Frame("forward", "/opt/conda/linear.py", 116),)
    rest = (Frame("all_reduce", "/opt/c10d.py", 9),)
    tree = build(
        "trainer",
        {
            ("MainThread", stuck): 1 << 60,
            ("MainThread", rest): rankset.span(0, 143) & ~(1 << 60) & ~(1 << 70),
        },
        captured=rankset.span(0, 143) & ~(1 << 70),
        not_captured=[NotCaptured("denied", 1 << 70)],
    )
    labels = [tree.label(node) for _, node in tree.walk()]
    assert "MainThread@forward@/opt/conda/linear.py:116@60|0-59/61-69/71-143" in labels
    assert tree.not_captured == (NotCaptured("denied", 1 << 70),)


def test_missing_names_are_unknown() -> None:
    tree = build("trainer", {("unknown", (Frame("", "", 0),)): 1}, captured=1)
    assert [tree.label(node) for _, node in tree.walk()] == ["unknown@unknown@unknown@0|"]


def test_hostile_names_stay_one_frame() -> None:
    name = "a;b@c|d\n<script>%é\u2028"
    tree = build("trainer", {(name, (Frame(name, name, 1),)): 1}, captured=1)
    (label,) = (tree.label(node) for _, node in tree.walk())
    assert label.count("@") == 3
    assert label.count("|") == 1
    assert not set(";\n\u2028") & set(label)
    assert "<script>" in label


def test_escaping_keeps_different_names_apart() -> None:
    assert escape("a;b") != escape("a%3Bb")
    assert escape("plain (name)") == "plain (name)"


def test_not_captured_adds_up_and_yields_to_captured() -> None:
    one = tree_of([(0, "t", (Frame("f", "/a.py", 1),))], (NotCaptured("missing", 0b110),))
    two = tree_of([(1, "t", (Frame("f", "/a.py", 1),))], (NotCaptured("denied", 0b1000),))
    merged = merge([one, two])
    assert merged.not_captured == (NotCaptured("denied", 0b1000), NotCaptured("missing", 0b100))
    assert merged.captured == 0b11


def test_refuses_nothing_and_differing_roles() -> None:
    with pytest.raises(ValueError, match="no tree"):
        merge([])
    with pytest.raises(ValueError, match="cannot merge"):
        merge([build("trainer", {}, captured=0), build("dataloader", {}, captured=0)])


def test_recursion_twenty_thousand_deep() -> None:
    frame = Frame("descend", "/a.py", 1)
    deep = (frame,) * 20_000
    tree = build("trainer", {("MainThread", deep): 0b11}, captured=0b11)
    again = merge([tree, tree])
    assert again == tree
    assert len(tree.rows()) == 20_000
