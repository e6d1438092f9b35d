"""Following logs at full speed, beside Debian's mtail with a program that extracts the same counter, in one run.

    python benchmarks/bench_logs.py [--megabytes 200] [--memory-megabytes 1000] [--seconds 20]

Both follow the same file while it is appended to as fast as the disk takes it; measured is the CPU and wall time
until each shows the last iteration. mtail ends records at newlines alone, so the bars are written with newlines for
both; ours then reads them once more as tqdm writes them, ended by carriage returns. Then, for ours: the delay from
a line to the published number, the CPU time at 1 MB/s, and the memory over many megabytes with rotation.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import row

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

LEAST_RATIO = 1.0
MOST_DELAY = 1.0  # seconds
MOST_CPU = 0.01  # of one core at 1 MB/s
MOST_GROWTH = 16.0  # MB of memory over the whole input
POLL = 0.5  # seconds, as the exporter polls
PATIENCE = 600.0

MTAIL_PROGRAM = r"""
gauge last_iteration by filename
counter iterations_total by filename
/iteration +(?P<n>\d+)\/ *\d+ \|/ {
  last_iteration[getfilename()] = $n
  iterations_total[getfilename()]++
}
/\| (?P<n>\d+)\/\d+ \[/ {
  last_iteration[getfilename()] = $n
  iterations_total[getfilename()]++
}
"""


def megatron(number: int, total: int) -> bytes:
    return (
        f" [2026-06-12 10:22:16.{number % 1000000:06d}] iteration {number:8d}/ {total:7d} | consumed samples: "
        f"{number * 256:12d} | elapsed time per iteration (ms): {4000 + random.random() * 500:.1f} | throughput per "
        f"GPU (TFLOP/s/GPU): {400 + random.random() * 20:.1f} | learning rate: 1.500000E-05 | global batch size:   "
        f"256 | lm loss: {random.random() * 9:.6E} | loss scale: 1.0 | grad norm: {random.random():.3f} | number of "
        "skipped iterations:   0 | number of nan iterations:   0 |"
    ).encode()


def bar(number: int, total: int) -> bytes:
    share = number / total
    left = (total - number) // 8
    return (
        f"train: {share * 100:3.0f}%|{'█' * int(share * 10):10s}| {number}/{total} "
        f"[{number // 480:02d}:{number // 8 % 60:02d}<{left // 60:02d}:{left % 60:02d},  8.2{number % 10}it/s, "
        f"loss={random.random():.4f}, lr=3.0e-04]"
    ).encode()


def write_source(path: Path, line: Callable[[int, int], bytes], megabytes: int, end: bytes) -> int:
    """Write a log of this size; gives its last iteration."""
    total = megabytes * 1_000_000 // (len(line(1, 1_000_000)) + 1)
    with path.open("wb") as stream:
        for number in range(1, total + 1):
            stream.write(line(number, total) + end)
        stream.write(end)
    return total


@dataclass(frozen=True)
class Spent:
    """What it took until the last iteration was shown, in seconds."""

    wall: float
    cpu: float


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_megabytes(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def follow(folder: str) -> None:
    """The exporter's log reader alone; prints each new iteration with the time at which it was published."""
    from exporter.background import Background
    from exporter.config import Config, LogConfig
    from exporter.logs.watcher import LogWatcher
    from exporter.procfs import ProcFS
    from exporter.ranks import Scan

    watcher = LogWatcher(
        Config(logs=(LogConfig(path=f"{folder}/*.log"),)),
        ProcFS(Path("/proc")),
        lambda: Scan(time.time(), "node", ()),
    )
    last: object = None

    def poll() -> None:
        nonlocal last
        watcher.poll()
        states = watcher.latest.logs
        seen = (states[0].last_iteration, states[0].iterations) if states else None
        if seen != last:
            last = seen
            number = -1 if seen is None or seen[0] is None else seen[0]
            print(f"{time.time():.6f} {number} {seen[1] if seen else 0}", flush=True)

    watcher.poll()
    print("ready", flush=True)
    Background("logs", poll, POLL).start()
    sys.stdin.read()


class Ours:
    """The log reader in a process of its own."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, __file__, "--follow", str(folder)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._child.pid
        assert self._child.stdout is not None
        self._lines = self._child.stdout
        self._lines.readline()

    def wait(self, iteration: int) -> tuple[float, int]:
        """When the iteration was published, and how many records had been counted then."""
        for line in self._lines:
            at, number, counted = line.split()
            if int(number) == iteration:
                return float(at), int(counted)
        raise SystemExit("the log reader has ended")

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._lines.close()


class Mtail:
    """Debian's mtail, asked over HTTP as Prometheus would."""

    def __init__(self, folder: Path, programs: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = ["mtail", "--progs", str(programs), "--logs", f"{folder}/*.log", "--address", "127.0.0.1"]
        command += ["--port", str(port), "--poll_interval", "250ms", "--poll_log_interval", "250ms"]
        self._child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.pid = self._child.pid
        self._url = f"http://127.0.0.1:{port}/metrics"
        deadline = time.monotonic() + 30
        while self._ask() is None and time.monotonic() < deadline:
            time.sleep(0.1)

    def _ask(self) -> str | None:
        try:
            with urllib.request.urlopen(self._url, timeout=30) as answer:
                return str(answer.read(), "utf-8")
        except OSError:
            return None

    def wait(self, iteration: int) -> tuple[float, int]:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            text = self._ask() or ""
            numbers = dict(re.findall(r"^(last_iteration|iterations_total)\{.*\} (\S+)$", text, re.MULTILINE))
            if "last_iteration" in numbers and float(numbers["last_iteration"]) == iteration:
                return time.time(), int(float(numbers["iterations_total"]))
            time.sleep(0.1)
        raise SystemExit("mtail did not come to the last iteration")

    def close(self) -> None:
        self._child.kill()
        self._child.wait()


@contextlib.contextmanager
def folder_with_log() -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory(prefix="bench-logs-") as name:
        folder = Path(name)
        log = folder / "train.log"
        log.touch()
        yield folder, log


def drain(make: Callable[[Path], Ours | Mtail], source: Path, last: int) -> Spent:
    """Append the source at full speed; what it takes to come to its end."""
    with folder_with_log() as (folder, log):
        follower = make(folder)
        try:
            time.sleep(1.0)
            before, started = cpu_seconds(follower.pid), time.time()
            with source.open("rb") as reader, log.open("ab") as writer:
                shutil.copyfileobj(reader, writer, 1 << 20)
            at, counted = follower.wait(last)
            spent = Spent(at - started, cpu_seconds(follower.pid) - before)
        finally:
            follower.close()
    if counted != last:
        print(f"  counted {counted} of {last} iterations")
        raise SystemExit(1)
    return spent


def steady(line: Callable[[int, int], bytes], end: bytes, seconds: float) -> tuple[float, float]:
    """Share of a core at 1 MB/s, and the longest delay from a line to its published number."""
    with folder_with_log() as (folder, log):
        follower = Ours(folder)
        try:
            number, delays = 0, []
            with log.open("ab", buffering=0) as writer:
                for warm in (True, False):
                    started, before = time.monotonic(), cpu_seconds(follower.pid)
                    written = 0.0
                    while time.monotonic() - started < (3.0 if warm else seconds):
                        piece = []
                        while written < (time.monotonic() - started) * 1e6:
                            number += 1
                            piece.append(line(number, 9_999_999) + end)
                            written += len(piece[-1])
                        writer.write(b"".join(piece))
                        time.sleep(0.02)
                    share = (cpu_seconds(follower.pid) - before) / (time.monotonic() - started)
                for _ in range(5):
                    number += 1
                    writer.write(line(number, 9_999_999) + end + end)
                    at = time.time()
                    delays.append(follower.wait(number)[0] - at)
        finally:
            follower.close()
    return share, max(delays)


@dataclass(frozen=True)
class Memory:
    """What the reader's memory did, in megabytes; the slope is over the second half, per gigabyte of input."""

    input: float
    growth: float
    peak: float
    slope: float


def memory(source: Path, last: int, megabytes: int) -> Memory:
    """The reader's memory while the source is appended over and over to one file that is rotated each time.

    Mostly by truncation, every tenth time by a new file: a deleted one is held open for a minute, and would take
    disk for as long.
    """
    with folder_with_log() as (folder, log):
        follower = Ours(folder)
        try:
            size = source.stat().st_size / 1e6
            seen = []
            for round_ in range(max(2, round(megabytes / size))):
                if round_ % 10:
                    os.truncate(log, 0)
                else:
                    log.unlink()
                    log.touch()
                with source.open("rb") as reader, log.open("ab") as writer:
                    # The same bytes in the same place would be the same file.
                    writer.write(b"#" * (round_ % 50 + 1) + b"\n")
                    shutil.copyfileobj(reader, writer, 1 << 20)
                follower.wait(last)
                seen.append(resident_megabytes(follower.pid))
        finally:
            follower.close()
    half = seen[len(seen) // 2 :]
    middle, mean = (len(half) - 1) / 2, sum(half) / len(half)
    spread = sum((x - middle) ** 2 for x in range(len(half)))
    slope = sum((x - middle) * (y - mean) for x, y in enumerate(half)) / spread if spread else 0.0
    return Memory(len(seen) * size, seen[-1] - seen[0], max(seen), slope / size * 1000)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--memory-megabytes", type=int, default=1000, help="10000 is the full measure")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--follow", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.follow:
        follow(options.follow)
        return 0
    if shutil.which("mtail") is None:
        print("mtail is missing: apt-get install mtail", file=sys.stderr)
        return 2
    good = True
    with tempfile.TemporaryDirectory(prefix="bench-logs-") as name:
        programs = Path(name) / "programs"
        programs.mkdir()
        (programs / "iterations.mtail").write_text(MTAIL_PROGRAM)
        source = Path(name) / "source"
        for title, line, end in (("Megatron-LM", megatron, b"\n"), ("tqdm bars", bar, b"\n")):
            last = write_source(source, line, options.megabytes, end)
            size = source.stat().st_size / 1e6
            peer = drain(lambda folder: Mtail(folder, programs), source, last)
            ours = drain(Ours, source, last)
            ratio = peer.cpu / ours.cpu
            good &= ratio >= LEAST_RATIO and peer.wall / ours.wall >= LEAST_RATIO
            print(
                f"{title}: {size:.0f} MB: ours {size / ours.wall:.0f} MB/s, {size / ours.cpu:.0f} MB per CPU second; "
                f"mtail {size / peer.wall:.0f} MB/s, {size / peer.cpu:.0f} MB per CPU second; "
                f"ratio {peer.wall / ours.wall:.1f} by the clock, {ratio:.1f} by CPU"
            )
            row(
                f"{title}, {size:.0f} MB",
                f"{size / ours.wall:.0f} MB/s, {size / ours.cpu:.0f} MB per CPU second",
                peer=f"mtail {size / peer.wall:.0f} MB/s, {size / peer.cpu:.0f} MB per CPU second",
                bound=f"{LEAST_RATIO:g} times",
                good=ratio >= LEAST_RATIO and peer.wall / ours.wall >= LEAST_RATIO,
            )
        last = write_source(source, bar, options.megabytes, b"\r")
        redrawn = drain(Ours, source, last)
        size = source.stat().st_size / 1e6
        print(f"tqdm bars ended by carriage returns: ours {size / redrawn.wall:.0f} MB/s")
        held = memory(source, last, options.memory_megabytes)
        good &= held.growth <= MOST_GROWTH
        print(
            f"memory: {held.growth:+.1f} MB over {held.input:.0f} MB (at most {MOST_GROWTH:.0f}), "
            f"{held.slope:+.2f} MB per GB in the second half, at most {held.peak:.0f} MB resident"
        )
        row(
            f"memory over {held.input:.0f} MB of log",
            f"{held.growth:+.1f} MB",
            bound=f"{MOST_GROWTH:.0f} MB",
            good=held.growth <= MOST_GROWTH,
        )
    for title, line, end in (("Megatron-LM", megatron, b"\n"), ("tqdm bars", bar, b"\r")):
        share, delay = steady(line, end, options.seconds)
        good &= share <= MOST_CPU and delay <= MOST_DELAY
        print(
            f"{title} at 1 MB/s: {share * 100:.2f}% of a core (at most 1%), line to metric {delay:.2f} s (at most 1)"
        )
        row(
            f"{title} at 1 MB/s",
            f"{share * 100:.2f}% of a core, line to metric {delay:.2f} s",
            bound="1%, 1 s",
            good=share <= MOST_CPU and delay <= MOST_DELAY,
        )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
