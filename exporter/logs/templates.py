"""Known records at the speed of the regular-expression engine.

Most of a log is one print statement over and over. Once such a record has been understood, every other that has
the same words, with numbers in the same places, means the same: those are counted with one expression over
many records at once, and only what is left is read word by word.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from exporter.logs.numbers import count
from exporter.logs.reading import Form, Reading

_MOST = 8  # templates of one log
_DRAFTS = 32
_LONGEST = 4096  # bytes of a record that a template is made of
_BEHIND = 4  # runs behind the iteration that must be alike; the rest of a record may vary
_EVEN = 32  # records from which on it is worth while to see whether they are evenly spaced
_SAMPLES = 8  # after which the first of several like candidates is taken

# A run is a number with its punctuation; bars and blanks may have any length; the rest is literal.
_TOKEN = re.compile(
    rb"(?P<number>[.,:+-]*\d[\d.,:+-]*)|(?P<blank>[ \x80-\xff#]+)|[^\d \x80-\xff#.,:+-]+|[.,:+-]+"
)
_NUMBER = rb"[\d.,:+-]++"
_BLANK = rb"[ \x80-\xff#]*+"
_CORE = re.compile(rb"\d[\d,]*\d|\d")


@dataclass(slots=True)
class _Draft:
    """A shape of which it is not clear yet which of its numbers is the iteration."""

    candidates: set[int]
    first: int  # the iteration of its first record
    samples: int = 1


@dataclass(frozen=True, slots=True)
class Template:
    """One shape of record. The only group of its expression is the iteration."""

    series: str
    pattern: bytes
    anchor: bytes  # stands in each of its records once, hardly ever in others


class Templates:
    """The shapes of one log whose records are known to be the training's."""

    def __init__(self) -> None:
        self._templates: OrderedDict[tuple[bytes, ...], Template] = OrderedDict()
        self._drafts: OrderedDict[tuple[bytes, ...], _Draft] = OrderedDict()
        self._all: re.Pattern[bytes] | None = None  # every template; the group that matched tells which
        self._order: tuple[Template, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._templates)

    def learn(self, record: bytes, reading: Reading) -> None:
        """Take a record that counts as training's as an example."""
        body = record.rstrip(b"\r\n")
        if reading.iteration is None or len(body) > _LONGEST:
            return
        tokens = [(match[0], match.lastgroup) for match in _TOKEN.finditer(body)]
        numbers = [index for index, (_, kind) in enumerate(tokens) if kind == "number"]
        fixed = (
            set() if reading.epoch is None else {i for i in numbers if _value(tokens[i][0]) == reading.epoch}
        )
        candidates = {
            i
            for i in numbers
            if _value(tokens[i][0]) == reading.iteration and not _text(tokens, i + 1).startswith(b"%")
        }
        key = (reading.series.encode("utf-8", "replace"), *_skeleton(tokens))
        draft = self._drafts.get(key)
        if draft is None:
            self._drafts[key] = draft = _Draft(candidates, reading.iteration)
            if len(self._drafts) > _DRAFTS:
                self._drafts.popitem(last=False)
        else:
            draft.candidates &= candidates
            draft.samples += 1
        if reading.iteration == draft.first:
            return  # another number of the record may be the same by chance
        if len(draft.candidates) == 1 or (draft.candidates and draft.samples >= _SAMPLES):
            where = min(draft.candidates)
            self._make(key, tokens, where, fixed - {where}, reading)

    def _make(
        self,
        key: tuple[bytes, ...],
        tokens: list[tuple[bytes, str | None]],
        where: int,
        fixed: set[int],
        reading: Reading,
    ) -> None:
        key = (*key, b"\0", *(tokens[index][0] for index in sorted(fixed)))
        if key in self._templates:
            self._templates.move_to_end(key)
            return
        parts = []
        # A bar at 0 was drawn before its first iteration.
        number = rb"(\d[\d,]*+)" if reading.form is Form.KEYED else rb"([1-9][\d,]*+)"
        end = max(where, *fixed, 0) + _BEHIND
        for index, (text, kind) in enumerate(tokens[: end + 1]):
            if index == where:
                core = _CORE.search(text)
                if core is None:
                    return
                parts += [re.escape(text[: core.start()]), number, re.escape(text[core.end() :])]
            elif kind == "number" and index not in fixed:
                parts.append(_NUMBER)
            else:
                parts.append(_BLANK if kind == "blank" else re.escape(text))
        parts.append(_rest(b"".join(text for text, _ in tokens[end + 1 :])))
        body = b"".join(text for text, _ in tokens)
        between = b"".join(b"\0" if kind == "number" else text for text, kind in tokens[: end + 1]).split(
            b"\0"
        )
        unique = [text for text in (one.strip() for one in between) if text and body.count(text) == 1]
        anchor = max(unique, key=len, default=b"\0")  # none: such records are counted one by one
        self._templates[key] = Template(reading.series, b"".join(parts), anchor)
        if len(self._templates) > _MOST:
            self._templates.popitem(last=False)
        self._all = None

    def know(self, record: bytes) -> bool:
        """Whether a record is of a shape that is known."""
        return bool(self._templates) and self._compiled().match(b"\n" + record) is not None

    def keep(self, series: frozenset[str]) -> None:
        """Forget the shapes of all other series."""
        for key in [key for key, one in self._templates.items() if one.series not in series]:
            del self._templates[key]
            self._all = None

    def _compiled(self) -> re.Pattern[bytes]:
        if self._all is None:
            self._order = tuple(reversed(self._templates.values()))
            every = b"|".join(one.pattern for one in self._order)
            self._all = re.compile(b"[\\r\\n](?:" + every + b")(?=[\\r\\n])")
        return self._all

    def skim(self, records: bytes) -> Iterator[tuple[Template, list[bytes] | range] | bytes]:
        """In order: iterations of known records that follow each other, and the records between that are unknown."""
        every = self._compiled()
        data = b"\n" + records
        if len(self._order) == 1:
            known = self._order[0]
            lines = records.count(b"\n") + records.count(b"\r")
            even = self._even(known, data, lines)
            if even is not None:
                yield known, even
                return
            found = every.findall(data)
            if len(found) == lines:
                yield known, found
                return
        run: list[bytes] = []
        which, position = 0, 0
        for match in every.finditer(data):
            index = match.lastindex or 0
            if run and (index != which or match.start() != position):
                yield self._order[which - 1], run
                run = []
            if match.start() > position + 1:
                yield data[position + 1 : match.start() + 1]
            run.append(match[index])
            which, position = index, match.end()
        if run:
            yield self._order[which - 1], run
        if position + 1 < len(data):
            yield data[position + 1 :]

    def _even(self, known: Template, data: bytes, lines: int) -> range | None:
        """The iterations, where every record is a known one and each goes on by the same amount.

        What most logs are most of the time: two records tell it then, and a count of the words they all have.
        """
        if lines < _EVEN or data.count(known.anchor) != lines:
            return None
        every = self._compiled()
        start = max(data.rfind(b"\n", 0, len(data) - 1), data.rfind(b"\r", 0, len(data) - 1))
        first, last = every.match(data), every.match(data, start)
        if first is None or last is None or b"," in first[1] + last[1]:
            return None
        stride, odd = divmod(int(last[1]) - int(first[1]), lines - 1)
        return None if odd or stride < 1 else range(int(first[1]), int(last[1]) + 1, stride)


def _rest(text: bytes) -> bytes:
    """What may follow: anything, but nothing behind the bracket that ends a bar, where others may have written."""
    body = text.rstrip()
    if body.endswith(b"]") and body.count(b"]") == 1:
        return rb"[^\]\r\n]*+\] *+"
    return rb"[^\r\n]*+" if text else b""


def _skeleton(tokens: list[tuple[bytes, str | None]]) -> Iterator[bytes]:
    for text, kind in tokens:
        yield b"0" if kind == "number" else b" " if kind == "blank" else text


def _text(tokens: list[tuple[bytes, str | None]], index: int) -> bytes:
    return tokens[index][0] if index < len(tokens) else b""


def _value(text: bytes) -> int | None:
    return count(text.strip(b".,:+-").decode("ascii", "replace"))
