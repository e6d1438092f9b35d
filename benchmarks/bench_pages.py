"""Time and size of every page at 64, 1,024 and 10,240 ranks, on loopback.

    python benchmarks/bench_pages.py [--ranks 64 1024 10240] [--json]

Each page is asked for twice: `cold` by a service that has just started and has nothing of the capture in
memory, `warm` again. `painted` is the browser's first contentful paint of the cold page (needs chromium).
What the pages promise is 1 s to the first paint and 2 MB; the exit status is 1 where that is missed.

Peers in the same run: the capture's report.json sent as it is (`x json` says what the cold page costs beside
it), and the paint of a page of one word (`one word`), which is the browser's own share.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

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

Paint = Callable[[str], float | None]


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
    one_word: float | None


def measure(ranks: int, paint: Paint) -> Iterator[Row]:
    """All pages of a job of so many ranks, each from a service of its own start."""
    with tempfile.TemporaryDirectory() as folder:
        with serve(Path(folder)) as site:
            capture_id = site.put(imaginary_job(ranks, stuck=ranks // 2))
        for page, path in PAGES.items():
            address = f"/captures/{capture_id}{path.format(id=capture_id)}"
            with serve(Path(folder)) as site:
                _get(f"{site.url}/")  # the service is up, its templates are read
                peer, _ = _get(f"{site.url}/api/v1/captures/{capture_id}/report")
                cold, size = _get(site.url + address)
                warm, _ = _get(site.url + address)
            painted = one_word = None
            if page != "graph's data":
                with serve(Path(folder)) as site:
                    _get(f"{site.url}/")
                    one_word = paint(f"{site.url}/-/healthy")
                    painted = paint(site.url + address)
            yield Row(ranks, page, cold, warm, cold / peer, size, painted, one_word)


def _get(url: str) -> tuple[float, int]:
    started = time.perf_counter()
    with urllib.request.urlopen(url, timeout=120) as answer:
        size = len(answer.read())
    return time.perf_counter() - started, size


@contextlib.contextmanager
def browser() -> Iterator[Paint]:
    """Gives the seconds from a navigation to its first contentful paint; None without chromium."""
    executable = shutil.which("chromium")
    if executable is None:
        yield lambda url: None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])

        def paint(url: str) -> float:
            page = chromium.new_page()
            page.goto(url)
            seconds = page.evaluate(
                "() => new Promise(done => new PerformanceObserver(list => {"
                "  const entry = list.getEntriesByName('first-contentful-paint')[0];"
                "  if (entry) done(entry.startTime / 1000);"
                "}).observe({ type: 'paint', buffered: true }))"
            )
            page.close()
            return float(seconds)

        yield paint
        chromium.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Time and size of every page.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 1024, 10240])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    with browser() as paint:
        rows = [row for ranks in options.ranks for row in measure(ranks, paint)]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        _print(rows)
    missed = [row for row in rows if row.size > MOST_BYTES or (row.painted or 0) > MOST_SECONDS]
    for row in missed:
        print(
            f"{row.page} of {row.ranks} ranks misses {MOST_SECONDS:g} s or {MOST_BYTES} bytes",
            file=sys.stderr,
        )
    return 1 if missed else 0


def _print(rows: list[Row]) -> None:
    print(" ranks page          cold s  warm s  x json      kB  painted s  one word s")
    for row in rows:
        painted = "-" if row.painted is None else f"{row.painted:.2f}"
        one_word = "-" if row.one_word is None else f"{row.one_word:.2f}"
        print(
            f"{row.ranks:>6} {row.page:12} {row.cold:7.3f} {row.warm:7.3f} {row.json_ratio:7.1f}"
            f" {row.size / 1000:7.0f} {painted:>10} {one_word:>11}"
        )


if __name__ == "__main__":
    sys.exit(main())
