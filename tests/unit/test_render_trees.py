"""Merged trees as folded text, speedscope and Grafana's nested sets."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from snapshotter.render import folded, grafana, speedscope
from snapshotter.stacks import rankset
from snapshotter.stacks.model import Frame
from snapshotter.stacks.tree import Tree, build

MAIN = Frame("main", "/job/train.py", 9)
READ = Frame("read", "/job/shard.py", 344)
REDUCE = Frame("all_reduce", "/c10d.py", 7)


def small() -> Tree:
    return build(
        "trainer",
        {
            ("MainThread", (READ, MAIN)): rankset.of([2]),
            ("MainThread", (REDUCE, MAIN)): rankset.of([0, 1, 3]),
            ("tqdm_monitor", (MAIN,)): rankset.of([0]),
        },
        captured=rankset.span(0, 3),
    )


def test_folded() -> None:
    assert folded.render([small()]).splitlines() == [
        "MainThread@main@/job/train.py:9@0-3|;MainThread@all_reduce@/c10d.py:7@0-1/3|2 3",
        "MainThread@main@/job/train.py:9@0-3|;MainThread@read@/job/shard.py:344@2|0-1/3 1",
        "tqdm_monitor@main@/job/train.py:9@0|1-3 1",
    ]


def test_folded_names_the_role_where_there_are_several() -> None:
    worker = build("dataloader", {("MainThread", (READ,)): 1}, captured=1)
    lines = folded.render([small(), worker]).splitlines()
    assert lines[0].startswith("trainer;MainThread@main@")
    assert lines[-1] == "dataloader;MainThread@read@/job/shard.py:344@0| 1"


def test_nothing() -> None:
    empty = build("trainer", {}, captured=0)
    assert folded.render([]) == folded.render([empty]) == ""
    assert json.loads(speedscope.render([empty]))["profiles"] == []
    assert json.loads(grafana.render([]))["data"]["values"] == [[0], [0], [0], ["all"], [""], [""]]


def check_speedscope(found: dict[str, Any]) -> None:
    """What the schema of speedscope's file format asks for."""
    assert found["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = found["shared"]["frames"]
    for frame in frames:
        assert isinstance(frame["name"], str)
        assert isinstance(frame.get("file", ""), str)
        assert isinstance(frame.get("line", 1), int)
    for profile in found["profiles"]:
        assert profile["type"] == "sampled"
        assert profile["unit"] in ("none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes")
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
        assert all(0 <= index < len(frames) for sample in profile["samples"] for index in sample)
    if found["profiles"]:
        assert 0 <= found["activeProfileIndex"] < len(found["profiles"])


def test_speedscope() -> None:
    found = json.loads(speedscope.render([small()], title="llm"))
    check_speedscope(found)
    assert [profile["name"] for profile in found["profiles"]] == [
        "trainer MainThread",
        "trainer tqdm_monitor",
    ]
    frames = found["shared"]["frames"]
    (read,) = (frame for frame in frames if frame["name"].startswith("read"))
    assert read == {"name": "read [2|0-1/3]", "file": "/job/shard.py", "line": 344}
    main = found["profiles"][0]
    stacks = {
        tuple(frames[i]["name"].split()[0] for i in s): w
        for s, w in zip(main["samples"], main["weights"], strict=True)
    }
    assert stacks == {("main", "read"): 1, ("main", "all_reduce"): 3}


def check_nested(found: dict[str, Any]) -> None:
    """Every child lies within its parent, depth first."""
    levels, values, selfs = found["data"]["values"][:3]
    children = [0] * len(levels)
    path: list[int] = []
    for index, level in enumerate(levels):
        assert level <= (levels[index - 1] + 1 if index else 0)
        del path[level:]
        if path:
            children[path[-1]] += values[index]
        path.append(index)
    for value, own, inner in zip(values, selfs, children, strict=True):
        assert own >= 0
        assert value == own + inner


def test_grafana() -> None:
    found = json.loads(grafana.render([small()]))
    assert found["schema"]["meta"] == {"preferredVisualisationType": "flamegraph"}
    assert [field["name"] for field in found["schema"]["fields"]][:4] == ["level", "value", "self", "label"]
    levels, values, _, labels, ranks, others = found["data"]["values"]
    rows = list(zip(levels, values, labels, ranks, others, strict=True))
    assert rows[:3] == [
        (0, 5, "all", "", ""),
        (1, 5, "trainer", "0-3", ""),
        (2, 4, "MainThread@main@/job/train.py:9", "0-3", ""),
    ]
    assert (3, 1, "MainThread@read@/job/shard.py:344", "2", "0-1/3") in rows
    check_nested(found)


frames = st.builds(
    Frame, name=st.sampled_from(["f", "g", "h;@|\n"]), filename=st.just("/a.py"), line=st.integers(1, 2)
)
stacks = st.dictionaries(
    st.tuples(st.sampled_from(["MainThread", "w"]), st.lists(frames, max_size=5).map(tuple)),
    st.integers(1, 255),
    max_size=8,
)


@given(stacks)
def test_any_tree_is_well_formed(found: dict[tuple[str, tuple[Frame, ...]], int]) -> None:
    tree = build("trainer", found, captured=255)
    check_nested(json.loads(grafana.render([tree])))
    check_speedscope(json.loads(speedscope.render([tree])))
    for line in folded.render([tree]).splitlines():
        text, _, count = line.rpartition(" ")
        assert int(count) > 0
        assert all(part.count("@") == 3 and part.count("|") == 1 for part in text.split(";"))
