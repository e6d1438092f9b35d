"""What an answer holds against single ranks, and which ranks of the job those are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exporter.nccl.evidence import KnownProcess, RankFact, facts
from exporter.nccl.model import RasReport
from exporter.nccl.parse import parse

FOLDER = Path(__file__).parent.parent / "fixtures" / "nccl" / "transcripts"
TRUTH = {
    entry["file"].removesuffix(".reply"): entry["truth"]
    for entry in map(json.loads, (FOLDER / "index.jsonl").read_text().splitlines())
}


def read(name: str) -> RasReport:
    return parse((FOLDER / f"{name}.reply").read_bytes())


def job(name: str, *, addresses: bool = False) -> tuple[KnownProcess, ...]:
    """The processes of a recording as a capture knows them: nodes by name, ranks in order."""
    processes = []
    for number, (address, some) in enumerate(TRUTH[name]["nodes"].items()):
        for one in some:
            where = (address,) if addresses else ()
            processes.append(KnownProcess(f"gpu-node-{number}", len(processes), (one["pid"],), where))
    return tuple(processes)


def told(found: tuple[RankFact, ...]) -> set[tuple[str, int | None, str | None]]:
    return {(fact.kind, fact.rank, fact.node) for fact in found}


@pytest.mark.parametrize("addresses", [True, False])
@pytest.mark.parametrize("name", ["killed-t75-2.30.7", "killed-t75-json-2.30.7", "killed-t75-2.28.9"])
def test_a_dead_process_is_its_world_rank_in_every_communicator(name: str, addresses: bool) -> None:
    found = facts(read(name), job(name, addresses=addresses), world_size=8)
    assert told(found) == {("dead", 7, "gpu-node-1"), ("missing", 7, "gpu-node-1")}
    assert found[0].kind == "dead"
    assert f"pid {TRUTH[name]['victim']['pid']} on gpu-node-1" in found[0].text
    assert "rank 7" in found[0].text


@pytest.mark.parametrize("name", ["killed-t75-2.30.7", "killed-t75-json-2.30.7"])
def test_without_known_processes_the_communicator_of_all_ranks_says_who(name: str) -> None:
    assert told(facts(read(name), world_size=8)) == {("dead", 7, "127.0.0.2"), ("missing", 7, "127.0.0.2")}


def test_nodes_whose_processes_have_equal_pids_are_told_apart_by_their_addresses() -> None:
    report = read("killed-t75-json-2.30.7")
    pids = {process.pid: number % 4 for number, process in enumerate(report.processes)}
    known = [
        KnownProcess(f"pod-{node}", 4 * node + index, tuple(pids), (f"127.0.0.{node + 1}",))
        for node in (0, 1)
        for index in range(4)
    ]
    (dead,) = [fact for fact in facts(report, known, world_size=8) if fact.kind == "dead"]
    assert (dead.node, dead.rank) == ("pod-1", 7)  # its pid alone fits four ranks; the communicator tells


def test_a_process_of_another_node_is_never_taken_for_ours_by_its_pid() -> None:
    """A node knows its own processes alone, and pids of containers are alike."""
    for name in ("killed-t75-2.30.7", "killed-t75-json-2.30.7"):
        report, victim = read(name), TRUTH[name]["victim"]["pid"]
        pids = [one["pid"] for one in TRUTH[name]["nodes"]["127.0.0.1"]]
        ours = [KnownProcess("ours", rank, (pid, victim - 3 + rank)) for rank, pid in enumerate(pids)]
        found = facts(report, ours, world_size=8)
        assert {fact.rank for fact in found} == {7}
        by_address = [KnownProcess("ours", one.rank, one.pids, ("127.0.0.1",)) for one in ours]
        assert told(facts(report, by_address, world_size=8)) == {
            ("dead", 7, "127.0.0.2"),
            ("missing", 7, "127.0.0.2"),
        }


def test_old_versions_name_the_rank_alone() -> None:
    found = facts(read("killed-t0-2.24.3"), job("killed-t0-2.24.3"), world_size=8)
    assert ("missing", 7, "gpu-node-1") in told(found)  # the process
    assert ("missing", 7, None) in told(found)  # the rank of the communicator of all


def test_a_rank_that_is_behind() -> None:
    for name in ("big-lag-2.30.7", "big-lag-json-2.30.7"):
        found = [fact for fact in facts(read(name), world_size=64) if fact.size == 8]
        (fact,) = found
        assert (fact.kind, fact.alike) == ("behind", 1)
        assert "has launched 3999 AllReduce operations where others launched 4000" in fact.text


def test_a_majority_that_is_behind_is_named_though_the_text_names_the_one_ahead() -> None:
    found = facts(read("multicomm-lag-2.30.7"), world_size=8)
    behind = {fact.rank for fact in found if "ReduceScatter" in fact.text}
    assert behind == set(range(8)) - {3}
    assert {fact.alike for fact in found if "ReduceScatter" in fact.text} == {7}


def test_half_behind_in_text_names_nobody() -> None:
    assert facts(read("lag-half-2.30.7"), world_size=16) == ()


def test_errors_and_states() -> None:
    found = facts(read("error-init-one-json-2.30.7"), world_size=8)
    assert {(fact.kind, fact.rank) for fact in found} == {("error", 1), ("state", 1), ("behind", 1)}
    (aborted,) = facts(read("state-abort-2.30.7"), world_size=8)
    assert (aborted.kind, aborted.rank) == ("state", 3)
    assert "ABORT where 7 others are RUNNING" in aborted.text


def test_a_mismatch_that_moves_is_no_fact() -> None:
    first, second = read("live-poll0-2.30.7"), read("live-poll1-2.30.7")
    assert facts(second, earlier=first) == ()
    assert facts(second, earlier=second)
    assert facts(second)


def test_a_job_that_is_well_gives_no_facts() -> None:
    for name in ("healthy-2.30.7", "healthy-json-2.30.7", "state-none-2.30.7", "stoplocal-silent-2.30.7"):
        assert facts(read(name), world_size=8) == ()


def test_a_corrupt_table_is_no_evidence() -> None:
    found = facts(read("invalid-json-2.30.7"), world_size=8)
    assert found == ()
