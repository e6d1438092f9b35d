"""Peeling off what carried a record here: container runtimes, launchers, schedulers, journals, time stamps.

Formats: Kubernetes CRI (kubernetes/design-proposals, kubelet-cri-logging), Docker's json-file driver, journald's
export and JSON formats, torchrun --tee (`[default0]:`, torch 2.x `[rank0]:`), srun --label, mpirun --tag-output,
pdsh, Ray's `(Actor pid=1)`, kubectl logs --prefix, docker compose.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

HEAD = 4096
"""Characters of a record that are looked at: progress stands near the beginning, dumps do not."""

_JOINED_LIMIT = 1 << 20

_CRI = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (stdout|stderr) ([FP])(?::\S*)? ?")
# journald's export format gives messages with colours or of several lines as `MESSAGE`, and in the next line their
# length in eight bytes (little-endian), then the text.
_LENGTH_ENDS = bytes(5)
_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: window titles
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[ -/]*[0-~]"  # the two-byte ones
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ufeff]")
_UP = re.compile(r"\x1b\[\d*A\s*\Z")

_NOT_A_RANK = r"(?!(?:epoch|step|iter|it|batch|fold|trial|run|stage|phase|update|gpu)\w*\d)"
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\s*\[" + _NOT_A_RANK + r"[A-Za-z_]+(?P<rank>\d+)\]:\s?",  # torchrun
        r"(?:\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\s*)?\[(?:[^\s,\]]+,)?(?P<rank>\d+)\]<std(?:out|err|diag)>:?\s?",
        r"\s*(?P<rank>\d{1,6}): (?=\s*\S)",  # srun --label
        r"\[pod/[\w.-]+/(?P<source>[\w.-]+)\]\s",  # kubectl logs --prefix
        r"\((?P<source>[^()\s]+(?:\([^()]*\))?) pid=\d+(?:, ip=[^)]*)?\)\s?",  # Ray
        r"(?!(?i:epoch|step|iter|batch|update))"  # pdsh
        r"(?:(?!(?i:val|test|eval|train))[A-Za-z][\w.-]*\d[\w.-]*|[A-Za-z]\w*[.-][\w.-]*\d[\w.-]*): ",
        r"(?!(?i:epoch|step|iter|batch|update|val|test|eval|train)\w*\d*\s)[A-Za-z][\w.-]*\d[\w.-]*\s+\| ",  # compose
        r"MESSAGE=",  # journald's export format
        r"(?:DEBUG|INFO|WARNING|ERROR):\w+(?:-\w+)+:\s?",  # Python's logging, to a logger named after an experiment
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w./@-]+(?:\[\d+\])?: ",  # syslog
        r"<\d{1,3}>1 \S+ \S+ \S+ \S+ \S+ (?:-|\[.*?\]) ",  # RFC 5424
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\s+",
    )
)
_TIME = re.compile(
    r"\d{4}[-/]\d\d[-/]\d\d(?:[T ,_]+\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\d\d[-/]\d\d(?:[-/]\d{2,4})?,? \d\d:\d\d:\d\d(?:[.,]\d+)?(?:\s?[AP]M)?"
    r"|(?<![\w])[IWEFD]\d{3,4} \d\d:\d\d:\d\d(?:\.\d+)?(?: +\d+)?"
    r"|(?<=\[)\d\d:\d\d:\d\d(?:[.,]\d+)?(?=\])"
    r"|\A\d\d:\d\d:\d\d(?:[.,]\d+)?"
)
_EMPTY = re.compile(r"\[\s*\]")  # what is left of a time in brackets
_PLACE = re.compile(r"[\w./-]+\.(?:py|cc|cpp|cu|rs|go|c|h):\d+(?::\w+)?")
_RANK = re.compile(
    r"[\[(]\s*(?:(?:global[ _])?rank[ :=_]*|(?:proc|process|worker|trainer)[ :=_-])(?P<rank>\d+)\s*[\])]:?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Record:
    """A record's own text, and what its wrapping said."""

    text: str
    rank: int | None = None
    source: str = ""  # the actor or container that wrote it
    label: int | None = None  # the number that srun --label would write; it may be a counter
    nested: bool = False  # the cursor goes up again behind it: a bar below another one
    closed: bool = False  # ended by a newline, not redrawn
    whole: str = ""  # with what was peeled off, where something was


class _Docker(msgspec.Struct):
    log: str
    stream: str = ""


class _Journal(msgspec.Struct):
    MESSAGE: str | list[int]  # bytes, where colours or other control characters are among them


_docker = msgspec.json.Decoder(_Docker)
_journal = msgspec.json.Decoder(_Journal)


class Unwrapper:
    """Gives the text of each record; joins the parts of those which a container runtime has cut."""

    def __init__(self) -> None:
        self._parts: dict[str, list[str]] = {}

    @property
    def joining(self) -> bool:
        """Whether parts of a record are held whose end is still to come."""
        return bool(self._parts)

    def feed(self, record: bytes) -> Record | None:
        """None where the record is a part whose end is still to come."""
        closed = record.endswith(b"\n")
        if record[3:8] == _LENGTH_ENDS:
            record = record[8:]
        if record.startswith(b'{"'):
            return self._json(record, closed)
        match = _CRI.match(record)
        if match is None:
            return plain(record[:HEAD].decode("utf-8", "replace"), closed)
        stream = match[1].decode()
        text = record[match.end() :].rstrip(b"\r\n").decode("utf-8", "replace")
        return self._join(stream, text, whole=match[2] == b"F", closed=closed)

    def _json(self, record: bytes, closed: bool) -> Record | None:
        try:
            if record.startswith(b'{"log"'):
                entry = _docker.decode(record)
                return self._join(
                    entry.stream, entry.log.rstrip("\n"), whole=entry.log.endswith("\n"), closed=closed
                )
            if b'"MESSAGE"' in record:
                said = _journal.decode(record).MESSAGE
                text = said if isinstance(said, str) else bytes(said).decode("utf-8", "replace")
                drawn = [piece for piece in text.split("\r") if piece.strip()]
                return plain(drawn[-1] if drawn else "", closed)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
            pass
        return plain(record[:HEAD].decode("utf-8", "replace"), closed)

    def _join(self, stream: str, text: str, *, whole: bool, closed: bool) -> Record | None:
        parts = self._parts.setdefault(stream, [])
        if sum(map(len, parts)) < _JOINED_LIMIT:
            parts.append(text)
        if not whole:
            return None
        del self._parts[stream]
        # A bar that was redrawn within one line: what stands there last is what counts.
        drawn = [piece for piece in "".join(parts).split("\r") if piece.strip()]
        return plain(drawn[-1] if drawn else "", closed)


def plain(text: str, closed: bool = True) -> Record:
    """A record of text without a container's wrapping: the launcher's and the logger's are peeled off."""
    text = text[:HEAD].rstrip("\r\n")
    nested = False
    if not text.isprintable():
        nested = _UP.search(text) is not None
        if "\x1b" in text:
            text = _ESCAPES.sub("", text)
        text = _CONTROL.sub("", text)
    rank, source, label, whole = None, "", None, text
    for _ in range(6):
        for prefix in _PREFIXES:
            match = prefix.match(text)
            if match is not None:
                break
        else:
            break
        found = match.groupdict()
        if found.get("rank"):
            rank = int(found["rank"])
            if prefix is _PREFIXES[2]:
                label = rank
        source = found.get("source") or source
        text = text[match.end() :]
    head = _PLACE.sub(" ", _EMPTY.sub(" ", _TIME.sub(" ", text[:200])))
    named = _RANK.search(head)
    if named is not None:
        rank = int(named["rank"])
        head = head[: named.start()] + " " + head[named.end() :]
    text = head + text[200:]
    return Record(text, rank, source, label, nested, closed, "" if text == whole else whole)
