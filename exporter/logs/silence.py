"""Records that say nothing, known by their words: most of what libraries write is the same with other numbers.

A record is read word by word once; those that differ from it in digits alone are passed over, as reading one costs a
hundred times more. Only where digits cannot make a difference: no word that counts is in it, and no announcement.
"""

from __future__ import annotations

import re

from exporter.logs import phases, trouble

_DIGITS = b"0123456789"
_LONGEST = 4096  # bytes of a record
_MOST = 4096  # of such records that are remembered
_MAY_COUNT = re.compile(
    r"(?i)step|iter|itr|batch|epoch|\bep\b|\bup\b|update|episode|round|gen|frame|tick|kimg|game|rollout|sample|token"
    r"|example|sequence|%|\|"
)


class Silence:
    """The silent records of one log."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def covers(self, record: bytes) -> bool:
        """Whether the record is like one that said nothing."""
        return bool(self._known) and record.translate(None, _DIGITS) in self._known

    def learn(self, record: bytes, text: str) -> None:
        """Take note of a record that shows no counter; `text` is what it says in English."""
        if (
            len(record) > _LONGEST
            or _MAY_COUNT.search(text)
            or phases.interesting(text)
            or trouble.kind(text)
        ):
            return
        words = record.translate(None, _DIGITS)
        # A record of numbers is a table's, and what it is depends on the header.
        if not any(map(str.isalpha, words.decode("ascii", "replace"))):
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known.add(words)

    def forget(self) -> None:
        """A table has begun: its rows are to be looked at."""
        self._known.clear()
