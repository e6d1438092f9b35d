"""`list-ranks`: a table for people, JSON for programs, a reason for every near miss."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from exporter import listranks
from exporter.procfs import ProcFS, Unreadable
from exporter.ranks import RankFinder


def listed(proc_tree: Any, *, as_json: bool) -> tuple[int, str]:
    out = io.StringIO()
    finder = RankFinder(ProcFS(proc_tree.root), node="node-x", now=lambda: 1_700_003_600.0)
    return listranks.run(finder.scan(), as_json=as_json, out=out), out.getvalue()


def test_table(proc_tree: Any) -> None:
    proc_tree.load("pytorchjob-torchrun.json")
    status, text = listed(proc_tree, as_json=False)
    assert status == 0
    lines = text.splitlines()
    assert lines[0] == "Job team-a.bert: 2 of 2 ranks of this node run, world size 4"
    assert lines[1].split() == ["RANK", "LOCAL", "ROLE", "PID", "GPU", "POD", "LAUNCHER", "COMMAND"]
    assert lines[2].split()[:7] == ["2", "0", "trainer", "200", "-", "bert-worker-0", "torchrun"]
    assert "Not taken for ranks:" in lines
    assert "the ranks are started by process 100" in text


def test_json(proc_tree: Any) -> None:
    proc_tree.load("torchrun.json")
    status, text = listed(proc_tree, as_json=True)
    data = json.loads(text)
    assert status == 0
    assert data["node"] == "node-x"
    assert data["jobs"][0] == {
        "job_id": "llama-7b",
        "expected": 2,
        "running": 2,
        "conflicts": 0,
        "world_size": 4,
        "missing_ranks": [],
    }
    worker = next(one for one in data["processes"] if one["pid"] == 220)
    assert (worker["role"], worker["rank"], worker["worker"], worker["start_ticks"]) == (
        "dataloader",
        2,
        1,
        220,
    )


def test_nothing_found(proc_tree: Any) -> None:
    proc_tree.process(100, argv=["/usr/bin/python3", "x.py"], environ={"RANK": "3; rm", "WORLD_SIZE": "4"})
    status, text = listed(proc_tree, as_json=False)
    assert status == 2
    assert text.startswith("No training processes on node-x.")
    assert "RANK is '3; rm'" in text


def test_where_nothing_is_even_near_it_says_what_a_rank_is(proc_tree: Any) -> None:
    proc_tree.process(100, argv=["/usr/bin/python3", "x.py"])
    status, text = listed(proc_tree, as_json=False)
    assert status == 2
    assert "such as RANK and WORLD_SIZE" in text and "--path.procfs" in text
    status, text = listed(proc_tree, as_json=True)
    assert (status, json.loads(text)["processes"]) == (2, [])


def test_who_may_not_be_looked_into_is_counted_unless_it_has_a_place(
    proc_tree: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    procfs = ProcFS(proc_tree.root)
    environ = procfs.environ
    monkeypatch.setattr(
        procfs, "environ", lambda pid: Unreadable.DENIED if pid in (200, 300, 400) else environ(pid)
    )
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "h"}
    proc_tree.process(100, argv=["/usr/bin/python3", "train.py"], environ=place)
    proc_tree.process(200, ppid=100, argv=["/usr/bin/python3", "helper.py"])  # of a rank: it has a place
    proc_tree.process(300, argv=["/usr/bin/python3", "t.py"], threads=["pt_gloo_runloop"])  # torch's name
    proc_tree.process(400, argv=["/usr/bin/python3", "x.py"])
    scan = RankFinder(procfs, node="node-x", now=lambda: 1_700_003_600.0).scan()
    assert [one.id.pid for one in scan.processes] == [100, 200]
    assert [one.pid for one in scan.near_misses] == [300, 400]
    assert scan.denied == 2


def test_control_characters_of_a_command_line_do_not_reach_the_terminal(proc_tree: Any) -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "h"}
    proc_tree.process(100, argv=["/usr/bin/python3", "\x1b[2J\nx"], environ=environ)
    _, text = listed(proc_tree, as_json=False)
    assert "\x1b" not in text
