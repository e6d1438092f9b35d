"""Equivalence classes of a report as pages show them: the rarest first, each with its stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from snapshotter.stacks import rankset


@dataclass(frozen=True, slots=True)
class FrameLine:
    """One frame in a list. `short` is what fits a line, `foreign` a native frame without a Python file."""

    function: str
    path: str
    short: str
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks whose stacks are equal, frames innermost first."""

    ranks: str
    size: int  # of ranks
    count: int  # of processes
    first: int
    role: str
    thread: str
    innermost: str
    frames: tuple[FrameLine, ...]


def groups(report: Mapping[str, Any]) -> tuple[Group, ...]:
    """`equivalence_classes` of report.json in its order."""
    return tuple(_group(one) for one in report.get("equivalence_classes", ()))


def _group(one: Mapping[str, Any]) -> Group:
    frames = tuple(_line(frame) for frame in one.get("stack", ()))
    ranks = str(one.get("ranks", ""))
    try:
        bits = rankset.parse(ranks)
    except ValueError:
        bits = rankset.EMPTY
    return Group(
        ranks=ranks,
        size=bits.bit_count(),
        count=int(one.get("count", 0)),
        first=rankset.lowest(bits) or 0,
        role=str(one.get("role", "")),
        thread=str(one.get("thread", "")),
        innermost=f"{frames[0].function} {frames[0].short}" if frames else "no Python frames",
        frames=frames,
    )


def frame_line(function: str, filename: str, line: int, short: str | None = None) -> FrameLine:
    """One frame of a stack."""
    where = f":{line}" if line else ""
    foreign = not filename.endswith((".py", ".pyx", ".ipynb")) and not filename.startswith("<")
    return FrameLine(
        function or "unknown",
        f"{filename or 'unknown'}{where}",
        f"{short or shorten(filename) or 'unknown'}{where}",
        foreign,
    )


def split_function(text: str) -> tuple[str, str]:
    """`name file:line` in two; names of native functions and paths may have spaces of their own.

    Where the file is none, as of `<frozen runpy>:88`, it begins with the last `<` after a space.
    """
    at = text.find(" /")
    if at < 0:
        at = text.rfind(" <")
    if at < 0:
        at = text.rfind(" ")
    return (text[:at], text[at + 1 :]) if at >= 0 else (text, "")


def shorten(path: str) -> str:
    """The last three parts of a long path: `core/pipeline_parallel/schedules.py`."""
    parts = path.split("/")
    return path if len(parts) <= 4 else "/".join(parts[-3:])


def _line(frame: str | Mapping[str, Any]) -> FrameLine:
    if isinstance(frame, str):
        function, path = split_function(frame)
        filename, _, line = path.rpartition(":")
        return frame_line(function, filename or path, int(line) if line.isdecimal() else 0)
    return frame_line(
        str(frame.get("name") or frame.get("function") or ""),
        str(frame.get("filename") or ""),
        int(frame.get("line") or 0),
        frame.get("short_filename"),
    )
