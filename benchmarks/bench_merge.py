"""Merge and verdict at scale, beside the stack merge of the `sysom-hang-analyzer` package, in one run.

    python benchmarks/bench_merge.py [--ranks 10240] [--threads 6] [--peer FOLDER] [--quick]

Each part runs in a process of its own and reports wall time, without imports, and peak memory, with that of
a process it starts. The peer merges the same stacks into one tree without a verdict; it reads files of its
own form, written beforehand.
`--peer` is a folder with the package in it; without it, pip fetches the package into a temporary one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.results import row

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "programs")]

PEER = "sysom-hang-analyzer==1.0.17"
REPEATS = 3
LEAST_RATIO = 2.0
MOST_MEGABYTES = 500
MOST_SECONDS_PREMERGED = 10.0
PREMERGED_NODES = 12_800  # of 8 ranks


def _dumps(folder: Path) -> list[Path]:
    return sorted(folder.glob("rank-*.json"))


def floor(folder: Path) -> Iterator[None]:
    """Only read and decode the files, with the faster of the two JSON readers at hand."""
    import msgspec

    decoder = msgspec.json.Decoder()
    yield
    for path in _dumps(folder):
        decoder.decode(path.read_bytes())


def ours(folder: Path) -> Iterator[None]:
    """Files to report.json, in memory: load, merge, verdict, encode."""
    from snapshotter import analyze

    yield
    analyze.run(folder, format="json", output=folder / "report.json")


def peer(folder: Path) -> Iterator[None]:
    """The peer's merge of its own files, its words and its missing flame graph script kept quiet."""
    from cluster.stack_processor import process_combined_stacks

    files = [str(path) for path in sorted((folder / "peer").glob("*.stackdata"))]
    os.environ["PATH"] = "/nonexistent"  # no flamegraph.pl: time the merge alone
    yield
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
        process_combined_stacks(files, out)


def premerged(folder: Path) -> Iterator[None]:
    """102,400 ranks from the encoded trees of 12,800 nodes that merged themselves: decode, merge, verdict."""
    import msgspec

    from snapshotter.stacks.digest import Digester
    from snapshotter.stacks.premerge import NodeTree, add_tree
    from snapshotter.stacks.report import analyse_digest, to_json

    decoder = msgspec.json.Decoder(NodeTree)
    yield
    digester = Digester()
    with (folder / "trees.jsonl").open("rb") as lines:
        for line in lines:
            add_tree(digester, decoder.decode(line))
    report = analyse_digest(digester.digest, job_id="large", at=0.0)
    encoded = msgspec.json.encode(to_json(report))
    print(f"{report.verdict.headline} ({len(encoded) / 1e6:.1f} MB of report)")


def _measured(parts: dict[str, tuple[Path, str]]) -> dict[str, tuple[float, float, str]]:
    """By part, best of some runs: seconds, peak megabytes, words. Parts take turns, to share disturbances."""
    best: dict[str, tuple[float, float, str]] = {}
    for part, (folder, path) in list(parts.items()) * REPEATS:
        command = [sys.executable, __file__, "--part", part, "--folder", str(folder)]
        environment = os.environ | {"PYTHONPATH": path}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{part} failed:\n{done.stderr}")
        *said, figures = done.stdout.strip().splitlines()
        seconds, megabytes = (float(number) for number in figures.split())
        if part not in best or seconds < best[part][0]:
            best[part] = (seconds, megabytes, " ".join(said))
    return best


def _alone(part: str, folder: Path) -> tuple[float, float, str]:
    return _measured({part: (folder, "")})[part]


def _write_peer(folder: Path, ranks: int) -> None:
    """The same stacks in the form the peer reads: one file per rank."""
    out = folder / "peer"
    out.mkdir()
    for rank, path in enumerate(_dumps(folder)):
        data = {
            "rank": rank,
            "world_size": ranks,
            "process_state": "S",
            "stack_data": json.loads(path.read_bytes()),
        }
        (out / f"{rank:05d}-0.stackdata").write_text(json.dumps(data, indent=2))


def _distinct(folder: Path, ranks: int, threads: int) -> None:
    """Ranks whose stacks are all different, down to the last frame."""
    import make_dumps
    from dump_stacks import STACKS

    for rank in range(ranks):
        dump = []
        for number in range(threads):
            frames = tuple({**frame, "line": 10 * rank + number + 1} for frame in STACKS["linear"])
            dump.append(make_dumps._thread(10_000 + 100 * rank, number, f"Thread-{number}", frames))
        dump[0]["thread_name"] = "MainThread"
        (folder / f"rank-{rank:05d}.json").write_text(json.dumps(dump, indent=2))


def _trees() -> Iterator[bytes]:
    """Encoded trees of nodes of 8 ranks each; node 5 reads data, the rest waits."""
    import msgspec
    from dump_stacks import STACKS
    from make_dumps import BACKGROUND

    from snapshotter.stacks.model import Frame, NodeAnswer, Process, Sample, Thread
    from snapshotter.stacks.premerge import premerge

    def stack(name: str) -> tuple[Frame, ...]:
        return tuple(Frame(f["name"], f["filename"], f["line"]) for f in reversed(STACKS[name]))

    background = [(name, stack(which)) for name, which in BACKGROUND]
    read, wait = stack("read"), stack("all_reduce")
    for node in range(PREMERGED_NODES):
        processes = []
        for local in range(8):
            main = Thread(1, "MainThread", 100 + local, True, False, read if node == 5 else wait)
            rest = [Thread(n, name, None, False, False, it) for n, (name, it) in enumerate(background, 2)]
            sample = Sample(0.0, "ok", threads=(main, *rest), state="S")
            name = f"node-{node}"
            processes.append(
                Process(
                    100 + local, name, "trainer", 8 * node + local, "ok", local_rank=local, samples=(sample,)
                )
            )
        yield msgspec.json.encode(
            premerge(NodeAnswer(f"node-{node}", "ok", 0, 0, processes=tuple(processes)))
        )


def _peer_folder(given: Path | None, scratch: Path) -> str:
    if given is not None:
        return str(given)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(scratch), PEER]
    subprocess.run(command, check=True)
    return str(scratch)


def _line(
    name: str, measured: tuple[float, float, str], *, bound: str = "", good: bool | None = None
) -> None:
    print(f"  {name:46} {measured[0]:7.2f} s {measured[1]:6.0f} MB   {measured[2]}", flush=True)
    row(name, f"{measured[0]:.2f} s, {measured[1]:.0f} MB", bound=bound, good=good)


def compare(ranks: int, threads: int, given: Path | None, scratch: Path) -> bool:
    """The main comparison; whether the bounds hold."""
    import make_dumps

    folder = scratch / "dumps"
    make_dumps.write(folder, "node-read", ranks, threads=threads)
    _write_peer(folder, ranks)
    size = sum(path.stat().st_size for path in _dumps(folder)) / 1e6
    print(f"{ranks:,} ranks with {threads} threads each, {size:.0f} MB of dumps")
    path = _peer_folder(given, scratch / "package")
    found = _measured({"floor": (folder, ""), "ours": (folder, ""), "peer": (folder, path)})
    least, mine, theirs = found["floor"], found["ours"], found["peer"]
    _line("read and decode only (msgspec)", least)
    _line("hangscope: files to report and verdict", mine)
    _line(f"{PEER}: merge only", theirs)
    ratio = theirs[0] / mine[0]
    print(f"  {ratio:.1f} times faster than the peer (at least {LEAST_RATIO:.0f})")
    print(f"  {mine[0] / least[0]:.1f} times the floor")
    row(
        f"{ranks:,} ranks, files to verdict",
        f"{ratio:.1f} times faster, {mine[1]:.0f} MB",
        peer=f"{PEER}, which merges alone",
        bound=f"{LEAST_RATIO:.0f} times, {MOST_MEGABYTES:.0f} MB",
        good=ratio >= LEAST_RATIO and mine[1] <= MOST_MEGABYTES,
    )
    return ratio >= LEAST_RATIO and mine[1] <= MOST_MEGABYTES


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=10_240)
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--peer", type=Path, help="folder with the peer's package")
    parser.add_argument("--quick", action="store_true", help="the comparison alone")
    parser.add_argument("--part", choices=("floor", "ours", "peer", "premerged"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        return _run_part(arguments.part, arguments.folder)
    with tempfile.TemporaryDirectory(prefix="hangscope-bench-") as name:
        scratch = Path(name)
        good = compare(arguments.ranks, arguments.threads, arguments.peer, scratch)
        if not arguments.quick:
            good = _larger(scratch) and good
    print("all bounds hold" if good else "A BOUND IS MISSED")
    return 0 if good else 1


def _larger(scratch: Path) -> bool:
    import make_dumps

    workers = scratch / "workers"
    make_dumps.write(workers, "local-loader", 1024, workers=8, threads=2)
    _line("1,024 ranks with 8 DataLoader workers each", _alone("ours", workers))
    distinct = scratch / "distinct"
    distinct.mkdir()
    _distinct(distinct, 1024, 6)
    _line("1,024 ranks, 6,144 stacks, no two alike", _alone("ours", distinct))
    trees = scratch / "trees"
    trees.mkdir()
    with (trees / "trees.jsonl").open("wb") as out:
        out.writelines(tree + b"\n" for tree in _trees())
    merged = _alone("premerged", trees)
    good = merged[0] <= MOST_SECONDS_PREMERGED
    _line(
        f"{8 * PREMERGED_NODES:,} ranks from {PREMERGED_NODES:,} merged nodes",
        merged,
        bound=f"{MOST_SECONDS_PREMERGED:g} s",
        good=good,
    )
    return good


def _run_part(part: str, folder: Path) -> int:
    parts = {"floor": floor, "ours": ours, "peer": peer, "premerged": premerged}
    steps = parts[part](folder)
    next(steps)
    started = time.perf_counter()
    next(steps, None)
    seconds = time.perf_counter() - started
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"\n{seconds:.3f} {sum(peaks) / 1024:.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
