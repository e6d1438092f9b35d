from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from snapshotter.capture.dump import (
    UnreadableDump,
    explain_failure,
    looks_whole,
    parse_dump,
    same_foreign_roots,
)
from snapshotter.stacks.model import Frame


def frame(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "filename": "/app/train.py", "line": 7, "locals": None, "is_entry": True, **more}


def dump(*stacks: list[dict[str, Any]], names: Sequence[str | None] = ()) -> bytes:
    threads = [
        {
            "pid": 4,
            "thread_id": number,
            "thread_name": names[number] if names else None,
            "os_thread_id": 40 + number,
            "active": False,
            "owns_gil": number == 0,
            "frames": stack,
            "process_info": None,
        }
        for number, stack in enumerate(stacks)
    ]
    return json.dumps(threads).encode()


def test_threads_are_read_with_their_frames_innermost_first() -> None:
    (thread,) = parse_dump(dump([frame("wait", short_filename="train.py"), frame("<module>")]))
    assert thread.os_thread_id == 40
    assert thread.owns_gil
    assert thread.frames == (
        Frame("wait", "/app/train.py", 7, "train.py"),
        Frame("<module>", "/app/train.py", 7),
    )


@pytest.mark.parametrize("text", [b"", b"{}", b'[{"frames": []}]', b"[1]", b"\xff\xfe", b'[{"thread_id": 1'])
def test_other_output_is_refused(text: bytes) -> None:
    with pytest.raises(UnreadableDump, match="not the JSON we know"):
        parse_dump(text)


@pytest.mark.parametrize(
    ("stacks", "whole"),
    [
        ([[frame("f"), frame("<module>")]], True),
        ([[frame("f"), frame("<module>")], [frame("run"), frame("Thread._bootstrap")]], True),
        ([[frame("f"), frame("<module>")], []], True),  # a thread in C alone
        ([[frame("f"), frame("<module>")], [frame("f.<locals>.<genexpr>")]], False),
        ([[]], False),
        ([], False),
    ],
)
def test_a_stack_that_begins_in_the_middle_is_not_whole(
    stacks: list[list[dict[str, Any]]], whole: bool
) -> None:
    assert looks_whole(parse_dump(dump(*stacks))) is whole


@pytest.mark.parametrize(
    ("name", "root", "same"),
    [
        (None, "on_message", True),  # a thread of C++, which begins with what it calls
        ("Dummy-3", "on_message", True),
        (None, "on_timer", False),
        ("sorter", "on_message", False),  # a thread of Python's: cut short twice, by chance in the same place
    ],
)
def test_only_threads_of_cpp_may_begin_anywhere(name: str | None, root: str, same: bool) -> None:
    names = ("MainThread", name)
    first, second = (
        parse_dump(dump([frame("f"), frame("<module>")], [frame("f"), frame(begin)], names=names))
        for begin in ("on_message", root)
    )
    assert same_foreign_roots(first, second) is same


# What py-spy 0.4.3 wrote to stderr.
FAILURES = {
    "gone": (
        "Error: Failed to get process executable name. Check that the process is running.\n\nCaused by:\n"
        "    0: No such file or directory (os error 2)\n    1: No such file or directory (os error 2)\n\n"
        "Stack backtrace:\n   0: <E as anyhow::context::ext::StdError>::ext_context\n"
    ),
    "denied": "Permission Denied: Try running again with elevated permissions by going "
    "'sudo env \"PATH=$PATH\" !!'\n",
    "not_python": "Error: Failed to find python version from target process\n\nStack backtrace:\n"
    "   0: anyhow::error::<impl anyhow::Error>::msg\n",
    "error": "Error: Failed to get stack traces\n\nCaused by:\n    0: Failed to suspend process\n"
    "    1: unexpected waitpid result PtraceEvent(Pid(10853), SIGSTOP, 128) to 10853\n\nStack backtrace:\n",
}


@pytest.mark.parametrize("outcome", FAILURES)
def test_failures_are_told_apart_and_explained_in_one_line(outcome: str) -> None:
    found, sentence = explain_failure(FAILURES[outcome], 1)
    assert found == outcome
    assert "\n" not in sentence
    assert "anyhow" not in sentence


def test_an_unknown_failure_keeps_its_sentence_and_innermost_cause() -> None:
    _, sentence = explain_failure(FAILURES["error"], 1)
    assert sentence == (
        "py-spy: Failed to get stack traces: "
        "unexpected waitpid result PtraceEvent(Pid(10853), SIGSTOP, 128) to 10853"
    )


def test_a_failure_without_words_is_still_a_sentence() -> None:
    assert explain_failure("", 3) == ("error", "py-spy failed with status 3 and said nothing")
    assert explain_failure(" \n", -9) == ("error", "py-spy was ended by signal 9 (Killed)")


def test_what_a_failure_says_is_one_bounded_line_without_secrets() -> None:
    _, sentence = explain_failure("Error: \x1b[31mno --token=t0psecret\x00 \u202e" + "x" * 100_000, 101)
    assert len(sentence) < 400
    assert sentence.isprintable()
    assert "t0psecret" not in sentence
