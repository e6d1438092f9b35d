"""`check-log`: what is understood of a training log, for people or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TextIO

from exporter.logs.frameworks import recognise
from exporter.logs.interpreter import Interpreter, Observation
from exporter.logs.linereader import RecordSplitter
from exporter.logs.model import Phase
from exporter.logs.verdict import looks_finished

_PIECE = 1 << 20


@dataclass(slots=True)
class Checked:
    """What was understood of one file."""

    file: str
    framework: str
    iterations: int
    first_iteration: int | None
    last_iteration: int | None
    total_iterations: int | None
    last_record: int | None
    finished: bool
    phase: Phase
    records: list[tuple[int, int | None, int | None, float | None]] = field(default_factory=list)
    near: list[tuple[int, str, str]] = field(default_factory=list)


def check(file: Path) -> Checked:
    """Read a whole file. Raises OSError."""
    interpreter = Interpreter()
    seen: list[tuple[int, str, int | None, int | None, float | None]] = []
    near: list[tuple[int, str, str]] = []
    framework = ""
    with file.open("rb") as stream:
        for raw in _records(stream):
            observation = interpreter.feed(raw)
            if observation is None:
                continue
            reading = observation.reading
            framework = framework or recognise(observation.text)
            if reading is None or reading.unstarted:
                continue
            if observation.series is not None:
                seen.append(
                    (observation.record, reading.series, reading.iteration, reading.total, reading.epoch)
                )
            if reading.why:
                near.append((observation.record, observation.text[:160], reading.why))
    accepted = interpreter.chooser.accepted()
    records = [(record, n, total, epoch) for record, key, n, total, epoch in seen if key in accepted]
    numbered = [one for one in records if one[1] is not None]
    done = looks_finished(interpreter)
    phase = (
        Phase.FINISHED
        if done
        else Phase.TRAINING
        if records and interpreter.phase is Phase.STARTING
        else interpreter.phase
    )
    if phase is Phase.FINISHED and not done:
        phase = Phase.TRAINING if records else Phase.STARTING
    return Checked(
        str(file),
        framework or "unknown",
        len(records),
        numbered[0][1] if numbered else None,
        numbered[-1][1] if numbered else None,
        next((one[2] for one in reversed(numbered) if one[2] is not None), None),
        records[-1][0] if records else None,
        done,
        phase,
        records,
        near,
    )


def _records(stream: BinaryIO) -> Iterable[bytes]:
    splitter = RecordSplitter()
    while data := stream.read(_PIECE):
        yield from splitter.feed(data)
    rest = splitter.flush()
    if rest:
        yield rest


def run(paths: Sequence[Path], *, as_json: bool, records: bool, explain: bool, out: TextIO) -> int:
    """Check files and folders of them. Returns 0 where all could be read, 1 where one could not."""
    failed = False
    for file in paths:
        try:
            found = check(file)
        except OSError as error:
            failed = True
            print(f"error: {file}: {error.strerror}", file=out)
            continue
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
            data["records"] = found.records
        if as_json:
            out.write(json.dumps(data, ensure_ascii=False) + "\n")
        else:
            out.write("".join(f"{name}: {value}\n" for name, value in data.items()) + "\n")
        if explain:
            for record, text, why in found.near:
                out.write(f"  record {record}: {why}: {text}\n")
    return int(failed)
