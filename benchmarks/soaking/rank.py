"""A simulated rank: writes the log of a training job and does nothing else. Reads its orders as JSON from argv.

Without torch, so that twenty of them cost nothing; what waits for others waits in a function that is named, and lies
in a file that is named, as torch's.
"""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any


class Log:
    """This rank's standard output in a file, and what handlers and tools do to such files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rotations = 0
        self._open()

    def _open(self) -> None:
        number = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for standard in (1, 2):
            os.dup2(number, standard)
        os.close(number)

    def write(self, text: str) -> None:
        os.write(1, text.encode() + b"\n")

    def rotate(self, kind: str) -> None:
        self.rotations += 1
        old = self.path.with_name(f"{self.path.name}.{os.getpid()}.{self.rotations}")
        if kind == "copytruncate":
            old.write_bytes(self.path.read_bytes())
            os.truncate(self.path, 0)
        elif kind == "rename":
            self.path.rename(old)
            self._open()
        elif kind == "recreate":
            self.path.unlink()
            self._open()
        elif kind == "compress":
            self.path.rename(old)
            self._open()
            old.with_name(old.name + ".gz").write_bytes(gzip.compress(old.read_bytes()))
            old.unlink()
        elif kind == "dated":
            self.path = self.path.with_name(f"{self.path.stem}-{os.getpid()}-{self.rotations}.log")
            self._open()


class Rank:
    def __init__(self, orders: dict[str, Any]) -> None:
        self.rank = int(os.environ["RANK"])
        self.run = orders["run"]
        self.logs = self.rank == orders["logger"]
        self.folder = Path(orders["folder"])
        name = "train.log" if orders["shared_log"] else f"rank-{self.rank}.log"
        self.log = Log(self.folder / name)
        self.iteration = self.run["first_iteration"] - 1

    def live(self) -> None:
        if self.logs or self.rank == 0:
            self.log.write(f"> initializing {os.environ['WORLD_SIZE']} ranks")
        if self.logs and self.run["first_iteration"] > 1:
            self.log.write(f"  loaded checkpoint at iteration {self.iteration}")
        time.sleep(self.run["startup_seconds"])
        for kind, value in self.run["steps"]:
            getattr(self, kind)(value)
        if self.logs:
            (self.folder / "at-end").touch()
        getattr(self, self.run["end"])()

    def say(self, text: str) -> None:
        if self.logs:
            self.log.write(text)

    def iterate(self, iterations: int) -> None:
        seconds = self.run["iteration_seconds"]
        if not self.logs:
            time.sleep(iterations * seconds)
            return
        for _ in range(iterations):
            time.sleep(seconds)
            self.iteration += 1
            self.say(
                f" iteration {self.iteration:8d}/ 1000000 | consumed samples: {self.iteration * 8:12d} | "
                f"elapsed time per iteration (ms): {seconds * 1000:.1f} | lm loss: 2.113E+00 |"
            )

    def evaluate(self, seconds: float) -> None:
        self.say("Evaluating on 80 samples")
        for number in range(1, 5):
            time.sleep(seconds / 4)
            self.say(f"Evaluating iter {number}/4")
        self.say(
            f" validation loss at iteration {self.iteration} | lm loss value: 2.1E+00 | lm loss PPL: 8.2E+00 |"
        )

    def checkpoint(self, seconds: float) -> None:
        self.say(f"saving checkpoint at iteration {self.iteration:7d} to /checkpoints in torch format")
        time.sleep(seconds)
        self.say(f"  successfully saved checkpoint at iteration {self.iteration:7d} to /checkpoints")

    def rotate(self, kind: str) -> None:
        if self.logs:
            self.log.rotate(kind)

    def finish(self) -> None:
        """Training is over; the processes stay for a while, as those that upload a model do."""
        self.say(f"exiting program at iteration {self.iteration}")
        time.sleep(15)

    def crash(self) -> None:
        self.say(
            'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\nRuntimeError: boom'
        )
        raise SystemExit(1)

    def killed(self) -> None:
        """Goes on until somebody ends it."""
        while True:
            self.iterate(1_000)

    def hang(self) -> None:
        if self.rank == self.run["victim"]:
            getattr(self, f"hang_in_{self.run['fault']}")()
        from torch.distributed import distributed_c10d  # the stand-in beside this file

        distributed_c10d.all_reduce()

    def hang_in_lock(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    def hang_in_read(self) -> None:
        reading, _writing = os.pipe()
        os.read(reading, 1)

    def hang_in_stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def hang_in_disk(self) -> None:
        """State D: vfork's parent sleeps until the child executes; it opens a FIFO that nobody writes."""
        fifo = self.folder / f"fifo-{os.getpid()}"
        os.mkfifo(fifo)
        os.posix_spawn(
            "/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, str(fifo), os.O_RDONLY, 0)]
        )


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: none outlives the soak
    Rank(json.loads(sys.argv[1])).live()


if __name__ == "__main__":
    main()
