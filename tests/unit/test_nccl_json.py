"""The JSON answer: other layouts, big answers in pieces, fields that are new or broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exporter.nccl import ras_json
from exporter.nccl.parse import parse, to_json

FOLDER = Path(__file__).parent.parent / "fixtures" / "nccl" / "transcripts"


def rank(number: int, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rank": number,
        "host": f"10.0.0.{number // 8}",
        "pid": 1000 + number,
        "cuda_dev": number % 8,
        "nvml_dev": number % 8,
        "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": False,
            "destroy_flag": False,
            "abort_flag": False,
        },
        "collective_counts": {
            "Broadcast": 1,
            "Reduce": 0,
            "AllGather": 5,
            "ReduceScatter": 5,
            "AllReduce": 9,
        },
    }
    return found | more


def communicator(
    hash_: str, ranks: list[dict[str, Any]], missing: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    missing = missing or []
    return {
        "hash": hash_,
        "secondary_hash": "0x1:0x2",
        "size": len(ranks) + len(missing),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing),
        "ranks": ranks,
        "missing_ranks": missing,
    }


def answer(communicators: list[dict[str, Any]], indent: int | None = 2) -> bytes:
    whole = {
        "nccl_version": "2.30.7",
        "cuda_runtime_version": 12090,
        "cuda_driver_version": 13010,
        "timestamp": "2026-01-01 00:00:00",
        "communicators_count": len(communicators),
        "communicators": communicators,
        "ras": {"collection_time_sec": 0.25, "timeouts_count": 0},
    }
    return b"SERVER PROTOCOL 2\nOK\n" + json.dumps(whole, indent=indent).encode() + b"\n"


def test_a_layout_without_line_ends_reads_the_same() -> None:
    some = [communicator("0x1f", [rank(0), rank(1)]), communicator("0x2f", [rank(0)])]
    spread, dense = parse(answer(some)), parse(answer(some, indent=None))
    assert to_json(spread) == to_json(dense)
    assert spread.complete
    assert [(group.size, group.communicators) for group in spread.groups] == [(2, 1), (1, 1)]


@pytest.mark.parametrize("size", [200, 1000, 5000])
def test_any_size_of_pieces_reads_the_same(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    raw = (FOLDER / "big-lag-json-2.30.7.reply").read_bytes()
    whole = to_json(parse(raw))
    monkeypatch.setattr(ras_json, "BATCH_BYTES", size)
    assert to_json(parse(raw)) == whole
    assert whole["complete"]


def test_a_forgotten_comma_is_put_back_in_big_communicators_too(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = (FOLDER / "killed-t75-json-2.28.9.reply").read_bytes()
    whole = to_json(parse(raw))
    monkeypatch.setattr(ras_json, "BATCH_BYTES", 300)
    assert to_json(parse(raw)) == whole
    assert [one["pid"] for one in whole["dead"]] == [30708]


def test_unknown_fields_are_taken_in_stride() -> None:
    one = communicator(
        "0x1f", [rank(0, new="field", collective_counts={"AllReduce": 3, "AllToAll": 4}), rank(1)]
    )
    one["also_new"] = {"deep": [1, 2]}
    found = parse(answer([one]))
    assert found.not_understood == ()
    assert {launch.op for launch in found.communicators[0].launches} >= {"AllReduce", "AllToAll"}


def test_counters_of_64_bits() -> None:
    counts = {"AllReduce": 2**64 - 1}
    found = parse(answer([communicator("0x1f", [rank(0, collective_counts=counts), rank(1)])]))
    (launch,) = [one for one in found.communicators[0].launches if one.op == "AllReduce"]
    assert launch.lag == 2**64 - 1 - 9


def test_a_communicator_of_another_shape_is_handed_back_and_the_rest_read() -> None:
    good = [communicator(hex(n), [rank(n)]) for n in range(3)]
    broken = communicator("0x77", [rank(0, pid="many")])
    found = parse(answer([*good, broken]))
    assert found.complete
    assert len(found.not_understood) == 1
    assert "0x77" in found.not_understood[0] or found.groups == ()


def test_states_and_errors() -> None:
    fine = rank(0)["status"]
    states = {
        "ABORT": {"abort_flag": True, "finalize_called": True},
        "FINALIZE": {"destroy_flag": True},
        "INIT": {"init_state": 7},
    }
    for state, change in states.items():
        found = parse(answer([communicator("0x1", [rank(0), rank(1), rank(2, status=fine | change)])]))
        (one,) = found.communicators
        assert one.statuses is not None
        assert [(share.value, share.count) for share in one.statuses.shares] == [("RUNNING", 2), (state, 1)]
        assert one.rank_errors == ()
    found = parse(answer([communicator("0x1", [rank(0), rank(1, status=fine | {"init_state": 3})])]))
    assert found.groups[0].errors == ("ERROR", "MISMATCH")
    assert found.communicators[0].rank_errors[0].shares[0].value == "Internal error"


def test_missing_dead_and_departed_members() -> None:
    def gone(number: int, unresponsive: bool, dead: bool) -> dict[str, Any]:
        found = rank(number, status={"unresponsive": unresponsive, "considered_dead": dead})
        del found["collective_counts"]
        return found

    members = [rank(0), rank(1)]
    found = parse(
        answer(
            [communicator("0x1", members, [gone(2, True, True), gone(3, True, False), gone(4, False, False)])]
        )
    )
    (one,) = found.communicators
    assert [rank.rank for rank in one.missing_ranks] == [2, 3]
    assert one.errors == ("INCOMPLETE", "MISMATCH")
    assert one.statuses is not None
    assert ("NOCOMM", 1) in [(share.value, share.count) for share in one.statuses.shares]
    assert [process.pid for process in found.dead] == [1002]
    assert [process.pid for process in found.missing] == [1003]


def test_a_process_that_is_unknown_to_ras() -> None:
    lost = rank(1, host="unknown", pid=-1, status={"unresponsive": True, "considered_dead": False})
    del lost["collective_counts"]
    found = parse(answer([communicator("0x1", [rank(0)], [lost])]))
    assert found.summary is not None
    assert (found.summary.nodes, found.summary.processes) == (1, 1)
    (missing,) = found.communicators[0].missing_ranks
    assert (missing.pid, missing.node) == (None, None)


def test_communicators_of_no_size_are_dropped_and_counted() -> None:
    empty = communicator("0x0", [])
    found = parse(answer([communicator("0x1", [rank(0)]), empty, empty]))
    assert found.corrupt
    assert found.dropped == 2
    assert [group.size for group in found.groups] == [1]
    assert not found.tables_trusted


def test_no_communicators() -> None:
    found = parse(answer([]))
    assert found.complete
    assert found.groups == ()
    assert parse((FOLDER / "state-none-json-2.30.7.reply").read_bytes()).complete
