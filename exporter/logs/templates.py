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
from exporter.logs.reading import Reading

_MOST = 8  # templates of one log
_DRAFTS = 32
_LONGEST = 4096  # bytes of a record that a template is made of
_SAMPLES = 4  # after which the first of several like candidates is taken

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
    samples: int = 1


@dataclass(frozen=True, slots=True)
class Template:
    """One shape of record. Its first group is the iteration."""

    series: str
    pattern: re.Pattern[bytes]  # begins with the separator before the record


class Templates:
    """The shapes of one log whose records are known to be the training's."""

    def __init__(self) -> None:
        self._templates: OrderedDict[tuple[bytes, ...], Template] = OrderedDict()
        self._drafts: OrderedDict[tuple[bytes, ...], _Draft] = OrderedDict()

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
        candidates = {i for i in numbers if _value(tokens[i][0]) == reading.iteration}
        key = (reading.series.encode("utf-8", "replace"), *_skeleton(tokens))
        draft = self._drafts.get(key)
        if draft is None:
            self._drafts[key] = draft = _Draft(candidates)
            if len(self._drafts) > _DRAFTS:
                self._drafts.popitem(last=False)
        else:
            draft.candidates &= candidates
            draft.samples += 1
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
        parts = [rb"[\r\n]"]
        for index, (text, kind) in enumerate(tokens):
            if index == where:
                core = _CORE.search(text)
                if core is None:
                    return
                parts += [re.escape(text[: core.start()]), rb"(\d[\d,]*+)", re.escape(text[core.end() :])]
            elif kind == "number" and index not in fixed:
                parts.append(_NUMBER)
            else:
                parts.append(_BLANK if kind == "blank" else re.escape(text))
        parts.append(rb"(?=[\r\n])")
        self._templates[key] = Template(reading.series, re.compile(b"".join(parts)))
        if len(self._templates) > _MOST:
            self._templates.popitem(last=False)

    def keep(self, series: frozenset[str]) -> None:
        """Forget the shapes of all other series."""
        for key in [key for key, one in self._templates.items() if one.series not in series]:
            del self._templates[key]

    def skim(self, records: bytes) -> Iterator[tuple[Template, list[bytes]] | bytes]:
        """The iterations of all known records, by template; at last the records that are none of those."""
        rest = b"\n" + records
        for one in reversed(tuple(self._templates.values())):
            found = one.pattern.findall(rest)
            if found:
                yield one, found
                rest = one.pattern.sub(b"", rest)
                if len(rest) <= 2:
                    break
        yield rest[1:]


def _skeleton(tokens: list[tuple[bytes, str | None]]) -> Iterator[bytes]:
    for text, kind in tokens:
        yield b"0" if kind == "number" else b" " if kind == "blank" else text


def _value(text: bytes) -> int | None:
    return count(text.strip(b".,:+-").decode("ascii", "replace"))
