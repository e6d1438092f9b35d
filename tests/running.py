"""A program of ours under test: its process, what it has logged, and its port on loopback."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SCRIPTS = Path(sys.executable).parent
DEADLINE_SECONDS = 240.0


class Program:
    """A started program that listens on 127.0.0.1."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self.url = "http://127.0.0.1:" + self.wait_for(r"listening on 127\.0\.0\.1:(\d+)")

    def wait_for(self, pattern: str) -> str:
        """The first group of a pattern once the log has it."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None  # what it said last is looked at all the same
            match = re.search(pattern, self.log.read_text())
            if match is not None:
                return match[1] if match.groups() else match[0]
            assert not ended, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"{pattern} is not in the log:\n{self.log.read_text()}")

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        body: object = None,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        """Status and text of an answer; `body` is sent as JSON."""
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data, dict(headers or {}), method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@contextmanager
def running(folder: Path, program: str, *arguments: str) -> Iterator[Program]:
    """Run a program of ours on a free port; it is killed at the end."""
    log = folder / "program.log"
    command = [str(SCRIPTS / program), *arguments, "--web.listen-address=127.0.0.1:0"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield Program(process, log)
    finally:
        process.kill()
        process.wait()


@contextmanager
def shared_port(host: str = "127.0.0.1") -> Iterator[int]:
    """A port for programs that share theirs (SO_REUSEPORT); it is held, so that nobody else is given it."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, 0))
        yield held.getsockname()[1]


def port_of_log(log: Path) -> int:
    """The port that Prometheus or Alertmanager, told to take a free one, says that it listens on."""
    found: list[str] = []

    def told() -> bool:
        found[:] = re.findall(r"\"Listening on\".* address=127\.0\.0\.1:(\d+)\s", log.read_text())
        return bool(found)

    wait_for(told, say=log.read_text)
    return int(found[0])


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program of ours to its end."""
    command = [str(SCRIPTS / program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)


def wait_for(
    condition: Callable[[], object],
    seconds: float = DEADLINE_SECONDS,
    say: Callable[[], object] = lambda: "it did not happen in time",
) -> None:
    """Until the condition holds; an AssertionError where it does not in time, with what `say` then says."""
    deadline, pause = time.monotonic() + seconds, 0.005
    while not condition():
        assert time.monotonic() < deadline, say()
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
