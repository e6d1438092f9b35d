"""Two hours of simulated jobs at 50 times the real rate through the real chain: no leak, no missed, no false alarm.

Exporter, snapshotter, Prometheus with the shipped rules and Alertmanager run as programs. Jobs of 4 ranks (processes
without torch) log an iteration each 0.05-0.2 s, are restarted from checkpoints, evaluate, save slowly, have their
logs rotated, and some hang. Limits are a fiftieth of the shipped ones where scraping once a second allows it. Every
hang must be paged once, captured once and diagnosed with the right culprit; no other job may be. Exporter and
snapshotter must not grow over the last three quarters: in resident memory, and in descriptors while no job runs (the
exporter keeps files of each process open), for which the jobs pause after the first quarter.

    python benchmarks/soak.py [--minutes 120] [--jobs 5] [--seed 1] [--write]

`--write` puts the summary into docs/operations.md. Exit status 1 on a miss. Everything it starts ends with it.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.soaking import judge
from benchmarks.soaking.jobs import Jobs, Truth
from benchmarks.soaking.judge import Sample, Seen
from benchmarks.watched import WatchedChain
from standalone import processes
from standalone.chain import ChainError, Settings, get_json

EXPORTER = {
    "limits": {"floor": "6s", "ceiling": "36s", "startup_grace": "36s", "pause_grace": "15s"},
    "nccl": {"enabled": False},
}
SAMPLE_SECONDS = 10.0
REST_SECONDS = 120.0
RESTING_LOOKS = 15
ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "operations.md"
MARKS = ("<!-- soak -->\n", "<!-- end of soak -->")
PROGRAMS = ("exporter", "snapshotter", "prometheus", "alertmanager")
JUDGED = ("exporter", "snapshotter")


class Soak:
    def __init__(self, chain: WatchedChain, jobs: Jobs, seen: Seen) -> None:
        self.chain, self.jobs, self.seen = chain, jobs, seen
        self.samples: dict[str, list[Sample]] = {name: [] for name in PROGRAMS}
        self.resting: list[dict[str, int]] = []  # descriptors of each program while no job ran
        self.started = time.time()
        self.clock = time.monotonic()

    def run(self, seconds: float) -> None:
        """Until so many seconds after the start, and until the jobs of that time have ended."""
        next_sample = next_line = time.monotonic() - self.clock
        while True:
            passed = time.monotonic() - self.clock
            self.chain.check()
            self.jobs.step(more=passed < seconds)
            if passed >= seconds and not self.jobs.alive:
                break
            self.look()
            if passed >= next_sample:
                next_sample = passed + SAMPLE_SECONDS
                self.sample()
            if passed >= next_line:
                next_line = passed + 60
                self.line(passed)
            time.sleep(1.0)
        # What was told last is told to the pager within the group's interval.
        until = time.monotonic() + 5
        while time.monotonic() < until:
            self.look()
            time.sleep(1.0)

    def rest(self) -> None:
        """Count descriptors once the exporter has seen the last process go: the fewest, as some are open briefly."""
        until = time.monotonic() + REST_SECONDS
        while self.processes_shown():
            if time.monotonic() > until:
                raise ChainError(
                    f"the exporter still shows processes {REST_SECONDS:.0f} s after the last ended"
                )
            time.sleep(1.0)
        found = []
        for _ in range(RESTING_LOOKS):
            time.sleep(1.0)
            found.append({name: _descriptors(pid) for name, pid in self.chain.pids().items()})
        self.resting.append({name: min(one[name] for one in found) for name in PROGRAMS})

    def processes_shown(self) -> bool:
        try:
            return bool(self.chain.query("training_process_info"))
        except OSError as error:
            print(f"       did not answer: {error}", flush=True)
            return True

    def look(self) -> None:
        try:
            for one in self.chain.query('ALERTS{alertstate="firing"}'):
                key = (one["metric"]["alertname"], one["metric"].get("job_id", ""))
                if key not in self.seen.firing:
                    self.seen.firing[key] = time.time()
            for one in get_json(f"{self.chain.snapshotter_url}/api/v1/captures?limit=20")["captures"]:
                self.seen.captures[one["capture_id"]] = one
        except OSError as error:
            print(f"       did not answer: {error}", flush=True)

    def sample(self) -> None:
        for name, pid in self.chain.pids().items():
            rss = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
            self.samples[name].append(Sample(time.time(), rss, _descriptors(pid)))

    def cpu(self) -> float:
        """Seconds of CPU that all of this has used: programs with their children, ranks, and the soak."""
        ticks = sum(
            sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
            for pid in self.chain.pids().values()
        )
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return ticks / os.sysconf("SC_CLK_TCK") + sum(one.ru_utime + one.ru_stime for one in used)

    def line(self, passed: float) -> None:
        hangs = [one for one in self.jobs.truths if one.hung_at is not None]
        state = "  ".join(
            f"{name} {self.samples[name][-1].rss / (1 << 20):.0f} MiB {self.samples[name][-1].descriptors} fds"
            for name in JUDGED
        )
        print(
            f"{passed / 60:5.0f} min  jobs {len(self.jobs.truths)}  runs {sum(t.runs for t in self.jobs.truths)}  "
            f"hangs {len(hangs)}  pages {sum(name == judge.PAGE for name, _, _ in self.seen.pager.told)}  "
            f"captures {len(self.seen.captures)}  {state}  CPU {self.cpu() / max(passed, 1):.0%}",
            flush=True,
        )
        for fault in judge.faults([t for t in self.jobs.truths if t.ended_at], self.seen):
            print(f"       {fault}", flush=True)

    def summary(self) -> list[tuple[str, str]]:
        truths, seen = self.jobs.truths, self.seen
        passed = time.time() - self.started
        hangs = [one for one in truths if one.hang_ended_at is not None]
        healthy = [one.plan.job_id for one in truths if one.hung_at is None]
        wrong = sum(bool(seen.paged(job_id) or seen.captured(job_id)) for job_id in healthy)
        rows = [
            ("time", f"{passed / 60:.0f} minutes"),
            ("jobs, runs of them", f"{len(truths)}, {sum(one.runs for one in truths)}"),
            ("restarts from a checkpoint", f"{self.jobs.restarts}"),
            ("rotations of logs", f"{self.jobs.rotations}"),
            ("evaluations and checkpoints", f"{self.jobs.pauses}"),
            ("hangs injected", f"{len(hangs)}"),
            ("paged once", f"{sum(len(seen.paged(one.plan.job_id)) == 1 for one in hangs)}"),
            ("captured once", f"{sum(len(seen.captured(one.plan.job_id)) == 1 for one in hangs)}"),
            (
                "diagnosed, with the right rank",
                f"{sum(any(not judge.misjudged(c, one) for c in seen.captured(one.plan.job_id)) for one in hangs)}",
            ),
            ("other jobs paged or captured", f"{wrong} of {len(healthy)}"),
        ]
        rows += self._delays(hangs)
        for name in PROGRAMS:
            found = judge.trend(self.samples[name])
            first, last = (resting[name] for resting in self.resting)
            rows.append(
                (
                    f"{name}: RSS, growth; descriptors at rest",
                    f"{found.rss / (1 << 20):.1f} MiB, {found.growth / (1 << 20):+.2f} MiB; {first}, then {last}",
                )
            )
        rows.append(("CPU of everything", f"{self.cpu() / passed:.0%} of a core"))
        others = sorted({name for name, _ in seen.firing} - {judge.PAGE, f"{judge.PAGE}Diagnosed"})
        rows.append(("other alerts that fired", ", ".join(others) or "none"))
        return rows

    def _delays(self, hangs: Sequence[Truth]) -> list[tuple[str, str]]:
        rows = []
        kinds = {
            "last iteration to page": [
                at - one.hung_at for one in hangs if one.hung_at for at in self.seen.paged(one.plan.job_id)
            ],
            "last iteration to stored capture": [
                c["finished_at"] - one.hung_at
                for one in hangs
                if one.hung_at
                for c in self.seen.captured(one.plan.job_id)
                if c["finished_at"]
            ],
        }
        for name, delays in kinds.items():
            if delays:
                rows.append((name, f"median {statistics.median(delays):.1f} s, longest {max(delays):.1f} s"))
        return rows

    def verdict(self) -> int:
        found = judge.faults(self.jobs.truths, self.seen)
        for name in JUDGED:
            samples = self.samples[name]
            if samples[-1].at - samples[0].at < judge.LONG_ENOUGH:
                print(f"{name}: too short to tell whether memory is flat")
            elif not judge.trend(samples).flat:
                found.append(f"{name} grows: {judge.trend(samples)}")
            first, last = (resting[name] for resting in self.resting)
            if last > first + judge.DESCRIPTOR_BOUND:
                found.append(f"{name} keeps descriptors: {first} at rest before, {last} after")
        for one in found:
            print(f"MISS {one}")
        print("MISS" if found else "ok")
        return 1 if found else 0


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def write(rows: Sequence[tuple[str, str]]) -> None:
    """Put the summary into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    table = "".join(f"| {label} | {value} |\n" for label, value in rows)
    PAGE.write_text(f"{before}{MARKS[0]}| | |\n|---|---|\n{table}{MARKS[1]}{after}", encoding="utf-8")


def alone() -> None:
    """As root, go on in a process namespace of its own, where no other job of this machine is seen."""
    if os.geteuid() == 0 and os.getpid() != 1:
        command = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child", sys.executable, *sys.argv]
        os.execvp(command[0], command)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=120.0, help="(%(default)s)")
    parser.add_argument("--jobs", type=int, default=5, help="side by side (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of what the jobs do (%(default)s)")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    alone()
    processes.adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    seen = Seen()
    with tempfile.TemporaryDirectory(prefix="hangscope-soak-") as name:
        folder = Path(name)
        seen.pager.start()
        settings = Settings(folder / "chain", "1s", EXPORTER, ports=(0, 0, 0, 0))
        chain = WatchedChain(settings, seen.pager, "soak-")
        jobs = Jobs(folder / "jobs", random.Random(options.seed), options.jobs, seen.complete)
        try:
            chain.start()
            soak = Soak(chain, jobs, seen)
            soak.run((1 - judge.WINDOW) * options.minutes * 60)
            soak.rest()
            soak.run(options.minutes * 60)
            soak.rest()
            rows = soak.summary()
            for label, value in rows:
                print(f"{label:<48}{value}")
            if options.write:
                write(rows)
            return soak.verdict()
        except (ChainError, KeyboardInterrupt) as error:
            print(f"ended: {error!r}", file=sys.stderr)
            return 1
        finally:
            jobs.end()
            chain.stop()
            seen.pager.stop()


if __name__ == "__main__":
    raise SystemExit(main())
