"""A small /proc for tests: real files in a temporary folder, written as the kernel writes them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

PROC_FIXTURES = Path(__file__).parents[1] / "fixtures" / "proc"


class ProcTree:
    """Builds, changes and ends processes below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        (root / "stat").write_text("cpu  1 2 3\nbtime 1700000000\nprocesses 10\n")
        self.file("sys/kernel/task_delayacct", "0\n")

    def file(self, name: str, text: str | bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)

    def process(
        self,
        pid: int,
        *,
        ppid: int = 1,
        argv: Sequence[str] = (),
        comm: str | None = None,
        environ: Mapping[str, str] | bytes = b"",
        exe: str | None = None,
        threads: Sequence[str] = (),
        thread_states: str = "",
        state: str = "S",
        start: int = 0,
        session: int = 0,
        cgroup: str = "/",
        cpu: tuple[int, int] = (0, 0),
        delay: int = 0,
        switches: tuple[int, int] = (0, 0),
        io: Mapping[str, int] | None = None,
        wchan: str = "0",
        written: Sequence[str] = (),
        flags: int = 0x400000,
        runs: int | None = None,
    ) -> None:
        """`threads` are the names of all threads but the main one; they get the numbers after the pid.

        `runs`: how often each of them ran; None: a kernel that does not say.
        """
        name = comm if comm is not None else Path(argv[0]).name[:15] if argv else "x"
        home = f"{pid}"
        shutil.rmtree(self.root / home, ignore_errors=True)
        started = start or pid
        count = 1 + len(threads)

        def stat(tid: int, thread: str, letter: str) -> str:
            fields = [
                letter,
                ppid,
                pid,
                session or pid,
                0,
                -1,
                flags,
                0,
                0,
                0,
                0,
                *cpu,
                0,
                0,
                20,
                0,
                count,
                0,
            ]
            fields += [started, 1 << 20, 100, *[0] * 17, delay, 0, 0, *[0] * 7, 0]
            return f"{tid} ({thread}) " + " ".join(map(str, fields)) + "\n"

        self.file(f"{home}/stat", stat(pid, name, state))
        for number, thread in enumerate([name, *threads]):
            tid = pid + number
            letter = state if number == 0 else (thread_states[number - 1 :] or "S")[0]
            self.file(f"{home}/task/{tid}/stat", stat(tid, thread, letter))
            self.file(f"{home}/task/{tid}/comm", thread + "\n")
            self.file(f"{home}/task/{tid}/wchan", wchan)
            if runs is not None:
                self.file(f"{home}/task/{tid}/schedstat", f"{runs * 1000} 0 {runs}\n")
        self.file(
            f"{home}/status",
            f"Name:\t{name}\nState:\t{state} (x)\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t{ppid}\nTracerPid:\t0\n"
            f"Uid:\t0\t0\t0\t0\nNSpid:\t{pid}\nThreads:\t{count}\n"
            f"voluntary_ctxt_switches:\t{switches[0]}\nnonvoluntary_ctxt_switches:\t{switches[1]}\n",
        )
        counters = dict.fromkeys(
            ("rchar", "wchar", "syscr", "syscw", "read_bytes", "write_bytes", "cancelled_write_bytes"), 0
        )
        counters |= io or {}
        self.file(f"{home}/io", "".join(f"{key}: {value}\n" for key, value in counters.items()))
        self.file(f"{home}/comm", name + "\n")
        self.file(f"{home}/cmdline", b"".join(one.encode() + b"\0" for one in argv))
        if isinstance(environ, Mapping):
            environ = b"".join(f"{key}={value}".encode() + b"\0" for key, value in environ.items())
        self.file(f"{home}/environ", environ)
        self.file(f"{home}/cgroup", f"0::{cgroup}\n")
        self.file(f"{home}/wchan", wchan)
        self.file(f"{home}/maps", "")
        program = exe or (argv[0] if argv and argv[0].startswith("/") else "/usr/bin/" + name)
        (self.root / home / "exe").symlink_to(program)
        for number, path in enumerate(written, start=3):
            (self.root / home / "fd").mkdir(exist_ok=True)
            (self.root / home / "fd" / str(number)).symlink_to(path)
            self.file(f"{home}/fdinfo/{number}", "pos:\t0\nflags:\t0100001\nmnt_id:\t1\n")

    def end(self, pid: int) -> None:
        shutil.rmtree(self.root / str(pid))

    def load(self, fixture: str) -> dict[str, Any]:
        """Build the processes of a file in tests/fixtures/proc; the file's whole content comes back."""
        data: dict[str, Any] = json.loads((PROC_FIXTURES / fixture).read_text(encoding="utf-8"))
        for one in data["processes"]:
            environ = data.get("environ", {}) | one.get("environ", {})
            self.process(**(one | {"environ": {key: str(value) for key, value in environ.items()}}))
        return data


@pytest.fixture
def proc_tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path / "proc")
