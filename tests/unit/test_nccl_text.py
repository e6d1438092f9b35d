"""Forms of the text answer that no recording shows, answers that were cut, and nonsense."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.nccl.model import RasReport, Version, parse_version
from exporter.nccl.parse import parse, to_json

FOLDER = Path(__file__).parent.parent / "fixtures" / "nccl" / "transcripts"

HEAD = """NCCL version 2.30.7 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13010

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            2          8       16

Communicators... (0.005s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         8        16        16   RUNNING  {error}

Errors
======

"""
WARNINGS = "\nWarnings\n========\n\n"


def report(error: str, errors: str = "", warnings: str = "") -> RasReport:
    found = parse((HEAD.format(error=error) + errors + WARNINGS + warnings).encode())
    assert found.not_understood == ()
    return found


def test_processes_with_several_and_renumbered_gpus() -> None:
    found = report(
        "INCOMPLETE",
        "INCOMPLETE\n  Missing communicator data from 2 job processes\n"
        "  Process 11 on node 10.0.0.1 managing GPUs 0,1 (NVML 4,5)\n"
        "  Process 12 on node fd00::7 managing GPU 0 (NVML 3)\n\n"
        "#0-0 (0623e6289c3f6e3c) INCOMPLETE\n  Missing communicator data from 4 ranks\n"
        "  Rank 0 -- GPU 0 (NVML 4) managed by process 11 on node 10.0.0.1\n"
        "  Rank 1 -- GPU 1 (NVML 5) managed by process 11 on node 10.0.0.1\n"
        "  Rank 2 -- GPU 0 (NVML 3) managed by process 12 on node fd00::7\n"
        "  Rank 3 -- [process information not found]\n",
    )
    assert [(one.pid, one.node, one.gpus, one.nvml) for one in found.missing] == [
        (11, "10.0.0.1", (0, 1), (4, 5)),
        (12, "fd00::7", (0,), (3,)),
    ]
    ranks = found.communicators[0].missing_ranks
    assert [(one.rank, one.gpu, one.nvml, one.pid) for one in ranks] == [
        (0, 0, 4, 11),
        (1, 1, 5, 11),
        (2, 0, 3, 12),
        (3, None, None, None),
    ]


def test_processes_that_could_not_be_found_are_counted() -> None:
    found = report(
        "OK",
        "DEAD\n  3 job processes are considered dead (unreachable via the RAS network)\n"
        "  Process 11 on node 10.0.0.1 managing GPUs 0,1\n"
        "  [could not find information on 2 processes]\n\n",
    )
    assert (found.dead_count, len(found.dead)) == (3, 1)


def test_more_missing_ranks_than_are_listed() -> None:
    found = report(
        "INCOMPLETE",
        "INCOMPLETE\n  Missing communicator data from 12 job processes\n\n"
        "#0-0 (0623e6289c3f6e3c) INCOMPLETE\n  Missing communicator data from 12 ranks\n\n",
    )
    assert found.missing_count == 12
    assert (found.communicators[0].missing, found.communicators[0].missing_ranks) == (12, ())


def test_lists_of_missing_and_unknown_ranks() -> None:
    found = report(
        "INCOMPLETE,MISMATCH",
        "#0-0 (0623e6289c3f6e3c) INCOMPLETE\n  Missing communicator data from 3 ranks\n"
        "  The missing ranks: 1,4,5\n\n",
        "#0-0 (0623e6289c3f6e3c) MISMATCH\n  Communicator ranks have different status\n"
        "  11 ranks have status RUNNING\n  The unknown ranks: 7,8\n",
    )
    (one,) = found.communicators
    assert [rank.rank for rank in one.missing_ranks] == [1, 4, 5]
    assert one.errors == ("INCOMPLETE", "MISMATCH")
    assert one.statuses is not None
    assert [(share.value, share.count, [r.rank for r in share.ranks]) for share in one.statuses.shares] == [
        ("RUNNING", 11, []),
        ("UNKNOWN", 2, [7, 8]),
    ]


def test_both_kinds_of_errors_in_one_communicator() -> None:
    found = report(
        "ERROR",
        "#0-0 (0623e6289c3f6e3c) ERROR\n  Initialization errors on 2 ranks\n"
        "  2 ranks reported Invalid usage\n"
        "  Rank 0 -- GPU 0 managed by process 11 on node 10.0.0.1\n"
        "  Rank 1 -- GPU 1 managed by process 11 on node 10.0.0.1\n"
        "  Asynchronous error on 1 rank\n"
        "  Rank 5 reported Unhandled CUDA error -- [process information not found]\n\n",
    )
    parts = found.communicators[0].rank_errors
    assert [(part.kind, part.count, [share.value for share in part.shares]) for part in parts] == [
        ("initialization", 2, ["Invalid usage"]),
        ("asynchronous", 1, ["Unhandled CUDA error"]),
    ]
    assert [rank.rank for rank in parts[0].shares[0].ranks] == [0, 1]


def test_a_summary_of_nodes_and_processes_that_both_differ() -> None:
    text = (FOLDER / "summary-uneven-gpus-2.30.7.reply").read_text()
    changed = text.replace("      3          1\n", "      2          1\n      1          2\n")
    summary = parse(changed.encode()).summary
    assert summary is not None
    assert str(summary.processes_per_node) == "1-2"
    assert str(summary.gpus_per_process) == "2-4"


def test_a_summary_heading_on_one_line() -> None:
    """As copied from a terminal that joined the lines."""
    text = (
        "NCCL version 2.26.3 compiled with CUDA 12.9\nCUDA runtime version 12090, driver version 12080\n\n"
        "Nodes  Processes  GPUs per process  Processes (total)  GPUs (total)\n"
        "    1          8                 1                  8            8\n\n"
        "Group  Comms  Nodes  Ranks  Ranks  Ranks    Status  Errors\n"
        "   #   in group  per comm  per node  per comm  in group\n"
        "   0         1         1         7         8         7   RUNNING  INCOMPLETE\n"
        "   3         2         1         2         2         4   RUNNING      OK\n\n"
        "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
        "  Process 19377 on node 172.25.9.225 managing GPU 0\n\n"
        "#0-0 (0623e6289c3f6e3c) INCOMPLETE\n  Missing communicator data from 1 rank\n"
        "  Rank 0 -- GPU 0 managed by process 19377 on node 172.25.9.225\n"
    )
    found = parse(text.encode())
    assert found.not_understood == ()
    assert found.summary is not None
    assert (found.summary.nodes, found.summary.processes, found.summary.gpus) == (1, 8, 8)
    assert [(group.number, group.communicators, group.size) for group in found.groups] == [
        (0, 1, 8),
        (3, 2, 2),
    ]
    assert [one.pid for one in found.dead] == [19377]
    assert not found.complete
    assert not found.corrupt
    assert not found.tables_trusted  # several communicators and a dead process in 2.26


def test_memory_that_is_no_communicator() -> None:
    """A recorded answer in which NCCL prints negative and absurd ranks (NVIDIA/nccl#1762)."""
    found = parse((FOLDER.parent / "garbage-2.28.9.reply").read_bytes())
    assert found.not_understood == ()
    assert found.corrupt
    assert found.groups == ()
    assert [(one.hash, [rank.rank for rank in one.missing_ranks]) for one in found.communicators] == [
        ("3a46e6b099f916b1", [1, 4, 5])
    ]
    assert [one.pid for one in found.missing] == [17628, 17631, 17632]


@pytest.mark.parametrize("line", ["Something new", "  Rank 1 does something new", "#0-0 0123 BROKEN"])
def test_an_unknown_line_is_handed_back(line: str) -> None:
    text = HEAD.format(error="OK") + line + "\n" + WARNINGS
    found = parse(text.encode())
    assert found.not_understood == (line,)
    assert found.complete
    assert found.summary is not None


def test_line_ends_of_a_windows_terminal() -> None:
    raw = (FOLDER / "killed-t75-2.30.7.reply").read_bytes()
    assert to_json(parse(raw.replace(b"\n", b"\r\n"))) == to_json(parse(raw))


@pytest.mark.parametrize("name", ["killed-t75-2.30.7", "lag-two-ops-2.30.7", "error-init-one-2.24.3"])
def test_a_cut_answer_is_never_called_complete(name: str) -> None:
    raw = (FOLDER / f"{name}.reply").read_bytes()
    whole = parse(raw)
    assert whole.complete
    heading = raw.index(b"Warnings\n")
    for end in range(raw.index(b"CUDA runtime"), len(raw), 7):
        found = parse(raw[:end])
        assert found.not_understood == ()
        if end < heading:
            assert not found.complete
        elif found.complete:
            assert {one.hash for one in found.communicators} == {one.hash for one in whole.communicators}


@pytest.mark.parametrize(
    "name", ["killed-t75-json-2.30.7", "killed-t0-json-2.28.9", "monitor-default-json-2.30.7"]
)
def test_a_cut_json_answer_is_never_called_complete(name: str) -> None:
    raw = (FOLDER / f"{name}.reply").read_bytes().rstrip()
    for end in range(0, len(raw), 211):
        found = parse(raw[:end])
        assert not found.complete
        assert found.not_understood == ()
        assert found.groups == ()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_nonsense_is_no_trouble(raw: bytes) -> None:
    to_json(parse(raw))
    to_json(parse(HEAD.encode() + raw))
    to_json(parse(b'{\n  "nccl_version": "2.30.7",\n  "communicators": [\n' + raw))


LINES = sorted(
    {
        line
        for path in FOLDER.glob("*-2.*.reply")
        if "json" not in path.name
        for line in path.read_text().splitlines()
    }
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=60))
def test_lines_in_any_order_are_no_trouble(lines: list[str]) -> None:
    to_json(parse("\n".join(lines).encode()))


def with_endless_numbers(text: str) -> list[str]:
    """The text with each number in turn replaced by one that no machine word and no `int()` takes."""
    numbers = list(re.finditer(r"\d+", text))
    return [
        text[: one.start()] + "9" * 5000 + text[one.end() :] for one in numbers[:: max(1, len(numbers) // 40)]
    ]


@pytest.mark.parametrize(
    "name", ["killed-t75-2.30.7", "lag-two-ops-2.30.7", "error-init-one-2.24.3", "healthy-json-2.30.7"]
)
def test_a_number_of_thousands_of_digits_is_handed_back_or_left_out(name: str) -> None:
    text = (FOLDER / f"{name}.reply").read_text()
    for odd in (*with_endless_numbers(text), *with_endless_numbers(HEAD.format(error="OK") + WARNINGS)):
        json.dumps(to_json(parse(odd.encode())), allow_nan=False)
    endless = HEAD.replace("12090", "9" * 5000).format(error="OK")
    assert parse(endless.encode()).not_understood[0].startswith("CUDA runtime version 9999")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.30.7", (2, 30, 7)),
        ("2.27.3+cuda12.9", (2, 27, 3)),
        ("2.29.2rc1", (2, 29, 2)),
        ("2.26", (2, 26, 0)),
        ("v2.24.3-1", (2, 24, 3)),
        ("newest", None),
        ("9" * 5000 + ".1", None),
        ("2." + "9" * 5000, None),
        (None, None),
    ],
)
def test_versions(text: str | None, version: tuple[int, int, int] | None) -> None:
    assert parse_version(text) == (None if version is None else Version(*version))


def test_answers_cut_at_a_line_end_are_complete_only_where_nothing_can_be_seen_to_lack() -> None:
    """NCCL says at no place how many operations differ: cut between two of them an answer looks whole."""
    names = ("big-lag-2.24.3", "lag-two-ops-2.30.7", "error-init-one-2.24.3", "killed-t75-2.30.7")
    for name in names:
        raw = (FOLDER / f"{name}.reply").read_bytes()
        whole = to_json(parse(raw))
        assert whole["complete"]
        lines = raw.split(b"\n")
        for end in range(len(lines) - 1):
            cut = to_json(parse(b"\n".join(lines[:end]) + b"\n"))
            mismatches = cut.pop("mismatches")
            assert mismatches == whole["mismatches"][: len(mismatches)] or not cut["complete"], (name, end)
            rest = {key: value for key, value in whole.items() if key != "mismatches"}
            assert not cut["complete"] or (mismatches and cut == rest) or cut | {"mismatches": []} == whole


def test_a_line_of_something_else_ends_no_block() -> None:
    raw = (FOLDER / "big-lag-2.24.3.reply").read_bytes()
    whole = parse(raw)
    lines = raw.split(b"\n")
    foreign = b"gpu0:77:88 [0] NCCL WARN something odd"
    for at in range(1, len(lines) - 1):
        found = parse(b"\n".join([*lines[:at], foreign, *lines[at:]]))
        assert found.not_understood == (foreign.decode(),), at
        assert (found.groups, found.communicators) == (whole.groups, whole.communicators), at
