"""A real RAS network without a GPU, and the exporter driven against it.

    nccl_lab.py [--libraries DIR] [--version 2.30.7 …] [--slow]

It prints what the exporter made of each situation; the exit status is 1 where that is wrong. NVIDIA's
library is looked for as DIR/VERSION/libnccl.so.2 and, where it is not there, fetched with pip (200 to 300 MB
a version, wheels nvidia-nccl-cu12 and nvidia-nccl-cu13). `--slow` also waits until a killed process is
considered dead.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric

from exporter.collectors.nccl import NcclCollector
from exporter.config import NcclConfig
from exporter.nccl import check
from exporter.nccl.evidence import KnownProcess, facts
from exporter.nccl.question import ask_job
from exporter.nccl.watcher import NcclWatcher
from exporter.procfs import ProcFS
from exporter.ranks import RankFinder, Scan
from exporter.yamlconfig import Duration

LAYOUTS = Path(__file__).parent.parent / "fixtures" / "nccl" / "library_layouts.json"
RANK_PROGRAM = Path(__file__).with_name("nccl_lab_rank.py")
ANSWER_SECONDS = 30.0
NAME = f"lab-{os.getpid()}"
"""Jobs of this run; other jobs of the machine are left alone."""


@dataclass
class Member:
    """A process of a lab job; it holds one GPU."""

    popen: subprocess.Popen[str]
    ip: str
    gpu: int
    host: int
    process: int
    address: str = ""

    def call(self, **command: Any) -> dict[str, Any]:
        """Carry out one command; raises RuntimeError where the process has died or does not answer."""
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.write(json.dumps(command) + "\n")
        self.popen.stdin.flush()
        ready, _, _ = select.select([self.popen.stdout], [], [], ANSWER_SECONDS)
        line = self.popen.stdout.readline() if ready else ""
        if not line:
            raise RuntimeError(f"process {self.popen.pid} gave no answer; exit status {self.popen.poll()}")
        answer: dict[str, Any] = json.loads(line)
        if answer.pop("status"):
            raise RuntimeError(f"NCCL refused {command['do']}")
        return answer


class Job:
    """A training job whose processes run NVIDIA's RAS code; a context manager, which ends them.

    `nodes` maps the address that stands for a node to its number of processes.
    """

    def __init__(
        self,
        library: Path,
        version: str,
        nodes: dict[str, int],
        port: int,
        *,
        name: str = "job",
        environment: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        seed: int = 1,
    ) -> None:
        self._random = random.Random(seed)
        self._next = 0
        self.job_id = f"{NAME}-{name}"
        self.members: list[Member] = []
        world = sum(nodes.values())
        for ip, count in nodes.items():
            host = self._random.getrandbits(64)
            for local_rank in range(count):
                variables = {
                    "NCCL_RAS_ADDR": f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}",
                    "RANK": str(len(self.members)),
                    "LOCAL_RANK": str(local_rank),
                    "WORLD_SIZE": str(world),
                    "LOCAL_WORLD_SIZE": str(count),
                    "TORCHELASTIC_RUN_ID": self.job_id,
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": "29500",
                } | (environment or {})
                popen = subprocess.Popen(
                    [*prefix, sys.executable, str(RANK_PROGRAM), str(library), str(LAYOUTS), version],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, **variables},
                    text=True,
                )
                self.members.append(Member(popen, ip, local_rank, host, self._random.getrandbits(64)))
        self.communicators: list[list[int]] = []

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            if member.popen.poll() is None:
                member.popen.send_signal(signal.SIGCONT)
                member.popen.kill()
            member.popen.wait()
            for stream in (member.popen.stdin, member.popen.stdout):
                if stream is not None:
                    stream.close()

    def begin(self) -> int:
        """Make the communicator of all ranks, and with it the RAS network."""
        number = self._new(range(len(self.members)))
        for rank, member in enumerate(self.members):
            answer = member.call(do="start", ip=member.ip, communicator=self._spec(number, rank))
            member.address = answer["address"]
        peers = [
            {
                "address": one.address,
                "pid": one.popen.pid,
                "cuda": one.gpu,
                "nvml": one.gpu,
                "host": one.host,
                "process": one.process,
            }
            for one in self.members
        ]
        for member in self.members:
            member.call(do="meet", peers=peers)
        return number

    def communicator(self, ranks: Iterable[int]) -> int:
        """Make a further communicator of some ranks; gives its number."""
        number = self._new(ranks)
        for rank, member in enumerate(self.communicators[number]):
            self.members[member].call(do="join", communicator=self._spec(number, rank))
        return number

    def _new(self, ranks: Iterable[int]) -> int:
        self.communicators.append(list(ranks))
        self._hash = self._random.getrandbits(64)
        return len(self.communicators) - 1

    def _spec(self, number: int, rank: int) -> dict[str, Any]:
        members = [self.members[index] for index in self.communicators[number]]
        return {
            "id": str(number),
            "hash": self._hash,
            "rank": rank,
            "cuda": members[rank].gpu,
            "nvml": members[rank].gpu,
            "peers": [(one.host, one.process, one.gpu, one.gpu) for one in members],
        }

    def each(self, number: int, command: str, **arguments: Any) -> None:
        """Give a command to all ranks of a communicator."""
        for index in self.communicators[number]:
            self.members[index].call(do=command, communicator=str(number), **arguments)

    def one(self, number: int, rank: int, command: str, **arguments: Any) -> None:
        self.members[self.communicators[number][rank]].call(do=command, communicator=str(number), **arguments)

    def pids(self) -> list[int]:
        return [member.popen.pid for member in self.members]


class Clock:
    """Time that can be moved on: an hour of watching must not take an hour."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds


class Exporter:
    """The exporter's NCCL part as it runs on a node, on a clock of ours."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock()
        self.config = NcclConfig(**({"quiet_start": Duration(0)} | settings))
        self.procfs = ProcFS()
        self.finder = RankFinder(self.procfs, node="here")
        self.watcher = NcclWatcher(self.config, self.procfs, self.scan, now=self.clock)
        self._collector = NcclCollector(lambda: self.watcher.latest)

    def scan(self) -> Scan:
        found = self.finder.scan()
        ours = tuple(one for one in found.processes if one.job_id.startswith(NAME))
        return replace(found, processes=ours)

    def poll(self, job: Job) -> dict[str, float]:
        """Let a minute pass, ask, and give the series of one job, without its job_id."""
        self.clock.advance(60)
        self.watcher.poll()
        return series(self._collector.collect(), job.job_id)

    def ask(self, job: Job) -> Any:
        """What a capture does."""
        processes = [one for one in self.scan().processes if one.job_id == job.job_id]
        return ask_job(self.procfs, processes, self.config)


def series(families: Iterable[Metric], job_id: str) -> dict[str, float]:
    """Samples as `name{label=value,…}`, skips alone where they are 1."""
    found: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            if sample.labels.get("job_id") != job_id or (
                sample.name == "nccl_ras_skipped" and not sample.value
            ):
                continue
            labels = ",".join(f"{key}={value}" for key, value in sample.labels.items() if key != "job_id")
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Lab:
    """Runs the situations of one NCCL version."""

    def __init__(self, libraries: Path, version: str) -> None:
        self.library = libraries / version / "libnccl.so.2"
        self.version = version
        self.unsafe = (2, 26, 0) <= version_number(version) < (2, 28, 7)
        self.failed = 0

    def job(self, nodes: dict[str, int], port: int, **more: Any) -> Job:
        return Job(self.library, self.version, nodes, port, **more)

    def expect(self, situation: str, holds: bool, seen: object) -> None:
        self.failed += not holds
        print(f"{self.version}  {'ok  ' if holds else 'FAIL'}  {situation}: {seen}", flush=True)

    def exporter(self, **settings: Any) -> Exporter:
        """An exporter that insists where the version is an unsafe one."""
        return Exporter(**({"ask_unsafe_versions": self.unsafe} | settings))

    def gates(self) -> None:
        """Nothing is asked where it could hurt or cannot be answered."""
        port = free_port()
        with self.job({"127.0.0.1": 2}, port) as job:
            exporter = self.exporter()
            wait_until(lambda: len(exporter.scan().processes) == 2)
            wait_until(lambda: "nccl_ras_skipped{reason=not_listening}" in exporter.poll(job))
            self.expect("no communicator yet", True, "not_listening")
            job.begin()
            seen = self.exporter(quiet_start=Duration(600)).poll(job)
            self.expect("first minutes", "nccl_ras_skipped{reason=quiet_start}" in seen, seen)
            seen = Exporter().poll(job)
            wanted = "nccl_ras_skipped{reason=unsafe_version}" if self.unsafe else "nccl_ras_up"
            self.expect("version gate", wanted in seen, sorted(seen))
            seen = self.exporter(enabled=False).poll(job)
            self.expect("switched off", "nccl_ras_skipped{reason=switched_off}" in seen, seen)
        with self.job({"127.0.0.1": 1}, free_port(), environment={"NCCL_RAS_ENABLE": "0"}) as job:
            exporter = self.exporter()
            wait_until(lambda: bool(exporter.scan().processes))
            seen = exporter.poll(job)
            self.expect("NCCL_RAS_ENABLE=0", "nccl_ras_skipped{reason=disabled_by_job}" in seen, seen)

    def life(self, slow: bool) -> None:
        """A job of two nodes with four processes each: healthy, busy, lagging, frozen, killed."""
        port = free_port()
        with self.job({"127.0.0.1": 4, "127.0.0.2": 4}, port) as job:
            world = job.begin()
            pair = job.communicator([0, 4])
            job.communicator(range(4))
            exporter = self.exporter()
            job.each(world, "launch", counts=[1, 0, 0, 0, 100])
            seen = exporter.poll(job)
            totals = [seen.get(f"nccl_ras_{name}") for name in ("up", "nodes", "processes", "gpus")]
            self.expect("healthy", totals == [1, 2, 8, 8], seen)

            job.each(world, "run", interval=0.02)
            stalls = [stalled(exporter.poll(job)) for _ in range(5)]
            job.each(world, "halt")
            self.expect("busy: mismatches that move", max(stalls) == 0, stalls)
            time.sleep(0.1)

            job.each(world, "launch", counts=[1, 0, 0, 0, 500])
            job.one(world, 3, "launch", counts=[1, 0, 0, 0, 497])
            polls = [exporter.poll(job) for _ in range(3)]
            lag = [
                value
                for name, value in polls[-1].items()
                if name.startswith("nccl_ras_communicator_launch_lag")
            ]
            stalls = [stalled(one) for one in polls]
            good = lag == [3] and stalls[0] == 0 and 100 < stalls[2] < 140
            self.expect("rank 3 is 3 behind and stands still", good, (lag, stalls))
            found = self._facts(exporter, job)
            behind = {fact.rank for fact in found if fact.kind == "behind"}
            self.expect("evidence of a capture", behind == {3}, [fact.text for fact in found])

            job.one(pair, 1, "state", error=2)
            seen = exporter.poll(job)
            errors = [name for name in seen if name.startswith("nccl_ras_communicators{") and "ERROR" in name]
            self.expect("a rank in error", len(errors) == 1, errors)
            job.one(pair, 1, "state", error=0)

            frozen = job.members[1]
            frozen.popen.send_signal(signal.SIGSTOP)
            polls = [exporter.poll(job) for _ in range(4)]
            missing = [one.get("nccl_ras_processes_missing") for one in polls]
            took = [round(one["nccl_ras_scrape_duration_seconds"], 2) for one in polls]
            good = missing == [1] * 4 and all(one["nccl_ras_up"] == 1 for one in polls)
            self.expect("one process frozen", good, f"missing {missing}, seconds {took}")
            frozen.popen.send_signal(signal.SIGCONT)
            deadline = time.monotonic() + 90
            while time.monotonic() < deadline and exporter.poll(job).get("nccl_ras_processes_missing"):
                time.sleep(1)

            victim = job.members[7]
            victim.popen.kill()
            victim.popen.wait()
            seen = exporter.poll(job)
            tables = [name for name in seen if name.startswith("nccl_ras_communicator")]
            corrupt = "nccl_ras_scrape_errors_total{reason=corrupt}" in seen
            good = seen.get("nccl_ras_processes_missing") == 1 and (
                not tables if self.unsafe else bool(tables)
            )
            self.expect("one process killed", good, f"corrupt {corrupt}, {seen}")
            gone = {fact.rank for fact in self._facts(exporter, job) if fact.kind == "missing"}
            self.expect("evidence names it", 7 in gone, gone)
            out, err = io.StringIO(), io.StringIO()
            status = check.run(f"127.0.0.1:{port}", out=out, err=err)
            self.expect("check-nccl HOST:PORT", status == 0, json.loads(out.getvalue())["missing_processes"])
            if slow:
                deadline = time.monotonic() + 120
                while time.monotonic() < deadline and not seen.get("nccl_ras_processes_dead"):
                    time.sleep(5)
                    seen = exporter.poll(job)
                self.expect("considered dead", seen.get("nccl_ras_processes_dead") == 1, seen)

    def _facts(self, exporter: Exporter, job: Job) -> Any:
        asked = exporter.ask(job)
        known = [
            KnownProcess("here", rank, (pid,), ("127.0.0.1", "127.0.0.2"))
            for rank, pid in enumerate(job.pids())
        ]
        return facts(asked.answer.report, known, world_size=len(job.members)) if asked.answer else ()

    def shared_port(self) -> None:
        """Two jobs on one port: each answer belongs to its job."""
        port = free_port()
        with (
            self.job({"127.0.0.1": 4}, port, name="four", seed=2) as four,
            self.job({"127.0.0.1": 2}, port, name="two", seed=3) as two,
        ):
            four.begin()
            two.begin()
            exporter = self.exporter()
            seen: set[tuple[float | None, float | None]] = set()
            for _ in range(20):
                first = exporter.poll(four)
                exporter.clock.advance(-60)
                second = exporter.poll(two)
                seen.add((first.get("nccl_ras_processes"), second.get("nccl_ras_processes")))
            self.expect("two jobs on one port, 20 times", seen == {(4, 2)}, seen)

    def namespace(self) -> None:
        """A job in a network namespace of its own, as in a container without host networking."""
        up = (
            "import fcntl,os,socket,struct,sys;s=socket.socket();"
            "fcntl.ioctl(s,0x8914,struct.pack('16sh14x',b'lo',1));s.close();os.execv(sys.argv[1],sys.argv[1:])"
        )
        prefix = ("unshare", "--net", sys.executable, "-c", up)
        with self.job({"127.0.0.1": 1}, 28028, prefix=prefix) as job:
            job.begin()
            seen = self.exporter().poll(job)
            self.expect("in another network namespace", seen.get("nccl_ras_up") == 1, seen)

    def ipv6(self) -> None:
        port = free_port()
        with self.job({"::1": 2}, port) as job:
            job.begin()
            seen = self.exporter().poll(job)
            self.expect("IPv6", seen.get("nccl_ras_up") == 1, seen)


def stalled(seen: dict[str, float]) -> float:
    """The longest stall that the series tell of."""
    return max((v for k, v in seen.items() if k.startswith("nccl_ras_communicator_stalled")), default=0.0)


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Raises RuntimeError where it does not come true."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError("did not come true")
        time.sleep(0.05)


def fetch(version: str, libraries: Path) -> None:
    """Put the library where it is looked for. Raises CalledProcessError where pip cannot get it."""
    package = "nvidia-nccl-cu13" if version_number(version) >= (2, 31) else "nvidia-nccl-cu12"
    folder = libraries / version
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
        subprocess.run([*command, f"{package}=={version}"], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (one for one in archive.namelist() if one.endswith("/libnccl.so.2"))
            partial = Path(archive.extract(name, scratch))
        partial.replace(folder / "libnccl.so.2")


def version_number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--libraries", type=Path, default=Path(".run/nccl"))
    parser.add_argument("--version", action="append", choices=json.loads(LAYOUTS.read_text()))
    parser.add_argument("--slow", action="store_true")
    arguments = parser.parse_args()
    failed = 0
    for version in arguments.version or ["2.24.3", "2.28.9", "2.30.7"]:
        if not (arguments.libraries / version / "libnccl.so.2").exists():
            fetch(version, arguments.libraries)
        lab = Lab(arguments.libraries, version)
        lab.gates()
        lab.life(arguments.slow)
        lab.shared_port()
        lab.ipv6()
        lab.namespace()
        failed += lab.failed
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
