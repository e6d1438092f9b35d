"""Each part of the chain is taken away while a job hangs, and brought back: what was lost, how long it took.

Real exporter, agent, snapshotter with PostgreSQL, Prometheus and Alertmanager. The hang must be paged once and
captured once, and the bundle of an earlier capture must be readable afterwards. Recovery is the time from the moment
the part is back until the hang is both paged and stored. Programs are killed, not stopped.

    python benchmarks/outages.py [--write]

`--write` puts the table into docs/operations.md. Root is needed for the full disk, a small tmpfs. Exit status 1
where something was lost.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.outagechain import NODE, PREFIX, Job, OutageChain, small_disk
from benchmarks.watched import Pager
from standalone import processes
from standalone.chain import Chain, Settings, get_json
from tests.postgresql import Server

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 90.0  # seconds until a hang must be paged and stored
PAGE = ROOT / "docs" / "operations.md"
MARKS = ("<!-- outages -->\n", "<!-- end of outages -->")


@dataclass(frozen=True, slots=True)
class Row:
    """One outage. Times in seconds; `readable`: the earlier bundle, afterwards."""

    taken_away: str
    away: float
    paged: int
    captured: int
    readable: bool
    recovery: float
    outcome: str  # of the capture

    @property
    def lost(self) -> str:
        losses = [
            *(["the page"] if self.paged == 0 else []),
            *(["the capture"] if self.captured == 0 else []),
            *(["processes of the capture"] if self.captured and self.outcome != "complete" else []),
            *(["the earlier bundle"] if not self.readable else []),
        ]
        return ", ".join(losses) or "nothing"

    @property
    def good(self) -> bool:
        return self.lost == "nothing" and (self.paged, self.captured) == (1, 1)


@dataclass(frozen=True, slots=True)
class Outage:
    """`away` is a context without the part; `until` says when it has been away for long enough."""

    name: str
    away: Callable[[], contextlib.AbstractContextManager[None]]
    until: Callable[[str], bool]


def run(folder: Path, say: Callable[[str], None] = lambda text: None) -> list[Row]:
    """All outages, one after another. Raises ChainError, AssertionError, TimeoutError."""
    with ExitStack() as stack:
        pager = Pager()
        pager.start()
        stack.callback(pager.stop)
        database_folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="hangscope-pg-", dir="/tmp", ignore_cleanup_errors=True)
        )
        database = Server(Path(database_folder))
        disk = stack.enter_context(small_disk(folder))
        chain = OutageChain(
            Settings(
                folder / "chain",
                "1s",
                exporter={
                    "node_name": NODE,
                    "limits": {"hang_limit": "4s", "startup_grace": "30s"},
                    "nccl": {"enabled": False},
                },
                snapshotter={
                    "capture": {"sample_interval": "1s"},
                    "storage": {"index": database.database(), "bundles": str(disk / "bundles")},
                },
                ports=(0, 0, 0, 0),
            ),
            pager,
        )
        stack.callback(chain.stop)
        stack.callback(database.stop)  # before the chain ends whatever runs below us
        chain.start()
        return _all(chain, pager, _outages(chain, database, disk), folder / "jobs", say)


def _outages(chain: OutageChain, database: Server, disk: Path) -> Sequence[Outage]:
    def firing(job_id: str) -> bool:
        return bool(chain.query(f'ALERTS{{alertname="TrainingHang",alertstate="firing",job_id="{job_id}"}}'))

    def away_for(seconds: float, begin: Callable[[str], bool] = lambda job_id: True) -> Callable[[str], bool]:
        """True `seconds` after `begin` was true for the first time."""
        since: dict[str, float] = {}

        def over(job_id: str) -> bool:
            if job_id not in since and begin(job_id):
                since[job_id] = time.monotonic()
            return job_id in since and time.monotonic() - since[job_id] >= seconds

        return over

    @contextmanager
    def without(name: str) -> Iterator[None]:
        chain.take_away(name)
        yield
        chain.bring_back(name)

    @contextmanager
    def without_database() -> Iterator[None]:
        database.stop()
        yield
        database.start()

    @contextmanager
    def full_disk() -> Iterator[None]:
        filler = disk / "filler"
        with filler.open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        yield
        filler.unlink()

    def capturing(job_id: str) -> bool:
        return any(one["state"] == "running" for one in chain.captures(job_id))

    return (
        Outage("exporter", lambda: without("exporter"), away_for(6)),
        Outage("Prometheus", lambda: without("prometheus"), away_for(8)),
        Outage("Alertmanager", lambda: without("alertmanager"), away_for(4, firing)),
        Outage("snapshotter", lambda: without("snapshotter"), away_for(4, firing)),
        Outage("agent", lambda: without("agent"), away_for(3, capturing)),
        Outage("database (PostgreSQL: index and queue)", without_database, away_for(4, firing)),
        Outage("disk (full, holds the bundles)", full_disk, away_for(4, firing)),
    )


def _all(
    chain: OutageChain, pager: Pager, outages: Sequence[Outage], folder: Path, say: Callable[[str], None]
) -> list[Row]:
    jobs = [Job(f"{PREFIX}{number}", folder) for number in range(len(outages) + 1)]
    try:
        first, *rest = jobs
        for job in jobs:
            _wait(partial(_iterates, chain, job.job_id), f"{job.job_id} to be followed")
        first.hang()
        _wait(lambda: _stored(chain, first.job_id), "the earlier bundle")
        earlier = chain.captures(first.job_id)[0]["capture_id"]
        first.end()
        rows = []
        for outage, job in zip(outages, rest, strict=True):
            rows.append(_one(chain, pager, outage, job, earlier))
            say(
                f"{outage.name}: away {rows[-1].away:.1f} s, recovered after {rows[-1].recovery:.1f} s, "
                f"lost {rows[-1].lost}"
            )
        # What comes twice comes late.
        settled = time.monotonic() + 8
        _wait(lambda: time.monotonic() > settled, "")
        # Not so pages: an Alertmanager that was killed tells again of what still fires.
        return [
            replace(row, captured=len(chain.captures(job.job_id)), readable=_readable(chain, earlier))
            for row, job in zip(rows, rest, strict=True)
        ]
    finally:
        for job in jobs:
            job.end()


def _one(chain: OutageChain, pager: Pager, outage: Outage, job: Job, earlier: str) -> Row:
    job.hang()
    began = time.monotonic()
    with outage.away():
        _wait(lambda: outage.until(job.job_id), f"{outage.name} to be missed")
        away = time.monotonic() - began
    back = time.monotonic()
    _wait(
        lambda: bool(pager.times("TrainingHang", job.job_id)) and _stored(chain, job.job_id),
        f"recovery of {outage.name}",
    )
    return _row(chain, pager, outage.name, job.job_id, earlier, away, time.monotonic() - back)


def _row(
    chain: OutageChain, pager: Pager, name: str, job_id: str, earlier: str, away: float, recovery: float
) -> Row:
    captures = chain.captures(job_id)
    return Row(
        name,
        away,
        len(pager.times("TrainingHang", job_id)),
        len(captures),
        _readable(chain, earlier),
        recovery,
        str(captures[0]["outcome"]) if captures else "",
    )


def _iterates(chain: Chain, job_id: str) -> bool:
    return bool(chain.query(f'training_log_last_iteration{{job_id="{job_id}"}} > 5'))


def _stored(chain: OutageChain, job_id: str) -> bool:
    return any(one["state"] == "done" for one in chain.captures(job_id))


def _readable(chain: Chain, capture_id: str) -> bool:
    report = get_json(f"{chain.snapshotter_url}/api/v1/captures/{capture_id}/report")
    with urllib.request.urlopen(f"{chain.snapshotter_url}/captures/{capture_id}", timeout=10) as page:
        return bool(report["verdict"]["hung"]) and page.status == 200


def _wait(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError):
            if condition():
                return
        if time.monotonic() > until:
            raise TimeoutError(f"waited {PATIENCE:.0f} s for {what}")
        time.sleep(0.1)


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = [
        "| taken away | for | paged | captured | lost | paged and stored after it was back |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.taken_away} | {row.away:.0f} s | {_times(row.paged)} | {_times(row.captured)} | {row.lost} "
        f"| {row.recovery:.1f} s |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def _times(count: int) -> str:
    return {1: "once"}.get(count, f"{count} times")


def write(rows: Sequence[Row]) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    PAGE.write_text(before + MARKS[0] + table(rows) + MARKS[1] + after, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    processes.adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="hangscope-outages-") as folder:
        rows = run(Path(folder), lambda text: print(text, file=sys.stderr, flush=True))
    print(table(rows), end="")
    if options.write:
        write(rows)
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
