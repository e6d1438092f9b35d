"""All benchmarks, one after another, and the page of what they measured.

    python -m benchmarks [--write] [NAME …]

NAME is the part after `bench_`. `--write` puts the tables of those that ran into docs/benchmarks.md, with versions and
the kind of machine. Exit status 1 where one missed a bound or failed.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import results
from benchmarks.results import Row

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

Written by `make bench`: every benchmark with its peer or its bound, in one run on one machine. Seconds are those of
that machine; ratios say more. `python -m benchmarks NAME --write` replaces the table of one.
"""
_COLUMNS = ("| what | measured | beside it | bound | |", "|---|---|---|---|---|")
# Commands that print a version, by the benchmark's peer or part.
_VERSIONS = {
    "prometheus": ["prometheus", "--version"],
    "mtail": ["mtail", "--version"],
    "process-exporter": ["prometheus-process-exporter", "-version"],
    "node_exporter": ["prometheus-node-exporter", "--version"],
    "PostgreSQL": ["psql", "--version"],
}
_PACKAGES = ("py-spy", "msgspec", "cheroot", "huey", "torch")


def names() -> tuple[str, ...]:
    """The benchmarks there are."""
    found = (ROOT / "benchmarks").glob("bench_*.py")
    return tuple(sorted(path.stem.removeprefix("bench_") for path in found))


def title(name: str) -> str:
    """The first line of a benchmark's own description."""
    source = (ROOT / "benchmarks" / f"bench_{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or name).splitlines()[0].rstrip(".:")


def run(name: str) -> tuple[int, list[Row]]:
    """Exit status and rows of one benchmark; it prints as it does alone."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "rows"
        place.touch()
        done = subprocess.run(
            [sys.executable, str(ROOT / "benchmarks" / f"bench_{name}.py")],
            env=os.environ | {results.COLLECT: str(place)},
            check=False,
        )
        return done.returncode, results.read(place)


def section(name: str, rows: Sequence[Row], machine: str) -> str:
    """One benchmark's part of the page."""
    lines = [f"<!-- {name} -->", f"## {title(name)}", "", f"`make bench-{name}`. {machine}", "", *_COLUMNS]
    for one in rows:
        kept = {True: "kept", False: "**missed**", None: ""}[one.good]
        cells = (one.what, one.ours, one.peer, one.bound, kept)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + f"\n<!-- end of {name} -->\n"


def written(page: str, sections: dict[str, str]) -> str:
    """The page with these sections replaced or added; in order of names."""
    kept = dict(re.findall(r"(?ms)^<!-- (\w+) -->$\n(.*?)^<!-- end of \1 -->$\n", page))
    whole = {name: f"<!-- {name} -->\n{text}<!-- end of {name} -->\n" for name, text in kept.items()}
    whole |= sections
    return HEAD + "".join(f"\n{whole[name]}" for name in sorted(whole) if name in names())


def machine() -> str:
    """Versions and the kind of machine; nothing that names it."""
    cpu = re.search(r"(?m)^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    kernel = re.match(r"\d+\.\d+", platform.release())
    parts = [
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        f"{os.cpu_count()} cores of {cpu[1] if cpu else platform.machine()}",
        f"{int(memory[1]) >> 20} GiB" if memory else "",
        f"Linux {kernel[0] if kernel else platform.release()}",
        f"Python {platform.python_version()}",
        *(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES),
        *(_version(name, command) for name, command in _VERSIONS.items()),
    ]
    return ", ".join(part for part in parts if part) + "."


def _version(name: str, command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+[\w.]*", done.stdout + done.stderr)
    return f"{name} {found[0].rstrip('.')}" if found else ""


def main(say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="All benchmarks.")
    parser.add_argument("name", nargs="*", help=f"these alone: {', '.join(names())}")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    for name in options.name:
        if name not in names():
            parser.error(f"no benchmark {name!r}: there are {', '.join(names())}")
    missed = []
    for name in options.name or names():
        say(f"== {name}")
        sys.stdout.flush()
        status, rows = run(name)
        if status != 0:
            missed.append(name)
        if rows and options.write:  # at once: what comes after may fail, or take too long
            page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else HEAD
            PAGE.write_text(written(page, {name: section(name, rows, machine())}), encoding="utf-8")
    if missed:
        say(f"missed a bound or failed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
