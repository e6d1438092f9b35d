"""What `py-spy dump --json` prints, read: threads on success, an outcome and one sentence on failure.

Source: py-spy 0.4.3, tried on every kind of target. On failure it exits with 1 and writes to
stderr `Error: …`, a `Caused by:` list and, where RUST_BACKTRACE is set, a backtrace; a refusal is
`Permission Denied: …`.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

import msgspec

from snapshotter.capture.privacy import mask_word
from snapshotter.stacks.model import Frame, Outcome, Thread
from snapshotter.stacks.wording import shown

# Where a Python stack begins: a script, `python -m`, a thread of the threading module.
_ROOTS = frozenset({"<module>", "_run_module_as_main", "_bootstrap"})
_NOT_PYTHON = (
    "Failed to find python version from target process",
    "Failed to find a python interpreter",
    "Couldn't find python",
)
_GONE = ("Failed to get process executable name", "No such process", "os error 3")
_DENIED = ("Permission Denied", "Permission denied", "Operation not permitted", "os error 1)", "os error 13)")

_LONGEST_SENTENCE = 300  # characters


class UnreadableDump(ValueError):
    """The output is not what py-spy prints."""


class _Thread(msgspec.Struct, frozen=True):
    thread_id: int
    frames: tuple[Frame, ...]
    thread_name: str | None = None
    os_thread_id: int | None = None
    active: bool = False
    owns_gil: bool = False


def parse_dump(text: bytes) -> tuple[Thread, ...]:
    """The threads of one process. Unknown fields are ignored. Raises UnreadableDump."""
    if not text.strip():
        raise UnreadableDump("py-spy printed nothing, which is not the JSON we know")
    try:
        threads = msgspec.json.decode(text, type=list[_Thread])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnreadableDump(f"py-spy's output is not the JSON we know: {error}") from error
    return tuple(
        Thread(
            thread_id=thread.thread_id,
            thread_name=thread.thread_name,
            os_thread_id=thread.os_thread_id,
            active=thread.active,
            owns_gil=thread.owns_gil,
            frames=thread.frames,
        )
        for thread in threads
    )


def looks_whole(threads: Sequence[Thread]) -> bool:
    """Whether every stack begins where Python stacks begin.

    A stack read while it changed is cut short and begins in the middle. A thread that C++ made begins with
    any function, so False means only "read it again".
    """
    return any(thread.frames for thread in threads) and not _odd_roots(threads)


def same_foreign_roots(earlier: Sequence[Thread], later: Sequence[Thread]) -> bool:
    """Whether two readings begin in the same odd places, and only in threads that may begin anywhere.

    Those are threads that C++ made: `threading` gives names to its own alone, and calls the others Dummy-N.
    """
    odd = _odd_roots(later)
    named = {
        thread.thread_id
        for thread in later
        if thread.thread_name and not thread.thread_name.startswith("Dummy-")
    }
    return _odd_roots(earlier) == odd and not named & odd.keys()


def _odd_roots(threads: Sequence[Thread]) -> dict[int, tuple[str, str]]:
    """The outermost frame, as (name, filename) by thread id, of threads that do not begin as Python's own."""
    outermost = {thread.thread_id: thread.frames[-1] for thread in threads if thread.frames}
    return {
        thread_id: (frame.name, frame.filename)
        for thread_id, frame in outermost.items()
        if frame.name.rpartition(".")[2] not in _ROOTS
    }


def explain_failure(stderr: str, code: int) -> tuple[Outcome, str]:
    """Outcome and one sentence from py-spy's stderr and exit status, below 0 the number of a signal.

    `error` where it is none of the known kinds.
    """
    text = re.split(r"\n\s*Stack backtrace:", stderr, maxsplit=1)[0]
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip())]
    first = next((part for part in paragraphs if part.startswith("Error:")), paragraphs[0])
    sentence = first.removeprefix("Error:").strip()
    causes = re.findall(r"^\s*\d+:\s*(.+)$", text.partition("Caused by:")[2], re.MULTILINE)
    if causes and causes[-1] not in sentence:
        sentence = f"{sentence.rstrip('.')}: {causes[-1].strip()}"
    if any(mark in text for mark in _DENIED):
        return "denied", "the kernel refused to let py-spy read it: run as root or with CAP_SYS_PTRACE"
    if any(mark in text for mark in _GONE):
        return "gone", "the process ended before its stack was read"
    if any(mark in text for mark in _NOT_PYTHON):
        return "not_python", "no Python interpreter was found in it"
    if sentence:
        return "error", f"py-spy: {mask_word(shown(sentence, _LONGEST_SENTENCE))}"
    if code < 0:
        return "error", f"py-spy was ended by signal {-code} ({signal.strsignal(-code) or 'unknown'})"
    return "error", f"py-spy failed with status {code} and said nothing"
