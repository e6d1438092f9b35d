"""`check-log`: what is understood of a training log, for people or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from exporter.logs.files import COMPRESSED, NotFollowable, refuse
from exporter.logs.frameworks import Recogniser
from exporter.logs.interpreter import Interpreter, Observation
from exporter.logs.linereader import RecordSplitter
from exporter.logs.model import Phase
from exporter.logs.reading import Reading
from exporter.logs.series import Series
from exporter.logs.verdict import looks_finished

_PIECE = 1 << 20
_SHOWN = 160  # characters of a record

Numbers = tuple[int, int | None, int | None, float | None]
"""Record number, iteration, total, epoch."""


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A record that shows a counter and is no training iteration."""

    record: int
    why: str
    text: str


@dataclass(frozen=True, slots=True)
class Checked:
    """What was understood of one file; `records` and `near_misses` where they were asked for."""

    file: str
    framework: str
    iterations: int
    first_iteration: int | None
    last_iteration: int | None
    total_iterations: int | None
    last_record: int | None
    finished: bool
    phase: Phase
    records: tuple[Numbers, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()


def check(file: Path, *, records: bool = False, explain: bool = False) -> Checked:
    """Read a whole file. Raises OSError and NotFollowable.

    Which counters are the training's is known at the end alone: the file is read again for its records.
    """
    interpreter, recogniser = Interpreter(), Recogniser()
    for observation in _observations(file, interpreter):
        recogniser.see(observation.text)
    pairs = interpreter.pairs
    if pairs.turned:  # what was found out on the way holds from the first record on
        interpreter = Interpreter(pairs=pairs)
        for _ in _observations(file, interpreter):
            pass
    accepted = interpreter.chooser.accepted()
    found: list[Numbers] = []
    misses: list[NearMiss] = []
    if records or explain:
        for observation in _observations(file, Interpreter(pairs=pairs)):
            reading = observation.reading
            if reading is None or reading.unstarted:
                continue
            if observation.series is not None and reading.series in accepted:
                found.append((observation.record, reading.iteration, reading.total, reading.epoch))
            elif explain:
                misses.append(NearMiss(observation.record, _why(reading), observation.text.strip()[:_SHOWN]))
    series = [one for one in interpreter.chooser.series if one.key in accepted]
    numbered = [one for one in series if one.first is not None]
    newest = max(numbered, key=lambda one: one.last_number_record, default=None)
    done = looks_finished(interpreter)
    return Checked(
        file=str(file),
        framework=recogniser.name,
        iterations=sum(one.count for one in series),
        first_iteration=min(numbered, key=lambda one: one.first_number_record).first if numbered else None,
        last_iteration=newest.last if newest else None,
        total_iterations=newest.total if newest else _total(numbered),
        last_record=max((one.last_record for one in series), default=None),
        finished=done,
        phase=_phase(interpreter, series, done),
        records=tuple(found) if records else (),
        near_misses=tuple(misses),
    )


def _total(numbered: list[Series]) -> int | None:
    return next((one.total for one in numbered if one.total is not None), None)


def _phase(interpreter: Interpreter, series: list[Series], done: bool) -> Phase:
    if done:
        return Phase.FINISHED
    if interpreter.phase in (Phase.FINISHED, Phase.STARTING):
        return Phase.TRAINING if series else Phase.STARTING
    return interpreter.phase


def _why(reading: Reading) -> str:
    return reading.why or "another counter of this log is the training's"


def _observations(file: Path, interpreter: Interpreter) -> Iterator[Observation]:
    with file.open("rb") as stream:
        refuse(str(file), file.stat().st_mode)
        for raw in _records(stream):
            observation = interpreter.feed(raw)
            if observation is not None:
                yield observation


def _records(stream: BinaryIO) -> Iterable[bytes]:
    splitter = RecordSplitter()
    while data := stream.read(_PIECE):
        yield from splitter.feed(data)
    rest = splitter.flush()
    if rest.rstrip().endswith(b"]"):
        yield rest  # a bar that will not be redrawn; of any other last piece the end may be missing


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """The files, and those in folders, without compressed ones; a folder itself where it holds none."""
    for path in paths:
        inside = path.rglob("*") if path.is_dir() else ()
        logs = sorted(one for one in inside if one.is_file() and not one.name.endswith(COMPRESSED))
        yield from logs or (path,)


def run(paths: Sequence[Path], *, as_json: bool, records: bool, explain: bool, out: TextIO) -> int:
    """Check files and folders of them. Returns 0 where all could be read, 1 where one could not."""
    failed = False
    for file in _files(paths):
        try:
            if file.is_dir():
                raise NotFollowable(f"{file}: no log is in this folder; compressed files are not read")
            if not file.is_file():
                refuse(str(file), file.stat().st_mode)
            found = check(file, records=records, explain=explain)
        except (OSError, NotFollowable) as error:
            failed = True
            said = f"{file}: {error.strerror}" if isinstance(error, OSError) else str(error)
            out.write(
                json.dumps({"file": str(file), "error": said}) + "\n" if as_json else f"error: {said}\n"
            )
            continue
        if as_json:
            out.write(json.dumps(_to_json(found, records, explain), ensure_ascii=False) + "\n")
        else:
            out.writelines(f"{line}\n" for line in _to_text(found))
    return int(failed)


def _to_json(found: Checked, records: bool, explain: bool) -> dict[str, object]:
    data: dict[str, object] = {
        "file": found.file,
        "framework": found.framework,
        "iterations": found.iterations,
        "first_iteration": found.first_iteration,
        "last_iteration": found.last_iteration,
        "total_iterations": found.total_iterations,
        "last_record": found.last_record,
        "finished": found.finished,
        "phase": found.phase.value,
    }
    if records:
        data["records"] = [list(one) for one in found.records]
    if explain:
        data["near_misses"] = [[one.record, one.why, one.text] for one in found.near_misses]
    return data


def _to_text(found: Checked) -> Iterator[str]:
    yield f"{found.file}:"
    if found.iterations:
        yield f"  framework   {found.framework}"
        numbers = "no numbers shown"
        if found.last_iteration is not None:
            numbers = f"{found.first_iteration} to {found.last_iteration}"
            numbers += f" of {found.total_iterations}" if found.total_iterations is not None else ""
        yield f"  iterations  {numbers}, in {found.iterations} records, the last of them record {found.last_record}"
    else:
        yield f"  framework   {found.framework}"
        yield "  iterations  none found (--explain shows what was near); a `pattern` for this log can be configured"
    yield f"  phase       {found.phase.value}"
    for record, iteration, total, epoch in found.records:
        shown = "progress without a number" if iteration is None else f"iteration {iteration}"
        shown += f" of {total}" if total is not None else ""
        yield f"  record {record}: {shown}" + (f", epoch {epoch:g}" if epoch is not None else "")
    for one in found.near_misses:
        yield f"  record {one.record} does not count: {one.why}: {one.text}"
