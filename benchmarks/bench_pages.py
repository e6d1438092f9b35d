"""Time and size of every page at 64, 1,024 and 10,240 ranks, on loopback.

    python benchmarks/bench_pages.py [--ranks 64 1024 10240] [--rounds 3] [--json]

Each page is asked for twice: `cold` by a service that has just started and has nothing of the capture in
memory, `warm` again. `painted` is the browser's first contentful paint of the cold page, `drawn` the time
until its flame graph is there (both need chromium); medians of several rounds, each with a service of its own.
What the pages promise is 1 s to the first paint and 2 MB; the exit status is 1 where that is missed.

Peers in the same run: the capture's report.json sent as it is (`x json` says what the cold page costs beside
it), and the paint of a page of one word in the same tab (`one word`): no page can be sooner.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import results
from benchmarks.imaginary import imaginary_job
from benchmarks.stored import serve

PAGES = {
    "verdict": "",
    "report": "/report",
    "stacks": "/stacks",
    "nccl": "/nccl",
    "flame graph": "/flamegraph",
    "graph's data": "/flamegraph/data.json",
    "compare": "/compare/{id}",
}
MOST_SECONDS, MOST_BYTES = 1.0, 2_000_000


@dataclass(frozen=True, slots=True)
class Seen:
    """What a browser measured of a page, in seconds from the navigation; None where there is no graph."""

    painted: float
    drawn: float | None


Look = Callable[[str], Seen | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One page of one capture; seconds and bytes."""

    ranks: int
    page: str
    cold: float
    warm: float
    json_ratio: float  # cold, to the time of report.json
    size: int
    painted: float | None
    drawn: float | None
    one_word: float | None


def measure(ranks: int, look: Look, rounds: int) -> Iterator[Row]:
    """All pages of a job of so many ranks, each from services of its own."""
    with tempfile.TemporaryDirectory() as folder:
        with serve(Path(folder)) as site:
            capture_id = site.put(imaginary_job(ranks, stuck=ranks // 2))
        for page, path in PAGES.items():
            address = f"/captures/{capture_id}{path.format(id=capture_id)}"
            times: list[tuple[float, float, float]] = []
            seen: list[tuple[Seen, Seen]] = []
            for _ in range(rounds):
                with serve(Path(folder)) as site:
                    _get(f"{site.url}/")  # the service is up, its templates are read
                    peer, _ = _get(f"{site.url}/api/v1/captures/{capture_id}/report")
                    cold, size = _get(site.url + address)
                    warm, _ = _get(site.url + address)
                    times.append((cold, warm, cold / peer))
                if page == "graph's data":
                    continue
                with serve(Path(folder)) as site:
                    _get(f"{site.url}/")
                    word, whole = look(f"{site.url}/-/healthy"), look(site.url + address)
                    if word and whole:
                        seen.append((whole, word))
            cold, warm, ratio = (statistics.median(each) for each in zip(*times, strict=True))
            yield Row(
                ranks,
                page,
                cold,
                warm,
                ratio,
                size,
                painted=_median(one.painted for one, _ in seen),
                drawn=_median(one.drawn for one, _ in seen if one.drawn is not None),
                one_word=_median(one.painted for _, one in seen),
            )


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None


def _get(url: str) -> tuple[float, int]:
    started = time.perf_counter()
    with urllib.request.urlopen(url, timeout=120) as answer:
        size = len(answer.read())
    return time.perf_counter() - started, size


@contextlib.contextmanager
def browser() -> Iterator[Look]:
    """Looks at one page after another in one tab, as a reader does; sees nothing without chromium."""
    executable = shutil.which("chromium")
    if executable is None:
        yield lambda url: None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = chromium.new_page()

        def look(url: str) -> Seen:
            page.goto(url)
            painted = page.evaluate(
                "() => new Promise(done => new PerformanceObserver(list => {"
                "  const entry = list.getEntriesByName('first-contentful-paint')[0];"
                "  if (entry) done(entry.startTime / 1000);"
                "}).observe({ type: 'paint', buffered: true }))"
            )
            drawn = page.evaluate(
                "() => new Promise(done => {"
                "  const host = document.getElementById('flamegraph');"
                "  if (!host) return done(null);"
                "  const mark = () => performance.getEntriesByName('flamegraph drawn')[0];"
                "  const wait = () => mark() ? done(mark().startTime / 1000) : setTimeout(wait, 5);"
                "  wait();"
                "})"
            )
            return Seen(float(painted), None if drawn is None else float(drawn))

        yield look
        chromium.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Time and size of every page.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 1024, 10240])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with browser() as look:
        rows = [row for ranks in options.ranks for row in measure(ranks, look, options.rounds)]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        _print(rows)
    for one in rows:
        results.row(
            f"{one.page}, {one.ranks} ranks",
            f"{one.cold:.2f} s the first time, {one.warm:.3f} s again, {one.size / 1000:.0f} kB"
            + ("" if one.painted is None else f"; painted after {one.painted:.2f} s"),
            bound=f"{MOST_SECONDS:g} s, {MOST_BYTES / 1e6:g} MB",
            good=one.size <= MOST_BYTES and (one.painted or 0) <= MOST_SECONDS,
        )
    missed = [row for row in rows if row.size > MOST_BYTES or (row.painted or 0) > MOST_SECONDS]
    for row in missed:
        print(
            f"{row.page} of {row.ranks} ranks misses {MOST_SECONDS:g} s or {MOST_BYTES} bytes",
            file=sys.stderr,
        )
    return 1 if missed else 0


def _print(rows: list[Row]) -> None:
    print(" ranks page          cold s  warm s  x json      kB  painted s  drawn s  one word s")
    for row in rows:
        painted, drawn, one_word = (
            "-" if value is None else f"{value:.2f}" for value in (row.painted, row.drawn, row.one_word)
        )
        print(
            f"{row.ranks:>6} {row.page:12} {row.cold:7.3f} {row.warm:7.3f} {row.json_ratio:7.1f}"
            f" {row.size / 1000:7.0f} {painted:>10} {drawn:>8} {one_word:>11}"
        )


if __name__ == "__main__":
    sys.exit(main())
