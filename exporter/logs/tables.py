"""Tables: a header that names a counter and metrics, then rows of numbers.

CSV and TSV files, Markdown and boxed tables, and columns aligned by blanks, as fastai, skorch, spaCy, scikit-learn,
CSVLoggers and many loops print them. A header may come again, and other records between the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from exporter.logs.evidence import is_evaluated, is_metric
from exporter.logs.numbers import count
from exporter.logs.reading import Form, Reading
from exporter.logs.words import AMOUNTS, Counter, Topic, counter, topic
from exporter.logs.wrappers import Record

_LONGEST = 2000  # characters of a header or row
_MOST_COLUMNS = 100
_BOX = re.compile(r"[|\u2502\u2503\u2551]")
_BLANKS = re.compile(r"\s{2,}|\t")
_WORDS_OF_HEADER = re.compile(r"[\w #%().,:/*@+<>'\"-]*\Z")
_CELL = re.compile(r"#?(?P<n>\d[\d,]*(?:\.0+)?)(?:\s*/\s*(?P<total>\d[\d,]*))?(?:\s*\(\s*[\d.]+\s*%\s*\))?\Z")
_VALUE = re.compile(
    r"(?i:[-+]?(?:\d[\d.,_]*|\.\d+)(?:e[-+]?\d+)?\s?(?:%|[a-z]{1,3}(?:/[a-z]{1,4})?)?|\d+(?::\d\d)+(?:\.\d+)?"
    r"|\[[\d.,e+\- ]*\]"  # a value for each part of the loss
    r"|[-+]?inf(?:inity)?|nan|none|null|n/?a|-+|\d{4}-\d\d-\d\d[t ]?[\d:.,]*z?|)\Z"
)
_COMMENT = re.compile(r"\A\s*(?:#|//|%)\s*(?=[A-Za-z])")
_STATISTICS = {"avg", "mean", "std", "min", "max", "best"}
_NAMELESS = {"#": Counter.CURRENT, "e": Counter.EPOCH}  # spaCy's


@dataclass(frozen=True, slots=True)
class _Header:
    """What the columns are. `cut` cuts a record into cells as the header was cut."""

    cut: re.Pattern[str] | str | None  # None: at any blanks
    columns: int
    indent: bool  # it begins with blanks: rows may have a column without a name before the others
    number: int | None
    epoch: int | None
    trained: tuple[int, ...]  # columns of training metrics
    evaluated: tuple[int, ...]
    name: str


class Tables:
    """The newest table of one log."""

    def __init__(self) -> None:
        self._headers: tuple[_Header, ...] = ()  # one record, as it can be cut
        self._counts_nothing = False  # the newest header names no counter
        self._nameless = 0  # columns of the newest one that names neither counter nor metrics
        self.begins = False  # the newest record was a header

    def read(self, record: Record) -> Reading | None:
        """The record as a row of the table; None where it is none. A header is taken note of."""
        text = record.text
        self.begins = False
        if not text or len(text) > _LONGEST:
            return None
        for header in self._headers:
            reading = _row(header, record)
            if reading is not None:
                return reading
        headers = tuple(_read_header(text))
        if headers:
            self._headers, self._counts_nothing, self.begins = headers, False, True
            return None
        if _names_metrics(text):
            self._counts_nothing = True
        if self._headers or self._counts_nothing:
            return None
        names = _BLANKS.split(text.strip())
        if len(names) > 1 and not any(map(_VALUE.match, names)):
            self._nameless = len(names)
        return _without_header(record, self._nameless)


def _cells(text: str, cut: re.Pattern[str] | str | None) -> list[str]:
    if isinstance(cut, str):
        return [cell.strip() for cell in text.split(cut)]
    if cut is _BOX:
        parts = [cell.strip() for cell in _BOX.split(text)]
        return parts[bool(parts[0] == "") : len(parts) - (len(parts) > 1 and parts[-1] == "")]
    return text.split() if cut is None else [cell.strip() for cell in cut.split(text.strip())]


def _read_header(text: str) -> Iterator[_Header]:
    """The header that a record is, in each way in which it can be cut into cells."""
    text = _COMMENT.sub("", text)
    cuts: tuple[re.Pattern[str] | str | None, ...] = (_BOX,) if _BOX.search(text) else ()
    cuts = cuts or tuple(cut for cut in ("\t", ",", ";") if cut in text) or (_BLANKS, None)
    for cut in cuts:
        found = _columns(_cells(text, cut), cut, text[:1] == " ")
        if found is not None:
            yield found


def _names_metrics(text: str) -> bool:
    """Whether a record is made of names alone, of metrics for the most part."""
    names = text.split()
    if len(names) < 2 or any(character.isdigit() for name in names for character in name[:1]):
        return False
    return 2 * sum(map(is_metric, names)) > len(names)


def _columns(cells: list[str], cut: re.Pattern[str] | str | None, indent: bool) -> _Header | None:
    if not 2 <= len(cells) <= _MOST_COLUMNS or sum(map(bool, cells)) < 2:
        return None
    if any(not _WORDS_OF_HEADER.match(cell) or len(cell) > 40 or _CELL.match(cell) for cell in cells):
        return None
    if any(cell and _VALUE.match(cell) and cell not in ("#", "e") for cell in cells):
        return None
    number, epoch, other = None, None, None
    for index, cell in enumerate(cells):
        kind = _kind(cell)
        if kind is Counter.EPOCH and epoch is None:
            epoch = index
        elif kind is Counter.CURRENT and number is None:
            number = index
        elif kind is Counter.OTHER and other is None:
            other = index
    number = other if number is None and epoch is None else number
    others = [index for index in range(len(cells)) if index not in (number, epoch)]
    metrics = [index for index in others if is_metric(cells[index]) or cells[index].lower() in _STATISTICS]
    if (number is None and epoch is None) or len(metrics) < (1 if cut is not None else 2):
        return None
    evaluated = tuple(index for index in metrics if is_evaluated(cells[index]))
    trained = tuple(
        index for index in metrics if index not in evaluated and re.search(r"(?i)loss|train", cells[index])
    )
    return _Header(cut, len(cells), indent, number, epoch, trained, evaluated, ",".join(cells)[:100])


def _kind(cell: str) -> Counter | None:
    """What a column counts, by its name alone: `Step (% Done)`, `iter`, `global_step`, `#`."""
    name = re.sub(r"\(.*?\)", "", cell).strip(" #*:%") or cell
    if name.lower() in _NAMELESS:
        return _NAMELESS[name.lower()]
    if not re.fullmatch(r"[A-Za-z][\w ./-]*", name) or topic(name) is not None:
        return None
    kind = counter(name.rsplit("/", 1)[-1])
    return kind if kind in (Counter.CURRENT, Counter.EPOCH, Counter.OTHER) and name not in AMOUNTS else None


def _row(header: _Header, record: Record) -> Reading | None:
    cells, shift = _fitting(header, record)
    if cells is None:
        return None
    number, total = _count(cells, header.number, shift)
    epoch, epochs = _count(cells, header.epoch, shift)
    if number is None and (epoch is None or header.number is not None):
        return None
    values = sum(bool(_VALUE.match(cell)) or bool(_CELL.match(cell)) for cell in cells)
    if values * 2 <= len(cells):
        return None
    at = None if epoch is None else float(epoch)
    form = Form.EPOCH if header.number is None else Form.ROW
    if number is None:
        number, total = epoch, epochs
    key = f"{form}:{record.source}:row:{header.name}"
    only_evaluated = header.trained and not any(cells[index + shift] for index in header.trained)
    if only_evaluated and any(cells[index + shift] for index in header.evaluated):
        return Reading(
            form, key, number, total, at, Topic.EVALUATION, why="its row shows an evaluation's metrics alone"
        )
    return Reading(form, key, number, total, at, epochs=epochs)


def _fitting(header: _Header, record: Record) -> tuple[list[str] | None, int]:
    """The cells of a row, and how many columns without a name stand before the first."""
    # What was peeled off as the time of a record may have been its first column.
    for text in (record.text, record.whole) if record.whole else (record.text,):
        if header.cut is _BOX and not _BOX.search(text):
            continue
        cells = _cells(text, header.cut)
        if header.cut in (_BLANKS, None) and len(cells) != header.columns:
            cells = text.split()
        if len(cells) == header.columns:
            return cells, 0
        blank = header.cut in (_BLANKS, None)
        if blank and header.indent and len(cells) == header.columns + 1 and _CELL.match(cells[0]):
            return cells, 1
        # Of columns that are aligned by blanks some may be empty: those before the others are in their places.
        if blank and 2 <= len(cells) < header.columns:
            counting = max(header.number or 0, header.epoch or 0)
            filled = _cells(text, _BLANKS) if counting == 0 else cells
            if counting < len(filled) <= header.columns and any(map(str.isdigit, filled[-1])):
                return [*filled, *[""] * (header.columns - len(filled))], 0
    return None, 0


def _count(cells: list[str], index: int | None, shift: int) -> tuple[int | None, int | None]:
    match = _CELL.match(cells[index + shift]) if index is not None else None
    if match is None:
        return None, None
    return count(match["n"]), count(match["total"]) if match["total"] else None


def _without_header(record: Record, columns: int) -> Reading | None:
    """A row of numbers that begins with a whole one and has fractions behind it, of a table without a header.

    `columns`: the newest header has so many and names no counter.
    """
    text = record.text
    cut = next((one for one in ("\t", ",", ";") if one in text), None)
    cells = _cells(text, cut)
    if (
        len(cells) in (columns, columns + 1)
        or not 2 <= len(cells) <= _MOST_COLUMNS
        or not cells[0].isdecimal()
    ):
        return None
    if not all(cell and _VALUE.match(cell) for cell in cells) or not any("." in cell for cell in cells[1:]):
        return None
    key = f"{Form.BARE}:{record.source}:row:{cut}:{len(cells)}"
    return Reading(Form.BARE, key, count(cells[0]), strong=False, why="a row of numbers without a header")
