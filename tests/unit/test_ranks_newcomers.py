"""Processes that start between two thorough scans, found by the pid that was given out last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exporter.procfs import ProcFS
from exporter.ranks import RankFinder

BOOT = 1_700_000_000.0
ENVIRON = {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "job"}


class Node:
    """A /proc with a counter of pids, and polls of the finder; how often all processes were listed."""

    def __init__(self, tree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tree = tree
        self.now = BOOT + 3600
        self.listed = 0
        procfs = ProcFS(tree.root, keep_open=0)  # what is open stays readable in a fixture
        pids = procfs.pids

        def counted() -> set[int]:
            self.listed += 1
            return pids()

        monkeypatch.setattr(procfs, "pids", counted)
        monkeypatch.setattr("exporter.ranks.time.thread_time", lambda: 0.0)  # scans cost nothing
        self.finder = RankFinder(procfs, node="node-x", now=lambda: self.now)
        tree.process(1, argv=["/sbin/init"])
        self.newest(50)
        self.seen()

    def newest(self, pid: int) -> None:
        self.tree.file("loadavg", f"0.0 0.0 0.0 1/9 {pid}\n")

    def rank(self, pid: int, **more: Any) -> None:
        self.tree.process(pid, argv=["/usr/bin/python3", "t.py"], environ=ENVIRON, start=360000, **more)

    def seen(self, later: float = 1.0) -> set[int]:
        self.now += later
        self.finder.poll()
        return {one.id.pid for one in self.finder.latest.processes}


@pytest.fixture
def node(proc_tree: Any, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(proc_tree, monkeypatch)


def test_new_process_is_found_without_a_listing(node: Node) -> None:
    node.rank(60)
    node.newest(61)
    assert node.seen() == {60}
    node.tree.end(60)
    assert node.seen() == set()
    assert node.listed == 0


def test_process_that_appears_after_its_pid_was_given_out(node: Node) -> None:
    node.newest(60)
    assert node.seen() == set()
    node.rank(60)
    assert node.seen() == {60}
    assert node.listed == 0


def test_thread_is_no_process(node: Node) -> None:
    node.rank(60)
    node.rank(61)
    status = (node.tree.root / "61/status").read_text()
    node.tree.file("61/status", status.replace("Tgid:\t61", "Tgid:\t60"))
    node.newest(61)
    assert node.seen() == {60}


@pytest.mark.parametrize("newest", [55, 5000])
def test_pids_that_begin_anew_or_are_too_many_are_listed(node: Node, newest: int) -> None:
    node.newest(56)
    node.seen()
    node.rank(20)
    node.newest(newest)
    assert node.seen() == {20}
    assert node.listed == 1


def test_pid_used_again_is_another_process(node: Node, tmp_path: Path) -> None:
    node.tree.process(60, argv=["/bin/sh"])
    node.newest(60)
    assert node.seen() == set()
    node.newest(55)  # all pids were given out once
    node.seen()
    (node.tree.root / "60").rename(tmp_path / "old")  # so that the new one cannot have its inode
    node.rank(60)
    node.newest(60)
    assert node.seen() == {60}


@pytest.mark.parametrize("newest", [90_000, 0, None])
def test_newest_pid_that_is_not_of_our_processes(node: Node, newest: int | None) -> None:
    """Of the host, in some containers; never told (gVisor)."""
    if newest is None:
        (node.tree.root / "loadavg").unlink()
    else:
        node.newest(newest)
    node.seen()
    node.seen()
    node.rank(60)
    assert node.seen(later=20.0) == {60}  # a thorough scan
    listed = node.listed
    node.rank(61)
    assert node.seen() == {60, 61}
    assert node.listed == listed + 1
