"""What the pages show, as plain data."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from benchmarks.imaginary import imaginary_job
from snapshotter.bundle.index import CaptureRecord
from snapshotter.bundle.schema import CaptureRequest, VerdictSummary, new_capture_id
from snapshotter.extracts import rows
from snapshotter.render import graph, verdict, words
from snapshotter.render.groups import groups, split_function
from snapshotter.stacks import report
from snapshotter.stacks.model import Frame
from snapshotter.web.view import functions, listing, moved, nccl, people, stacks

RECORDED = Path(__file__).parents[1] / "fixtures" / "nccl" / "transcripts"


@pytest.fixture(scope="module")
def analysed() -> dict:
    return report.to_json(report.analyse(imaginary_job(64), at=0.0))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.44, "0.4 s"), (59, "59 s"), (60, "1 min"), (185, "3 min 5 s"), (7800, "2 h 10 min")],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


def test_duration_of_days() -> None:
    assert words.duration(30 * 86400) == "30 d"
    assert words.duration(86400 + 7200) == "1 d 2 h"


def test_times_that_no_calendar_has() -> None:
    assert words.moment(1e30) == "–"
    assert words.moment(0) == "1970-01-01 00:00:00 UTC"


def test_hidden_characters_are_spelt_out() -> None:
    assert words.seen("a\u202eb\nc\x00") == "a\\u202eb\\u000ac\\u0000"
    assert "<b>" not in str(words.breakable("<b>/x"))


def test_a_long_set_of_ranks_is_cut_between_groups() -> None:
    assert words.clip_ranks("0-5/8/11", 5) == "0-5/…"
    assert words.clip_ranks("0-5", 6) == "0-5"


def test_progress_in_words() -> None:
    assert words.done("gpu-1: sample 1 of 2: 5 of 16 processes") == (5, 16)
    assert words.done("asking") is None


def test_the_verdict_in_words(analysed: dict) -> None:
    seen = verdict.view(analysed)
    assert (seen.state, seen.tone) == ("Hung", "bad")
    assert (seen.scope, seen.cause) == ("Local", "Storage I/O")
    assert (seen.culprit_ranks, seen.culprits, seen.missing) == ("40", 1, 1)
    assert seen.confidence.startswith("High (0.")
    assert seen.supports
    assert "/proc/14000/" in seen.steps[-1].command


def test_without_an_analysis_the_verdict_says_so() -> None:
    seen = verdict.view(None)
    assert seen.state == "Not analysed"
    assert seen.steps


@pytest.mark.parametrize(
    ("hung", "cause", "state"),
    [
        (None, "unknown", "Cannot tell whether it hangs"),
        (False, "none", "Not hung"),
        (False, "checkpoint", "Making progress, not hung"),
    ],
)
def test_states(hung: bool | None, cause: str, state: str) -> None:
    seen = verdict.view({"verdict": {"hung": hung, "cause": cause, "headline": "x"}})
    assert seen.state == state
    assert seen.steps


def test_culprits_by_node_pod_and_gpu(analysed: dict) -> None:
    (one,) = people.culprits(analysed, groups(analysed))
    assert (one.ranks, one.node, one.pods, one.gpus) == ("40", "gpu-node-5", "llama-worker-5", "0")
    assert one.states == "D (disk sleep) in nfs_wait_bit_killable"
    assert one.doing == "read core/datasets/indexed_dataset.py:344"


def test_many_culprits_are_one_row_a_node() -> None:
    infos = [
        {"Rank": rank, "Node": f"n{rank // 8}", "Role": "trainer", "Outcome": "ok", "GpuID": str(rank % 8)}
        for rank in range(64)
    ]
    rows = people.culprits({"verdict": {"culprit_ranks": "0-39"}, "process_infos": infos}, ())
    assert [(row.ranks, row.node) for row in rows] == [(f"{8 * n}-{8 * n + 7}", f"n{n}") for n in range(5)]
    assert rows[0].gpus == "0, 1, 2 and 5 more"


def test_a_culprit_without_a_process_stands_as_itself() -> None:
    (row,) = people.culprits({"verdict": {"culprit_ranks": "13"}, "process_infos": []}, ())
    assert (row.ranks, row.states) == ("13", "no process")


def test_function_statistics_fold_sources_to_ranks() -> None:
    sources = ("n-1-rank0", "n-1-rank1.dataloader-0", "launcher-7")
    stat = {"function": "wait /a b/threading.py:655", "count": 4, "sources": sources}
    (one,) = functions.functions(rows.functions({"function_stats": [stat]}))
    assert (one.name, one.path, one.ranks, one.others) == (
        "wait",
        "/a b/threading.py:655",
        "0-1",
        ("launcher-7",),
    )


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("wait /usr/lib/x.py:6", ("wait", "/usr/lib/x.py:6")),
        ("void f(int, long) /usr/lib/libtorch.so", ("void f(int, long)", "/usr/lib/libtorch.so")),
        ("<module> <string>:1", ("<module>", "<string>:1")),
        ("alone", ("alone", "")),
    ],
)
def test_function_and_place_are_parted(text: str, parts: tuple[str, str]) -> None:
    assert split_function(text) == parts


def test_functions_are_found_and_sorted(analysed: dict) -> None:
    every = functions.functions(rows.functions(analysed))
    found = functions.pick_functions(every, query="INDEXED", sort="count", page=1)
    assert [one.name for one in found.rows] == ["read"]
    rare = functions.pick_functions(every, query="", sort="rare", page=1)
    assert rare.rows[0].count == 1
    assert functions.pick_functions(every, query="", sort="no such order", page=99).number == 1


def test_processes_are_found_by_ranks_names_and_outcome(analysed: dict) -> None:
    every = rows.processes(analysed, ())

    def ranks(query: str = "", role: str = "trainer", outcome: str = "") -> list[int | None]:
        page = functions.pick_processes(every, query=query, role=role, outcome=outcome, page=1)
        return [one.rank for one in page.rows]

    assert ranks("0-2/40") == [0, 1, 2, 40]
    assert ranks("gpu-node-5") == list(range(40, 48))
    assert ranks(outcome="failed") == [3]
    assert ranks("no such node") == []


def test_pages_of_rows() -> None:
    page = functions.cut(range(120), 3)
    assert (list(page.rows), page.number, page.pages, page.total) == (list(range(100, 120)), 3, 3, 120)
    assert functions.cut([], 5).pages == 1


def test_the_first_choice_is_a_culprit_beside_a_waiting_rank(analysed: dict) -> None:
    choice = stacks.first_choice(analysed)
    assert (choice.ranks, choice.beside, choice.role) == ("40", "0", "trainer")


def test_processes_chosen_by_worker_and_gpu(analysed: dict) -> None:
    by_node = stacks.found(
        stacks.roster(rows.processes(analysed, ())).processes,
        stacks.Choice(worker="gpu-node-2", gpu="3", role="trainer"),
    )
    by_pod = stacks.found(
        stacks.roster(rows.processes(analysed, ())).processes, stacks.Choice(worker="llama-worker-2", gpu="3")
    )
    assert [one.rank for one in by_node] == [one.rank for one in by_pod] == [19]
    with pytest.raises(ValueError, match="'x'"):
        stacks.found((), stacks.Choice(ranks="x"))


def test_two_stacks_side_by_side_mark_what_differs() -> None:
    processes = {p.rank: p for p in imaginary_job(64, workers=0).processes}
    view = stacks.show(processes[40], stacks.Choice(), processes[0])
    main = view.threads[0]
    assert main.main
    assert [frame.function for frame in main.frames[: main.differing]] == [
        "read",
        "__getitem__",
        "get_batch",
        "forward_step",
    ]
    assert view.kernel_stack[0] == "nfs_wait_bit_killable"
    assert all(thread.differing == 0 for thread in view.threads[1:])


def test_comparing_looks() -> None:
    before = graph.build(imaginary_job(64, stuck=40)).find(0, "trainer")
    after = graph.build(imaginary_job(64, stuck=12)).find(0, "trainer")
    found = moved.compare(before, after, "MainThread")
    assert [(one.ranks, one.before.function, one.after.function) for one in found.moved] == [
        ("12", "all_reduce", "read"),
        ("40", "read", "all_reduce"),
    ]
    assert (found.moved_count, found.stayed_count) == (2, 61)
    nothing = moved.compare(before, None, "MainThread")
    assert nothing.only_before == "0-2/4-63"


def test_equal_frames_at_other_lines_have_moved() -> None:
    trees = [
        graph.tree.build("trainer", {("MainThread", (Frame("f", "/x.py", line),)): 1}, captured=1)
        for line in (1, 2)
    ]
    assert moved.compare(*trees, "MainThread").moved_count == 1


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.reply")), ids=lambda path: path.name)
def test_recorded_ras_replies_become_tables(path: Path) -> None:
    raw = path.read_bytes().decode("utf-8", "replace")
    seen = nccl.read(raw)
    assert seen.line
    for section in seen.sections:
        if section.table is not None:
            assert all(len(row) == len(section.table.columns) for row in section.table.rows)
    if "Group     Comms" in raw and "No communicator data" not in raw:
        communicators = next(one for one in seen.sections if one.title == "Communicators")
        assert communicators.table is not None
        assert communicators.table.columns[-2:] == ("Status", "Errors")


def test_ras_trouble_is_said_in_one_line() -> None:
    raw = (RECORDED / "killed-t0-2.26.2.reply").read_text()
    seen = nccl.read(raw)
    assert seen.bad
    assert seen.line == "NCCL 2.26.2, 4 groups of communicators not OK, 5 errors, no warnings"
    healthy = nccl.read((RECORDED / "healthy-2.30.7.reply").read_text())
    assert (healthy.bad, healthy.line) == (
        False,
        "NCCL 2.30.7, all communicators OK, no errors, no warnings",
    )


@pytest.mark.parametrize(
    "raw",
    [
        *("", "{", "{}", "[1]", "=\n=\n=\n", "\x00"),
        '{"communicators": [{"ranks": 5}]}',
        '{"communicators": [{"missing_ranks_count": Infinity}]}',
        '{"communicators": [{"missing_ranks_count": NaN}]}',
        f'{{"communicators": [{{"size": {"9" * 5000}}}]}}',
    ],
)
def test_any_text_is_read_as_a_reply(raw: str) -> None:
    assert nccl.read(raw).line


def _record(at: float, job: str, cause: str = "data") -> CaptureRecord:
    request = CaptureRequest(new_capture_id(at), job, "manual", "", "", at)
    return CaptureRecord(request, "done", job, verdict=VerdictSummary(cause=cause))


def _lookup(records: list[CaptureRecord]) -> listing.Lookup:
    ordered = sorted(records, key=lambda one: one.capture_id, reverse=True)

    def lookup(job: str | None, before: str | None, limit: int) -> tuple[CaptureRecord, ...]:
        found = [
            one
            for one in ordered
            if (job is None or one.job_id == job) and (before is None or one.capture_id < before)
        ]
        return tuple(found[:limit])

    return lookup


def test_the_list_is_filtered_by_job_cause_and_day() -> None:
    day = 1_795_910_400.0  # 2026-11-29 00:00:00 UTC
    records = [
        _record(day + hour * 3600, f"job-{hour % 2}", "data" if hour % 3 else "compute") for hour in range(48)
    ]
    known = frozenset({"job-0", "job-1"})

    def hours(**wanted: object) -> list[int]:
        found = listing.find(_lookup(records), listing.Filter(**wanted), known_jobs=known)  # type: ignore[arg-type]
        return sorted(round((one.request.requested_at - day) / 3600) for one in found.records)

    assert hours(job="job-1") == list(range(1, 48, 2))
    assert hours(job="OB-1") == list(range(1, 48, 2))
    assert hours(cause="compute") == list(range(0, 48, 3))
    assert hours(since=date(2026, 11, 30)) == list(range(24, 48))
    assert hours(until=date(2026, 11, 29)) == list(range(24))


def test_the_list_goes_on_page_by_page() -> None:
    records = [_record(1_795_910_400.0 + n, "job") for n in range(120)]
    seen: list[str] = []
    before = ""
    for _ in range(3):
        page = listing.find(_lookup(records), listing.Filter(before=before), known_jobs=frozenset())
        seen += [one.capture_id for one in page.records]
        before = page.older
    assert before == ""
    assert seen == sorted((one.capture_id for one in records), reverse=True)
