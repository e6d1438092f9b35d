"""Each part of the chain is taken away while a job hangs, and brought back: what was lost, how long it took.

Real exporter, agent, snapshotter, Prometheus and Alertmanager; the snapshotter with PostgreSQL, then with Redis as its
queue, then with all it has on one small disk. The hang must be paged once and captured once, and the bundle of an
earlier capture must be readable afterwards. Recovery is the time from the moment
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
from tests.redisserver import Server as Redis

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 180.0  # seconds until a hang must be paged and stored
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


Say = Callable[[str], None]
Choose = Callable[[OutageChain], Sequence[Outage]]


def run(folder: Path, say: Say = lambda text: None) -> list[Row]:
    """Each program, PostgreSQL and the disk of the bundles. Raises ChainError, AssertionError, TimeoutError."""
    with _folder() as database_folder, small_disk(folder) as disk:
        database = Server(database_folder)
        storage = {"index": database.database(), "bundles": str(disk / "bundles")}
        return _chain(
            folder, say, lambda chain: _outages(chain, database, disk), storage, ends=[database.stop]
        )


def run_redis(folder: Path, say: Say = lambda text: None) -> list[Row]:
    """Redis as the queue; it forgets all when it is killed. Raises what `run` does."""
    with _folder() as database_folder, _folder() as redis_folder:
        database, redis = Server(database_folder), Redis(redis_folder)
        bundles = str(folder / "bundles")
        storage = {"index": database.database(), "queue": redis.url, "bundles": bundles}
        ends = [database.stop, redis.stop]
        return _chain(folder, say, lambda chain: _without_redis(chain, redis), storage, ends=ends)


def run_one_disk(folder: Path, say: Say = lambda text: None) -> list[Row]:
    """All that the snapshotter has, SQLite's files too, on a disk that is full. Raises what `run` does."""
    with small_disk(folder) as disk:
        return _chain(folder, say, lambda chain: _full_disk(chain, disk), {}, data=disk / "data")


@contextmanager
def _folder() -> Iterator[Path]:
    """With a short name, as for sockets."""
    with tempfile.TemporaryDirectory(prefix="hangscope-", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _chain(
    folder: Path,
    say: Say,
    choose: Choose,
    storage: dict[str, str],
    *,
    data: Path | None = None,
    ends: Sequence[Callable[[], None]] = (),
) -> list[Row]:
    """All outages of one chain, one after another. `data`: the snapshotter's folder; `ends` end what it stands on."""
    with ExitStack() as stack:
        pager = Pager()
        pager.start()
        stack.callback(pager.stop)
        chain = OutageChain(
            Settings(
                folder / "chain",
                "1s",
                exporter={
                    "node_name": NODE,
                    "limits": {"hang_limit": "4s", "startup_grace": "30s"},
                    "nccl": {"enabled": False},
                },
                snapshotter={"capture": {"sample_interval": "1s"}, "storage": storage},
                ports=(0, 0, 0, 0),
            ),
            pager,
            data,
        )
        stack.callback(chain.stop)
        for end in ends:  # before the chain ends whatever runs below us
            stack.callback(end)
        chain.start(patience=PATIENCE)
        return _all(chain, pager, choose(chain), folder / "jobs", say)


def _outages(chain: OutageChain, database: Server, disk: Path) -> Sequence[Outage]:
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

    def capturing(job_id: str) -> bool:
        return any(one["state"] == "running" for one in chain.captures(job_id))

    return (
        Outage("exporter", lambda: without("exporter"), away_for(6)),
        Outage("Prometheus", lambda: without("prometheus"), away_for(8)),
        Outage("Alertmanager", lambda: without("alertmanager"), away_for(4, chain.fires)),
        Outage("snapshotter", lambda: without("snapshotter"), away_for(4, chain.fires)),
        Outage("agent", lambda: without("agent"), away_for(3, capturing)),
        Outage("database (PostgreSQL: index and queue)", without_database, away_for(4, chain.fires)),
        Outage("disk (full, holds the bundles)", lambda: full(disk), away_for(4, chain.fires)),
    )


def _without_redis(chain: OutageChain, redis: Redis) -> Sequence[Outage]:
    @contextmanager
    def without_redis() -> Iterator[None]:
        redis.stop()
        yield
        redis.start()

    return (Outage("queue (Redis)", without_redis, away_for(4, chain.fires)),)


def _full_disk(chain: OutageChain, disk: Path) -> Sequence[Outage]:
    name = "disk (full, holds SQLite's index and queue, and the bundles)"
    return (Outage(name, lambda: full(disk), away_for(4, chain.fires)),)


def away_for(seconds: float, begin: Callable[[str], bool] = lambda job_id: True) -> Callable[[str], bool]:
    """True `seconds` after `begin` was true for the first time."""
    since: dict[str, float] = {}

    def over(job_id: str) -> bool:
        if job_id not in since and begin(job_id):
            since[job_id] = time.monotonic()
        return job_id in since and time.monotonic() - since[job_id] >= seconds

    return over


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Within it nothing more can be written there."""
    filler = disk / "filler"
    with filler.open("wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
            file.flush()
    yield
    filler.unlink()


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
    with urllib.request.urlopen(f"{chain.snapshotter_url}/captures/{capture_id}", timeout=30) as page:
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
    rows = []
    for one in (run, run_redis, run_one_disk):
        with tempfile.TemporaryDirectory(prefix="hangscope-outages-") as folder:
            rows += one(Path(folder), lambda text: print(text, file=sys.stderr, flush=True))
    print(table(rows), end="")
    if options.write:
        write(rows)
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
