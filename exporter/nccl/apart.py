"""Big answers are read in a process of their own, as reading holds the interpreter lock and scrapes would wait.

The process gets the answer on stdin and gives the report on stdout, in pieces that are each decoded in a few
milliseconds: four bytes of length (big-endian) and MessagePack, the last piece marked.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from exporter.nccl.model import Communicator, RasProcess, RasRank, RasReport
from exporter.nccl.parse import Unread, parse

BIG = 512 * 1024
"""Bytes above which an answer is read apart; starting a process costs as much as reading some two megabytes."""
SECONDS = 60.0
"""After so long the process is killed: 256 MiB, the largest answer there is, take a sixth of it."""
_COMMUNICATORS, _NAMES = 200, 4000  # in one piece
_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a report. The first one has all that is small."""

    report: RasReport | None = None
    communicators: tuple[Communicator, ...] = ()
    processes: tuple[RasProcess, ...] = ()
    largest: tuple[RasRank, ...] = ()
    last: bool = False


_decoder = msgspec.msgpack.Decoder(_Piece)


def read(raw: bytes | bytearray, *, big: int = BIG, seconds: float = SECONDS) -> RasReport:
    """Understand an answer, here or apart by its size. Raises Unread where the process fails."""
    return parse(raw) if len(raw) <= big else _read_apart(raw, seconds, _command())


def _command() -> list[str]:
    return [sys.executable, "-P", "-m", __name__]


def _read_apart(raw: bytes | bytearray, seconds: float, command: list[str]) -> RasReport:
    paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    try:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
    except OSError as error:
        raise Unread(f"no process to read {len(raw)} bytes in: {error}") from error
    late = threading.Event()

    def give_up() -> None:
        late.set()  # first, as its end is seen at once
        child.kill()

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        with child:
            _give(cast(BinaryIO, child.stdin), raw)
            try:
                return _joined(cast(BinaryIO, child.stdout))
            except (EOFError, msgspec.DecodeError) as error:
                child.kill()
                why = f"was not done after {seconds:g} s" if late.is_set() else f"failed: {error}"
                raise Unread(f"the process that read {len(raw)} bytes {why}") from error
    finally:
        timer.cancel()


def _give(stdin: BinaryIO, raw: bytes | bytearray) -> None:
    try:
        stdin.write(raw)
        stdin.close()
    except BrokenPipeError:
        pass  # it has ended: what it leaves unsaid tells


def _joined(stream: BinaryIO) -> RasReport:
    """The report of all pieces. Raises EOFError where the last one is missing, msgspec.DecodeError."""
    report: RasReport | None = None
    communicators: list[Communicator] = []
    processes: list[RasProcess] = []
    largest: list[RasRank] = []
    while True:
        head = stream.read(4)
        data = stream.read(struct.unpack(">I", head)[0]) if len(head) == 4 else b""
        if not data:
            raise EOFError("it ended before the end of its report")
        piece = _decoder.decode(data)
        report = piece.report or report
        communicators += piece.communicators
        processes += piece.processes
        largest += piece.largest
        if piece.last and report is not None:
            return replace(
                report,
                communicators=tuple(communicators),
                processes=tuple(processes),
                largest=tuple(largest),
            )


def _pieces(report: RasReport) -> Iterator[_Piece]:
    yield _Piece(report=replace(report, communicators=(), processes=(), largest=()))
    for at in range(0, len(report.communicators), _COMMUNICATORS):
        yield _Piece(communicators=report.communicators[at : at + _COMMUNICATORS])
    for at in range(0, len(report.processes), _NAMES):
        yield _Piece(processes=report.processes[at : at + _NAMES])
    for at in range(0, len(report.largest), _NAMES):
        yield _Piece(largest=report.largest[at : at + _NAMES])
    yield _Piece(last=True)


def _end_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends."""
    prctl: Callable[..., int] = ctypes.CDLL(None).prctl
    prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    _end_with_parent()
    gc.disable()  # what is read is kept until the end, and the end is near
    for piece in _pieces(parse(sys.stdin.buffer.read())):
        data = msgspec.msgpack.encode(piece)
        sys.stdout.buffer.write(struct.pack(">I", len(data)) + data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
