"""A process that has loaded torch, and forks a job from itself whenever a line on its input asks for one.

Loading torch takes seconds, and the suite has some sixty jobs.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from standalone.chain import ROOT


class Warm:
    """The suite's end. The jobs are children of that process; whoever ends them leaves it alone."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.warm"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, arguments: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> int:
        """The pid of a new job with these arguments. Raises RuntimeError if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"arguments": list(arguments), "log": str(log), "environment": dict(environment)}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process that starts jobs has ended")
        return int(answer)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _become_job(order: Mapping[str, object]) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output = os.open(str(order["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(source, number)
    os.environ.update(order["environment"])  # type: ignore[call-overload]
    from tests.faults import job

    job.main(order["arguments"])  # type: ignore[arg-type]


# What the first iteration of every rank would import, too.
_LOADED = (
    "torch._dynamo",
    *(f"tests.faults.kinds.{name}" for name in ("busy", "calls", "files", "inputs", "moves", "waits")),
)


def main() -> None:
    for module in _LOADED:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in iter(sys.stdin.buffer.readline, b""):
        pid = os.fork()
        if pid == 0:
            try:
                _become_job(json.loads(line))
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stdout.flush()
                os._exit(0)
        os.write(1, f"{pid}\n".encode())


if __name__ == "__main__":
    main()
