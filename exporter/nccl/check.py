"""`check-nccl FILE|HOST:PORT`: what is understood of a RAS answer, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TextIO

from exporter.nccl.parse import parse, to_json
from exporter.nccl.ras import LIMITS, Limits, ask, resolve, split_address, understand


def run(target: str, *, out: TextIO, err: TextIO | None = None, limits: Limits = LIMITS) -> int:
    """Print the object; 0 where something was understood, 2 with one line on `err` where nothing was.

    An existing file is read, anything else is asked as HOST:PORT. Asking puts one question to the job,
    whatever its NCCL version: this is a tool for a person who knows that it may be asked.
    """
    err = err or sys.stderr
    path = Path(target)
    problem = ""
    if path.exists():
        try:
            report = parse(path.read_bytes())
        except OSError as error:
            print(f"{target}: cannot be read: {error.strerror}", file=err)
            return 2
        if not report.understood:
            problem = "holds nothing of a RAS answer"
    else:
        try:
            host, port = split_address(target)
        except ValueError:
            print(f"{target}: no such file, and no HOST:PORT to ask", file=err)
            return 2
        answer = understand(ask(resolve(host, port), limits=limits))
        report, problem = answer.report, answer.detail
    print(json.dumps(to_json(report), indent=2), file=out)
    if problem:
        print(f"{target}: {problem}", file=err)
    return 0 if report.understood else 2
