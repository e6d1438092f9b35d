"""Numbers, times and rank sets as people read them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape


def number(value: float | int | None) -> str:
    """`10,240`; a dash for nothing."""
    return "–" if value is None else f"{value:,}"


def moment(seconds: float | None) -> str:
    """Unix seconds as `2026-11-30 01:22:33 UTC`."""
    when = _datetime(seconds)
    return when.strftime("%Y-%m-%d %H:%M:%S UTC") if when else "–"


def iso(seconds: float | None) -> str:
    when = _datetime(seconds)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ") if when else ""


def _datetime(seconds: float | None) -> datetime | None:
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def duration(seconds: float | None) -> str:
    """`0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`, `5 d 3 h`."""
    if seconds is None:
        return "–"
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, below, size in (("min", "s", 60), ("h", "min", 3600), ("d", "h", 86400)):
        limit = {60: 3600, 3600: 86400, 86400: float("inf")}[size]
        if whole < size:
            break
        if whole < limit:
            rest = (whole % size) // {60: 1, 3600: 60, 86400: 3600}[size]
            return f"{whole // size} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def ago(seconds: float | None, now: float) -> str:
    """`40 s ago`, `3 min ago`, `2 h 10 min ago`."""
    if seconds is None:
        return "–"
    past = max(0.0, now - seconds)
    return f"{duration(past - past % 60 if past >= 60 else float(int(past)) if past >= 10 else past)} ago"


def data_size(count: int) -> str:
    """Bytes as `2.4 MB` (decimal)."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{count} B"


def clip_ranks(folded: str, most: int = 60) -> str:
    """A folded set cut at a group's border: `0-5/8/…`."""
    if len(folded) <= most:
        return folded
    head = folded[:most].rpartition("/")[0]
    return f"{head}/…" if head else "…"


def done(progress: str) -> tuple[int, int] | None:
    """How far a line of progress says it is: `5 of 16` in it, as (5, 16)."""
    found = re.findall(r"(\d{1,9}) of (\d{1,9})\b", progress)
    return (int(found[-1][0]), int(found[-1][1])) if found and int(found[-1][1]) else None


# Controls, line separators and the marks that turn the direction of text: shown as what they are.
_HIDDEN = {
    code: f"\\u{code:04x}"
    for codes in (
        (*range(32), *range(0x7F, 0xA0)),
        (0x061C, 0x200E, 0x200F, 0x2028, 0x2029),
        (*range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)),
    )
    for code in codes
}


def seen(text: object) -> str:
    """A text from outside in one line, with every character that would hide or turn others spelt out."""
    return str(text).translate(_HIDDEN)


def seen_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(seen(line.expandtabs()) for line in text.replace("\r\n", "\n").split("\n"))


def breakable(text: object) -> Markup:
    """The same, escaped for HTML, with places where a long path may be broken."""
    return Markup(re.sub("/", "/<wbr>", str(escape(seen(text)))))


# Filters of all templates, by name.
FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "moment": moment,
    "iso": iso,
    "duration": duration,
    "clip_ranks": clip_ranks,
    "done": done,
    "seen": seen,
    "seen_lines": seen_lines,
    "breakable": breakable,
}
