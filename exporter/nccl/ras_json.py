"""The JSON form of a RAS answer (NCCL 2.28.7 and later), read piece by piece.

A big job's answer holds tens of megabytes; it is decoded in small batches, each reduced at once to what is
kept, so that little memory is held. Status and error words, groups and
the job summary are not in the JSON: they are derived here by the rules of NCCL's own text report.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import msgspec

from exporter.nccl.derive import Derivation, RawCommunicator, RawRank
from exporter.nccl.model import Event, RasReport
from exporter.nccl.ras_text import parse_text
from exporter.nccl.sanity import without_nonsense

BATCH_BYTES = 128 * 1024

_START = re.compile(rb"^\{", re.MULTILINE)
_ARRAY = re.compile(rb'\n  "communicators": \[')
_RANKS = re.compile(rb'"ranks": \[')
_VERSION = re.compile(rb'"nccl_version": "([^"]*)"')
# NVIDIA NCCL 2.28.7 and 2.28.9 forget a comma in each entry of missing_ranks (fixed in 2.29.2).
_COMMA_FORGOTTEN = re.compile(rb'("nvml_dev": -?\d+)(\s+"status")')

Buffer = bytes | bytearray
Element = TypeVar("Element")


class _Ras(msgspec.Struct, frozen=True):
    collection_time_sec: float | None = None
    timeouts_count: int = 0


class _Head(msgspec.Struct):
    """The report but for its communicators, which are decoded apart."""

    nccl_version: str
    cuda_runtime_version: int | None = None
    cuda_driver_version: int | None = None
    communicators: list[RawCommunicator] = []
    ras: _Ras = _Ras()


class _Peer(msgspec.Struct):
    host: str | None = None
    pid: int | None = None
    addr: str | None = None


class _Event(msgspec.Struct):
    """An event of monitor mode."""

    timestamp: str
    event: str
    peer: _Peer | None = None
    details: str = ""


_head = msgspec.json.Decoder(_Head)
_event = msgspec.json.Decoder(_Event)
_communicators = msgspec.json.Decoder(list[RawCommunicator])
_ranks = msgspec.json.Decoder(list[RawRank])


class _Cut(Exception):
    """The answer ends before its end."""


def find_json(raw: Buffer) -> int | None:
    """Where JSON begins in an answer; None: it is text."""
    found = _START.search(raw)
    return found.start() if found else None


def parse_json(raw: Buffer) -> RasReport:
    """Understand an answer that holds JSON. Never raises on any input."""
    start = find_json(raw)
    session = parse_text(bytes(raw[:start]).decode("utf-8", "replace"))
    if start is None:
        return session
    report = replace(session, format="json", complete=False)
    events: list[Event] = []
    position: int | None = start
    while position is not None:
        try:
            kind, end = _one_object(raw, position)
        except _Cut:
            version = _VERSION.search(raw, position, position + 4096)
            known = version[1].decode("utf-8", "replace") if version else None
            return replace(
                report,
                nccl_version=known,
                events=tuple(events),
                understood=report.understood + (known is not None),
            )
        if isinstance(kind, Event):
            events.append(kind)
        elif isinstance(kind, RasReport):
            report = _joined(report, kind)
        else:
            report = replace(report, not_understood=(*report.not_understood, kind))
        position = _next(raw, end)
        if position is None:
            rest = parse_text(bytes(raw[end:]).decode("utf-8", "replace"))
            report = replace(
                report,
                server_errors=(*report.server_errors, *rest.server_errors),
                not_understood=(*report.not_understood, *rest.not_understood),
            )
    found = replace(report, events=tuple(events), understood=report.understood + len(events))
    return without_nonsense(found)


def _joined(session: RasReport, report: RasReport) -> RasReport:
    return replace(
        report,
        server_errors=session.server_errors,
        understood=session.understood + report.understood,
        not_understood=session.not_understood + report.not_understood,
    )


def _next(raw: Buffer, end: int) -> int | None:
    found = _START.search(raw, end)
    return found.start() if found else None


def _one_object(raw: Buffer, start: int) -> tuple[RasReport | Event | str, int]:
    """One top-level object and where it ends; a string: its beginning, where it is of no known kind."""
    array = _ARRAY.search(raw, start, start + 4096)
    if array is not None:
        derivation = Derivation()
        end = _communicator_array(raw, array.end(), derivation)
        closing = raw.find(b"\n}", end)
        if closing < 0:
            raise _Cut
        closing += 2
        try:
            head = _head.decode(bytes(raw[start : array.end()]) + bytes(raw[end:closing]))
        except msgspec.DecodeError:
            return _beginning(raw, start), closing
        return _report(head, derivation), closing
    closing = raw.find(b"\n}", start)
    end = closing + 2 if closing >= 0 else len(raw)
    return _small_object(bytes(raw[start:end]), closing >= 0), end


def _small_object(text: bytes, closed: bool) -> RasReport | Event | str:
    """An object in another layout than the one known: decoded whole."""
    try:
        event = _event.decode(text)
    except msgspec.ValidationError:
        pass
    except msgspec.DecodeError:
        if not closed:
            raise _Cut from None
    else:
        peer = event.peer
        who = "" if peer is None else (peer.addr or f"process {peer.pid} on node {peer.host}")
        return Event(event.timestamp, event.event, " ".join(part for part in (who, event.details) if part))
    try:
        head = _head.decode(_COMMA_FORGOTTEN.sub(rb"\1,\2", text))
    except msgspec.DecodeError:
        return _beginning(text, 0)
    derivation = Derivation()
    for communicator in head.communicators:
        derivation.add(communicator)
    return _report(head, derivation)


def _beginning(raw: Buffer, start: int) -> str:
    return " ".join(bytes(raw[start : start + 200]).decode("utf-8", "replace").split())


def _report(head: _Head, derivation: Derivation) -> RasReport:
    report = derivation.report()
    return replace(
        report,
        nccl_version=head.nccl_version,
        cuda_runtime=head.cuda_runtime_version,
        cuda_driver=head.cuda_driver_version,
        collection_seconds=head.ras.collection_time_sec,
        timeouts=head.ras.timeouts_count,
        complete=True,
    )


def _communicator_array(raw: Buffer, start: int, derivation: Derivation) -> int:
    """Feed the communicators of the array that begins at `start`; gives where its bracket closes."""
    end = start
    for first, end in _batches(raw, start, b"    "):
        text = bytes(raw[first:end])
        try:
            if end - first > 4 * BATCH_BYTES:
                derivation.add(_big_communicator(text))
            else:
                for communicator in _decoded(_communicators, text):
                    derivation.add(communicator)
        except msgspec.DecodeError:
            derivation.not_understood.append(_beginning(text, 0))
    return end


def _big_communicator(text: bytes) -> RawCommunicator:
    """One communicator whose ranks are decoded in batches."""
    array = _RANKS.search(text)
    if array is None:
        (communicator,) = _decoded(_communicators, text)
        return communicator
    ranks: list[RawRank] = []
    end = array.end()
    for first, end in _batches(text, array.end(), b"        "):
        ranks.extend(_decoded(_ranks, text[first:end]))
    (communicator,) = _decoded(_communicators, text[: array.end()] + text[end:])
    communicator.ranks = ranks
    return communicator


def _decoded(decoder: msgspec.json.Decoder[list[Element]], elements: bytes) -> list[Element]:
    try:
        return decoder.decode(b"[" + elements + b"]")
    except msgspec.DecodeError:
        return decoder.decode(b"[" + _COMMA_FORGOTTEN.sub(rb"\1,\2", elements) + b"]")


def _batches(raw: Buffer, start: int, pad: bytes) -> Iterator[tuple[int, int]]:
    """Spans of whole elements of a pretty-printed array of objects, each about BATCH_BYTES or one element.

    NCCL indents by two blanks a level: an element begins and ends on a line of its own at `pad`, and no
    string of JSON holds a raw line end. The last span's end is followed by the closing bracket.
    """
    closing = b"\n" + pad + b"}"
    position = start
    while True:
        element = _skip_blank(raw, position)
        if raw[element : element + 1] == b"]":
            return
        end = raw.rfind(closing, element, element + BATCH_BYTES)
        if end < 0:
            end = raw.find(closing, element)
        if end < 0:
            raise _Cut
        end += len(closing)
        yield element, end
        after = _skip_blank(raw, end)
        following = raw[after : after + 1]
        if following == b"]":
            return
        if following != b",":
            raise _Cut
        position = after + 1


_BLANK = re.compile(rb"\s*")


def _skip_blank(raw: Buffer, position: int) -> int:
    found = _BLANK.match(raw, position)
    return found.end() if found else position
