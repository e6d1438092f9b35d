"""Every recorded RAS answer is understood, and says what was set up when it was recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from exporter.nccl.model import RasReport, Span
from exporter.nccl.parse import parse, to_json

FOLDER = Path(__file__).parent.parent / "fixtures" / "nccl" / "transcripts"
INDEX: list[dict[str, Any]] = [json.loads(line) for line in (FOLDER / "index.jsonl").read_text().splitlines()]
REPORTS = [entry for entry in INDEX if not entry["scenario"].startswith(("proto", "monitor", "stoplocal"))]

# Recorded where NVIDIA/nccl#1762 or #2346 made the answer say impossible things.
CORRUPT = re.compile(r"killed-t\d+-2\.2[68]\.\d\.reply|invalid-(?!2\.26)")


def read(entry: dict[str, Any]) -> RasReport:
    return parse((FOLDER / entry["file"]).read_bytes())


def by_file(entries: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("entry", entries, ids=[entry["file"] for entry in entries])


def truth_processes(entry: dict[str, Any]) -> set[tuple[str, int]]:
    return {(node, one["pid"]) for node, some in entry["truth"]["nodes"].items() for one in some}


def test_the_index_is_the_folder() -> None:
    assert {entry["file"] for entry in INDEX} == {path.name for path in FOLDER.glob("*.reply")}


@by_file(INDEX)
def test_nothing_remains_unread(entry: dict[str, Any]) -> None:
    report = read(entry)
    assert report.not_understood == ()
    assert bool(report.understood) == bool((FOLDER / entry["file"]).read_bytes().strip())


@by_file(REPORTS)
def test_version_format_and_end(entry: dict[str, Any]) -> None:
    report = read(entry)
    assert report.nccl_version == entry["nccl"]
    assert report.format == ("json" if "SET FORMAT json" in entry["sent"] else "text")
    assert report.complete
    assert report.corrupt == bool(CORRUPT.match(entry["file"]))
    assert report.server_errors == ()


@by_file([entry for entry in REPORTS if "n_nodes" in entry["truth"]])
def test_summary(entry: dict[str, Any]) -> None:
    report, truth = read(entry), entry["truth"]
    if entry["file"].startswith("state-none-json"):
        assert report.summary is None  # JSON shows processes by their communicators alone
        return
    assert report.summary is not None
    counts = (report.summary.nodes, report.summary.processes, report.summary.gpus)
    assert counts == (truth["n_nodes"], truth["n_processes"], truth["n_gpus"])
    sizes = [len(some) for some in truth.get("nodes", {}).values()]
    if sizes:
        assert report.summary.processes_per_node == Span(min(sizes), max(sizes))


@by_file([entry for entry in REPORTS if isinstance(entry["truth"].get("ncomms"), int)])
def test_number_of_communicators(entry: dict[str, Any]) -> None:
    assert sum(group.communicators for group in read(entry).groups) == entry["truth"]["ncomms"]


@by_file([entry for entry in REPORTS if entry["truth"].get("comms")])
def test_communicator_sizes(entry: dict[str, Any]) -> None:
    report = read(entry)
    if report.corrupt:
        assert report.groups == ()
        return
    found = sorted(group.size for group in report.groups for _ in range(group.communicators))
    assert found == sorted(one["size"] for one in entry["truth"]["comms"])


@by_file([entry for entry in REPORTS if entry["truth"].get("comms", [{}])[0].get("hash")])
def test_states_of_communicators(entry: dict[str, Any]) -> None:
    truth = entry["truth"]["comms"]
    errors = "OK" if truth[0]["errors"] == "OK" else truth[0]["errors"]
    (group,) = read(entry).groups
    assert (group.status, ",".join(group.errors) or "OK") == (truth[0]["status"], errors)


def with_victim(entry: dict[str, Any]) -> bool:
    return "victim" in entry["truth"] and "-before-" not in entry["file"]


def truth_victim(entry: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Pid of the process that was killed or stopped, and what else is known of it."""
    victim = entry["truth"]["victim"]
    return (victim, {}) if isinstance(victim, int) else (victim["pid"], victim)


@by_file([entry for entry in REPORTS if with_victim(entry)])
def test_the_victim_is_named(entry: dict[str, Any]) -> None:
    report, (pid, victim) = read(entry), truth_victim(entry)
    (process,) = (*report.dead, *report.missing)
    assert process.pid == pid
    assert process.node == victim.get("node", process.node)
    since = entry["truth"].get("since_s")
    if since is not None and since < 60:
        assert report.missing
    elif since is not None:
        assert report.dead
    assert (report.dead_count, report.missing_count) == (len(report.dead), len(report.missing))
    for one in (one for some in entry["truth"].get("nodes", {}).values() for one in some):
        if one["pid"] == pid:
            assert list(process.gpus) == one["gpus"]


@by_file([entry for entry in REPORTS if with_victim(entry)])
def test_missing_ranks_are_the_victims(entry: dict[str, Any]) -> None:
    report, (pid, victim) = read(entry), truth_victim(entry)
    assert report.communicators
    for one in report.communicators:
        assert one.missing == len(one.missing_ranks) == 1
        (rank,) = one.missing_ranks
        assert rank.pid == (None if entry["nccl"].startswith("2.24") else pid)
        if one.size == entry["truth"]["n_processes"] and "rank" in victim:
            assert rank.rank == victim["rank"]


@by_file(REPORTS)
def test_every_named_process_exists(entry: dict[str, Any]) -> None:
    report = read(entry)
    if "nodes" in entry["truth"]:
        assert {(one.node, one.pid) for one in report.processes} <= truth_processes(entry)
    for one in report.communicators:
        assert one.size is not None
        assert all(rank.rank < one.size for rank in one.named)


PAIRS = [
    (entry["file"], entry["file"].replace("-json-", "-"))
    for entry in INDEX
    if "-json-" in entry["file"] and (FOLDER / entry["file"].replace("-json-", "-")).exists()
]
# The two were recorded apart where the job had moved on, or where the text is corrupt.
DIFFER = re.compile(r"invalid|killed-t\d+-json-2\.28|proto|monitor|state-none|error-code8")


@pytest.mark.parametrize(("json_file", "text_file"), [pair for pair in PAIRS if not DIFFER.match(pair[0])])
def test_json_tells_what_text_tells(json_file: str, text_file: str) -> None:
    from_json = to_json(parse((FOLDER / json_file).read_bytes()))
    from_text = to_json(parse((FOLDER / text_file).read_bytes()))
    for key in ("nccl_version", "complete", "communicators", "dead", "missing", "missing_processes"):
        assert from_json[key] == from_text[key], key
    assert from_json["rank_errors"] == from_text["rank_errors"]
    figures = ("nodes", "processes", "gpus", "processes_per_node", "gpus_per_process")
    for figure in figures:
        assert from_json["summary"][figure] == from_text["summary"][figure], figure
    assert [shares(one) for one in from_json["mismatches"]] == [
        shares(one) for one in from_text["mismatches"]
    ]


def shares(mismatch: dict[str, Any]) -> tuple[Any, ...]:
    """What is said of a mismatch but for the ranks: the text does not name all of them."""
    counts = sorted((one.get("status", one.get("launched")), one["count"]) for one in mismatch["values"])
    return mismatch["hash"], mismatch["kind"], mismatch.get("op"), counts


def test_code_8_is_counted_in_text_and_named_in_json() -> None:
    text = parse((FOLDER / "error-code8-2.30.7.reply").read_bytes()).communicators[0]
    json_ = parse((FOLDER / "error-code8-json-2.30.7.reply").read_bytes()).communicators[0]
    assert [part.count for part in text.rank_errors] == [part.count for part in json_.rank_errors] == [1]
    assert json_.rank_errors[0].shares[0].ranks[0].rank == 2


def test_a_lagging_rank_of_big_jobs() -> None:
    for name in ("big-lag-2.30.7", "big-lag-verbose-2.30.7", "big-lag-json-2.30.7"):
        communicators = parse((FOLDER / f"{name}.reply").read_bytes()).communicators
        (small,) = [one for one in communicators if one.size == 8]
        (launch,) = small.launches
        assert (launch.op, launch.lag) == ("AllReduce", 1)
        assert [rank.rank for rank in launch.behind] == [5]


def test_old_versions_count_all_collectives_in_one() -> None:
    (one,) = parse((FOLDER / "lag-one-2.24.3.reply").read_bytes()).communicators
    assert [launch.op for launch in one.launches] == ["collective"]


def test_a_process_that_never_launched() -> None:
    report = parse((FOLDER / "multicomm-lag-2.30.7.reply").read_bytes())
    launches = {launch.op: launch for launch in report.communicators[0].launches}
    assert launches["ReduceScatter"].lag == 1
    assert {share.launched: share.count for share in launches["ReduceScatter"].shares} == {0: 7, 1: 1}


def test_renumbered_gpus_keep_both_numbers() -> None:
    (one,) = parse((FOLDER / "summary-nvml-2.30.7.reply").read_bytes()).communicators
    (rank,) = one.launches[0].behind
    assert (rank.gpu, rank.nvml) == (0, 6)


def test_communication_timeouts() -> None:
    for name in ("stopped-t0-2.30.7", "stopped-t0-2.24.3"):
        report = parse((FOLDER / f"{name}.reply").read_bytes())
        assert report.timeouts == 2
        assert report.collection_seconds == pytest.approx(4.95)


def test_monitor_events() -> None:
    for name, subject in (
        ("monitor-default-2.30.7", "Process 5488 on node 127.0.0.2 managing GPU 1"),
        ("monitor-default-json-2.30.7", "process 6244 on node 127.0.0.2"),
    ):
        (event,) = parse((FOLDER / f"{name}.reply").read_bytes()).events
        assert (event.name, event.subject) == ("PEER_DEAD", subject)


def test_corrupt_tables_give_no_figures() -> None:
    for entry in INDEX:
        if not re.match(r"killed-t\d+-2\.2[68]", entry["file"]):
            continue
        printed = to_json(read(entry))
        assert printed["corrupt"]
        assert printed["communicators"] == []
        victim = entry["truth"]["victim"]
        assert {rank["pid"] for rank in printed["missing"]} == {victim["pid"]}
        assert [one["pid"] for one in (*printed["dead"], *printed["missing_processes"])] == [victim["pid"]]


def test_the_answer_of_a_second_question_spliced_in() -> None:
    report = parse((FOLDER / "proto-two-status-2.30.7.reply").read_bytes())
    assert report.complete
    assert [(group.communicators, group.size) for group in report.groups] == [(1, 8)]


def test_the_published_example() -> None:
    printed = to_json(parse((FOLDER / "seed-example-2.26.3.reply").read_bytes()))
    assert printed["nccl_version"] == "2.26.3"
    assert printed["communicators"] == [
        {
            "group": 0,
            "comms": 1,
            "nodes_per_comm": 1,
            "ranks_per_node": 7,
            "ranks_per_comm": 8,
            "ranks_in_group": 7,
            "status": "RUNNING",
            "errors": ["INCOMPLETE"],
        }
    ]
    assert printed["dead"] == [{"pid": 19377, "node": "172.25.9.225", "gpus": [0]}]
    assert printed["missing"] == [
        {"hash": "0623e6289c3f6e3c", "rank": 0, "gpu": 0, "pid": 19377, "node": "172.25.9.225"}
    ]
    assert (printed["complete"], printed["corrupt"]) == (True, False)
