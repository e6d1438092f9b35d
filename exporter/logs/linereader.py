"""Cutting a stream of bytes into records: a record ends at a newline or a carriage return, the pair counts once."""

from __future__ import annotations

RECORD_LIMIT = 1 << 20
"""Bytes of a record that are kept; a longer one is a dump and no progress record."""


class RecordSplitter:
    """Takes bytes in any pieces and gives whole records, each with the separator that ended it.

    The newline of a pair is dropped where it arrives, so that pieces cut anywhere give the same records. A record
    longer than `limit` is given as its separator alone, and counted in `skipped`.
    """

    def __init__(self, limit: int = RECORD_LIMIT) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []  # of a record longer than one feed
        self._held = 0
        self._too_long = False
        self._after_return = False
        self.skipped = 0

    @property
    def pending(self) -> int:
        """Bytes of the record that has not ended yet (those beyond the limit are not held)."""
        return self._held

    def feed(self, data: bytes) -> list[bytes]:
        """The records that `data` ends."""
        if not data:
            return []
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
            self._after_return = False
            if not data:
                return []
        self._after_return = data.endswith(b"\r")
        records = data.splitlines(keepends=True)
        if b"\r\n" in data:
            records = [one[:-1] if one.endswith(b"\r\n") else one for one in records]
        rest = b"" if records[-1].endswith((b"\n", b"\r")) else records.pop()
        if records and (self._held or self._too_long):
            records[0] = self._join(records[0])
        if len(data) > self._limit:
            records = [self.bounded(record) for record in records]
        if rest:
            self._hold(rest)
        return records

    def whole(self, data: bytes) -> bytes:
        """As `feed`, but all records in one piece, with newlines alone where there are pairs; long ones are kept."""
        if not data:
            return b""
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
        self._after_return = data.endswith(b"\r")
        if b"\r" in data and b"\n" in data and b"\r\n" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end:
            if data:
                self._hold(data)
            return b""
        body, rest = data[:end], data[end:]
        if self._held or self._too_long:
            first = min(position for position in (body.find(b"\n"), body.find(b"\r")) if position >= 0) + 1
            body = self._join(body[:first]) + body[first:]
        if rest:
            self._hold(rest)
        return body

    def flush(self) -> bytes:
        """The last piece without a separator, for a file that will not grow; empty where there is none."""
        rest = b"" if self._too_long else b"".join(self._pieces)
        self._pieces, self._held, self._too_long = [], 0, False
        return rest

    def _hold(self, rest: bytes) -> None:
        if self._too_long:
            return
        self._pieces.append(rest)
        self._held += len(rest)
        if self._held > self._limit:
            self._pieces, self._held, self._too_long = [], 0, True

    def _join(self, first: bytes) -> bytes:
        whole = first[-1:] if self._too_long else b"".join((*self._pieces, first))
        if self._too_long:
            self.skipped += 1
        self._pieces, self._held, self._too_long = [], 0, False
        return self.bounded(whole)

    def bounded(self, record: bytes) -> bytes:
        """The record, or its separator alone where it is too long."""
        if len(record) <= self._limit + 1:
            return record
        self.skipped += 1
        return record[-1:]
