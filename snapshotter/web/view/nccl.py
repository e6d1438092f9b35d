"""A RAS reply as tables: its sections, whatever the NCCL version put into them. The raw text stays beside it.

Text replies: a heading is underlined with `=`; a table has two lines of column names, told apart by two or
more spaces; errors and warnings are paragraphs. JSON replies (NCCL 2.28.9 and later): one object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any

_UNDERLINE = re.compile(r"=+\s*")
_TIMING = re.compile(r"\.\.\.\s*\([\d.]+s\)\s*$")
_MOST_ROWS = 500


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a section with a table, as wide as its columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One paragraph of errors or warnings: its first line and the rest."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """One heading of the reply."""

    title: str
    table: Table | None
    findings: tuple[Finding, ...]
    text: str  # what is neither


@dataclass(frozen=True, slots=True)
class Status:
    """The reply of one node. `line` says it in one line; `bad` whether it reports trouble."""

    line: str
    bad: bool
    versions: tuple[str, ...]
    sections: tuple[Section, ...]


def read(raw: str) -> Status:
    """Never raises: what is not understood stays in the raw text alone."""
    body = raw.partition("{")
    if body[1] and not _has_heading(raw):
        try:
            return _of_json(json.loads(body[1] + body[2]))
        except (ValueError, RecursionError, TypeError, AttributeError, OverflowError):
            pass
    return _of_text(raw.replace("\r\n", "\n").split("\n"))


def _has_heading(raw: str) -> bool:
    return re.search(r"^=+\s*$", raw, re.MULTILINE) is not None


def _of_text(lines: Sequence[str]) -> Status:
    versions = tuple(line.strip() for line in lines if line.startswith(("NCCL version", "CUDA runtime")))
    sections = tuple(_section(title, body) for title, body in _split(lines))
    errors = [one for section in sections if section.title == "Errors" for one in section.findings]
    warnings = [one for section in sections if section.title == "Warnings" for one in section.findings]
    unwell = sum(
        row[-1] != "OK"
        for section in sections
        if section.table and section.table.columns and section.table.columns[-1] == "Errors"
        for row in section.table.rows
    )
    if not sections:
        return Status("NCCL RAS gave an answer that is not a status report.", True, versions, ())
    version = re.search(r"NCCL version (\S+)", versions[0]) if versions else None
    parts = [f"NCCL {version[1]}" if version else "NCCL"]
    groups = "group" if unwell == 1 else "groups"
    parts.append(f"{unwell} {groups} of communicators not OK" if unwell else "all communicators OK")
    parts.append(_counted(len(errors), "error"))
    parts.append(_counted(len(warnings), "warning"))
    return Status(", ".join(parts), bool(unwell or errors or warnings), versions, sections)


def _split(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    starts = [
        number
        for number in range(len(lines) - 1)
        if lines[number].strip()
        and _UNDERLINE.fullmatch(lines[number + 1])
        and not _UNDERLINE.fullmatch(lines[number])
    ]
    for start, end in pairwise([*starts, len(lines)]):
        title = _TIMING.sub("", lines[start].strip())
        if title.startswith("(") and start:  # another answer came between the title and its timing
            title = lines[start - 1].partition("...")[0].strip()
        yield title, list(lines[start + 2 : end])


def _section(title: str, body: list[str]) -> Section:
    paragraphs = list(_paragraphs(body))
    if title.lower() in ("errors", "warnings"):
        findings = tuple(
            Finding(one[0].strip(), tuple(line.strip() for line in one[1:])) for one in paragraphs
        )
        return Section(title, None, findings, "")
    table, rest = None, paragraphs
    if paragraphs and (table := _table(paragraphs[0])) is not None:
        rest = paragraphs[1:]
    return Section(title, table, (), "\n\n".join("\n".join(one) for one in rest))


def _paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    one: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            one.append(line.rstrip())
        elif one:
            yield one
            one = []


def _table(lines: list[str]) -> Table | None:
    heads = [line for line in lines[:2] if not re.fullmatch(r"[\d\s]+", line)]
    if not heads:
        return None
    names = [re.split(r"\s{2,}", line.strip()) for line in heads]
    columns = tuple(" ".join(part for part in parts if part) for parts in zip_longest(*names, fillvalue=""))
    rows = [tuple(line.split(None, len(columns) - 1)) for line in lines[len(heads) :]]
    if not rows or any(len(row) != len(columns) for row in rows):
        return None
    return Table(columns, tuple(rows[:_MOST_ROWS]))


def _of_json(reply: Mapping[str, Any]) -> Status:
    versions = tuple(f"{key}: {reply[key]}" for key in sorted(reply) if "version" in key)
    communicators = [one for one in reply.get("communicators", ()) if isinstance(one, dict)]
    rows = [_communicator(one) for one in communicators]
    unwell = [row for row in rows if row[-1] != "OK"]
    columns = ("Communicator", "Ranks", "Ranks that answered", "Missing", "Operations", "Status")
    line = f"NCCL {reply.get('nccl_version', '')}, " + (
        f"{len(unwell)} of {len(rows)} communicators not OK" if unwell else "all communicators OK"
    )
    ordered = tuple(sorted(rows, key=lambda row: row[-1] == "OK")[:_MOST_ROWS])
    section = Section("Communicators", Table(columns, ordered) if ordered else None, (), "")
    return Status(line, bool(unwell), versions, (section,))


def _communicator(one: Mapping[str, Any]) -> tuple[str, ...]:
    ranks = [rank for rank in one.get("ranks", ()) if isinstance(rank, dict)]
    missing = int(one.get("missing_ranks_count", 0) or 0)
    trouble = ["INCOMPLETE"] if missing else []
    status = [rank.get("status", {}) for rank in ranks]
    if any(each.get("async_error") or each.get("init_state") for each in status):
        trouble.append("ERROR")
    if any(each.get("abort_flag") for each in status):
        trouble.append("ABORT")
    spread: dict[str, set[int]] = {}
    for rank in ranks:
        for operation, count in rank.get("collective_counts", {}).items():
            spread.setdefault(operation, set()).add(count)
    if any(len(counts) > 1 for counts in spread.values()):
        trouble.append("MISMATCH")
    said = "; ".join(
        f"{operation} {min(counts)}" + (f"–{max(counts)}" if len(counts) > 1 else "")
        for operation, counts in spread.items()
        if max(counts)
    )
    return (
        str(one.get("hash", "")),
        str(one.get("size", "")),
        str(one.get("ranks_count", len(ranks))),
        str(missing),
        said,
        ", ".join(trouble) or "OK",
    )


def _counted(count: int, word: str) -> str:
    return f"no {word}s" if not count else f"{count} {word}" if count == 1 else f"{count} {word}s"
