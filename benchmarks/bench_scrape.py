"""Scrapes of the exporter beside Debian's process and node exporters, on one node in one run.

The node runs 1,000 processes more than it did, of which 128 are ranks and DataLoader workers of two jobs.
Each exporter is scraped every 15 s for its CPU time, then many times in a row for the time of a scrape. Then
10,000 more processes start that have nothing to do with training, and the exporter is measured again.

    python benchmarks/bench_scrape.py [--seconds 60] [--foreign 10000] [--json]

Exit status 1 where a limit is missed. Needs Debian's prometheus-process-exporter and
prometheus-node-exporter; their services need not run.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.results import row

RANKS, WORKERS, PROCESSES = 16, 7, 1000
INTERVAL = 15.0  # seconds between scrapes while CPU time is measured
BURST = 100  # scrapes in a row while their duration is measured

P50, P99, CPU, RSS = 0.050, 0.150, 0.01, 80 << 20  # seconds, seconds, share of a core, bytes
FASTER, GROWTH = 5.0, 2.0

ENDS_WITH_US = [
    "setpriv",
    "--pdeathsig",
    "KILL",
]  # so that nothing is left behind where this program is killed


@dataclass(frozen=True, slots=True)
class Result:
    """One exporter: seconds a scrape, share of a core, resident bytes, samples a scrape."""

    name: str
    p50: float
    p99: float
    cpu: float
    rss: int
    samples: int


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long CPU time is measured (%(default)s)"
    )
    parser.add_argument(
        "--foreign", type=int, default=10_000, help="foreign processes at the end (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, node(), exporters(Path(folder)) as running:
        results = measure(running, options.seconds)
        ours = {"hangscope": running["hangscope"]}
        with crowd(options.foreign):
            settle(ours)
            crowded = measure(ours, options.seconds)["hangscope"]
    report(results, crowded, options)
    return verdict(results, crowded)


@contextmanager
def node() -> Iterator[None]:
    """Ranks with their workers, and idle processes up to PROCESSES."""
    ranks = [rank(number) for number in range(RANKS)]
    try:
        with crowd(PROCESSES - RANKS * (1 + WORKERS)):
            yield
    finally:
        for pid in ranks:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def rank(number: int) -> int:
    """Start a rank and its workers, in a session of their own; the workers are named as torch names them."""
    job, place = divmod(number, RANKS // 2)
    environ = dict(os.environ) | {
        "RANK": str(place),
        "LOCAL_RANK": str(place),
        "WORLD_SIZE": str(RANKS // 2),
        "LOCAL_WORLD_SIZE": str(RANKS // 2),
        "TORCHELASTIC_RUN_ID": f"bench-{job}",
    }
    command = [*ENDS_WITH_US, sys.executable, __file__, "--be-a-rank"]
    return subprocess.Popen(command, env=environ, start_new_session=True).pid


def be_a_rank() -> None:
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl
    for _ in range(WORKERS):
        if os.fork() == 0:
            prctl(15, b"pt_data_worker", 0, 0, 0)  # PR_SET_NAME
            prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                raise SystemExit  # it was killed before this one could ask
            break
    while True:
        signal.pause()


@contextmanager
def crowd(size: int) -> Iterator[None]:
    """Processes that sleep and do nothing else."""
    setpriv = shutil.which("setpriv") or "/usr/bin/setpriv"
    pids: list[int] = []
    try:
        for _ in range(size):
            pids.append(os.posix_spawn(setpriv, [*ENDS_WITH_US, "/bin/sleep", "100000"], {}))
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


@contextmanager
def exporters(folder: Path) -> Iterator[dict[str, tuple[int, int]]]:
    """Ours and the two peers; pid and port by name."""
    names = folder / "process-exporter.yaml"
    names.write_text("process_names:\n  - name: '{{.Comm}}'\n    cmdline: ['.+']\n")
    ports = [free_port() for _ in range(3)]
    commands = {
        "hangscope": [
            str(Path(sys.executable).with_name("hangscope-exporter")),
            f"--web.listen-address=127.0.0.1:{ports[0]}",
        ],
        "process-exporter": [
            "prometheus-process-exporter",
            f"-config.path={names}",
            f"-web.listen-address=127.0.0.1:{ports[1]}",
        ],
        "node-exporter": ["prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{ports[2]}"],
    }
    log = (folder / "log").open("wb")
    running = {
        name: subprocess.Popen([*ENDS_WITH_US, *command], stdout=log, stderr=log)
        for name, command in commands.items()
    }
    try:
        found = {name: (one.pid, port) for (name, one), port in zip(running.items(), ports, strict=True)}
        settle(found)
        yield found
    finally:
        for one in running.values():
            one.terminate()
        for one in running.values():
            one.wait()
        log.close()


def settle(running: dict[str, tuple[int, int]]) -> None:
    """Wait until each answers, and ours shows all ranks."""
    deadline = time.monotonic() + 120
    for name, (_, port) in running.items():
        wanted = RANKS * (1 + WORKERS) if name == "hangscope" else 1
        marker = b"\ntraining_process_info{" if name == "hangscope" else b"\n# HELP "
        while True:
            try:
                if scrape(port).count(marker) >= wanted:
                    break
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} does not answer as it should")
            time.sleep(0.5)
    time.sleep(INTERVAL)  # what is done once at the start is no part of the running cost


def measure(running: dict[str, tuple[int, int]], seconds: float) -> dict[str, Result]:
    before = {name: (cpu_seconds(pid), time.monotonic()) for name, (pid, _) in running.items()}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _, port in running.values():
            scrape(port)
        time.sleep(max(0.0, min(INTERVAL, end - time.monotonic())))
    results = {}
    for name, (pid, port) in running.items():
        used, started = before[name]
        cpu = (cpu_seconds(pid) - used) / (time.monotonic() - started)
        durations = sorted(timed(lambda port=port: scrape(port)) for _ in range(BURST))
        text = scrape(port)
        results[name] = Result(
            name=name,
            p50=statistics.median(durations),
            p99=durations[int(len(durations) * 0.99) - 1],
            cpu=cpu,
            rss=resident(pid),
            samples=sum(bool(line) and not line.startswith(b"#") for line in text.splitlines()),
        )
    return results


def report(results: dict[str, Result], crowded: Result, options: argparse.Namespace) -> None:
    ours, peer = results["hangscope"], results["process-exporter"]
    if options.json:
        print(json.dumps({"results": [asdict(one) for one in results.values()], "crowded": asdict(crowded)}))
        return
    print(f"{'exporter':<34}{'p50 ms':>9}{'p99 ms':>9}{'CPU %':>8}{'RSS MB':>8}{'samples':>9}")
    rows = [*results.values()]
    for label, one in [(one.name, one) for one in rows] + [(f"hangscope, {options.foreign} more", crowded)]:
        print(
            f"{label:<34}{one.p50 * 1e3:>9.1f}{one.p99 * 1e3:>9.1f}{one.cpu * 100:>8.2f}"
            f"{one.rss / (1 << 20):>8.1f}{one.samples:>9}"
        )
    print(f"process-exporter / hangscope: {peer.p50 / ours.p50:.1f} times the time of a scrape")
    print(
        f"{options.foreign} more processes: {crowded.p50 / ours.p50:.2f} times the time, "
        f"{crowded.cpu / ours.cpu:.2f} times the CPU"
    )


def verdict(results: dict[str, Result], crowded: Result) -> int:
    ours, peer = results["hangscope"], results["process-exporter"]
    checks: list[tuple[bool, str]] = [
        (ours.p50 <= P50, f"p50 is at most {P50 * 1e3:.0f} ms"),
        (ours.p99 <= P99, f"p99 is at most {P99 * 1e3:.0f} ms"),
        (ours.cpu <= CPU, f"CPU is at most {CPU:.0%} of a core"),
        (ours.rss <= RSS, f"RSS is at most {RSS >> 20} MB"),
        (peer.p50 / ours.p50 >= FASTER, f"at least {FASTER:.0f} times faster than process-exporter"),
        (crowded.p50 <= GROWTH * ours.p50, "foreign processes do not double the time of a scrape"),
        (crowded.cpu <= GROWTH * ours.cpu, "foreign processes do not double the CPU"),
    ]
    for good, text in checks:
        print(f"{'ok  ' if good else 'MISS'} {text}", file=sys.stderr)
    for one, name in ((ours, "a scrape"), (crowded, "a scrape beside many foreign processes")):
        row(
            name,
            f"p50 {one.p50 * 1e3:.1f} ms, p99 {one.p99 * 1e3:.1f} ms; {one.cpu:.2%} of a core; "
            f"{one.rss / (1 << 20):.0f} MiB; {one.samples} series",
            peer="; ".join(
                f"{other.name} p50 {other.p50 * 1e3:.1f} ms, {other.cpu:.2%}, {other.rss / (1 << 20):.0f} MiB"
                for other in results.values()
                if other is not ours and one is ours
            ),
        )
    for good, text in checks:
        row(text, "", good=good)
    return 0 if all(good for good, _ in checks) else 1


def scrape(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        data: bytes = answer.read()
    return data


def timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


if __name__ == "__main__":
    if sys.argv[1:] == ["--be-a-rank"]:
        be_a_rank()
    raise SystemExit(main())
