"""`make faults`: every fault of the suite as a real job, captured and compared with its truth."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from standalone import processes
from tests.faults import catalogue
from tests.faults.catalogue import FAULTS, Fault
from tests.faults.running import NoEffect, Outcome, run
from tests.faults.warm import Warm

ENOUGH = 0.95  # of the hangs must have their culprits right


def main() -> int:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--only", metavar="NAME,…", help="these faults alone")
    parser.add_argument("--list", action="store_true", help="name the faults")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep bundles and logs, a folder per fault")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts")
    parser.add_argument("--write", action="store_true", help="write docs/faults.md")
    options = parser.parse_args()
    if options.write and options.only is not None:
        parser.error("--write is about all faults: leave --only out")
    faults = (
        FAULTS if options.only is None else tuple(catalogue.find(name) for name in options.only.split(","))
    )
    if options.list:
        for fault in faults:
            print(f"{fault.name:24} {fault.story}")
        return 0
    processes.adopt_orphans()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # jobs end with us, however we are ended
    warm = Warm()
    try:
        with tempfile.TemporaryDirectory(prefix="hangscope-faults-") as scratch:
            outcomes, failures = _run_all(faults, options.keep or Path(scratch), warm)
    finally:
        warm.close()
    if options.json is not None:
        options.json.write_text(json.dumps({one.fault.name: one.verdict for one in outcomes}, indent=1))
    totals = _totals(outcomes, failures)
    print(f"\n{totals}", end="")
    if options.write and not failures:
        from tests.faults import page  # which needs torch

        page.PATH.write_text(page.render(outcomes, totals), encoding="utf-8")
    return 0 if _good(outcomes, failures) else 1


def _run_all(faults: tuple[Fault, ...], folder: Path, warm: Warm) -> tuple[list[Outcome], list[str]]:
    print(f"{'fault':24} {'s':>5} {'prec.':>6} {'recall':>6} cause scope hung  headline", flush=True)
    outcomes, failures = [], []
    for fault in faults:
        shutil.rmtree(folder / fault.name, ignore_errors=True)
        try:
            outcome = run(fault, folder / fault.name, warm)
        except NoEffect as error:
            failures.append(fault.name)
            print(f"{fault.name:24} could not be measured: {error}", flush=True)
            continue
        outcomes.append(outcome)
        print(_row(outcome), flush=True)
    return outcomes, failures


def _row(one: Outcome) -> str:
    marks = [
        "yes" if right else f"NO ({one.verdict[name]})"
        for name, right in (("cause", one.cause_right), ("scope", one.scope_right), ("hung", one.hung_right))
    ]
    culprits = f"{one.precision:6.0%} {one.recall:6.0%}"
    if not one.culprits_right:
        named = (
            f"{one.verdict['culprit_ranks'] or 'none'}, not captured {one.verdict['not_captured'] or 'none'}"
        )
        culprits += f" NAMED {named}"
    return f"{one.fault.name:24} {one.seconds:5.1f} {culprits} {'  '.join(marks)}  {one.verdict['headline']}"


def _totals(outcomes: list[Outcome], failures: list[str]) -> str:
    hangs = [one for one in outcomes if one.fault.hung]
    others = [one for one in outcomes if not one.fault.hung]
    alarms = [one.fault.name for one in others if one.false_alarm]
    lines = [
        f"{len(hangs)} hangs: culprits right in {sum(map(_named, hangs))}, "
        f"cause in {sum(one.cause_right for one in hangs)}, scope in {sum(one.scope_right for one in hangs)}",
        f"{len(others)} look-alikes: {len(alarms)} called hung {' '.join(alarms)}".rstrip(),
    ]
    if outcomes:
        seconds = sorted(one.seconds for one in outcomes)
        lines.append(
            f"time to verdict: {seconds[len(seconds) // 2]:.1f} s in the middle, {seconds[-1]:.1f} s at most"
        )
    if failures:
        lines.append(f"not measured: {' '.join(failures)}")
    return "".join(f"{line}\n" for line in lines)


def _named(one: Outcome) -> bool:
    """A hang whose culprits are right."""
    return one.culprits_right and one.hung_right


def _good(outcomes: list[Outcome], failures: list[str]) -> bool:
    hangs = [one for one in outcomes if one.fault.hung]
    enough = sum(map(_named, hangs)) >= ENOUGH * len(hangs)
    return enough and not failures and not any(one.false_alarm for one in outcomes)


if __name__ == "__main__":
    sys.exit(main())
