"""`make faults`: every fault of the suite as a real job, captured and compared with its truth."""

from __future__ import annotations

import argparse
import json
import shutil
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
    options = parser.parse_args()
    faults = (
        FAULTS if options.only is None else tuple(catalogue.find(name) for name in options.only.split(","))
    )
    if options.list:
        for fault in faults:
            print(f"{fault.name:24} {fault.story}")
        return 0
    processes.adopt_orphans()
    warm = Warm()
    try:
        with tempfile.TemporaryDirectory(prefix="hangscope-faults-") as scratch:
            outcomes, failures = _run_all(faults, options.keep or Path(scratch), warm)
    finally:
        warm.close()
    if options.json is not None:
        options.json.write_text(json.dumps({one.fault.name: one.verdict for one in outcomes}, indent=1))
    return _total(outcomes, failures)


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


def _total(outcomes: list[Outcome], failures: list[str]) -> int:
    hangs = [one for one in outcomes if one.fault.hung]
    others = [one for one in outcomes if not one.fault.hung]
    right = sum(one.culprits_right and one.hung_right for one in hangs)
    alarms = [one.fault.name for one in others if one.false_alarm]
    print()
    print(f"{len(hangs)} hangs: culprits right in {right}, cause in {sum(one.cause_right for one in hangs)}")
    print(f"{len(others)} look-alikes: {len(alarms)} called hung {' '.join(alarms)}")
    if outcomes:
        slowest = max(outcomes, key=lambda one: one.seconds)
        print(f"time to verdict: at most {slowest.seconds:.1f} s ({slowest.fault.name})")
    if failures:
        print(f"not measured: {' '.join(failures)}")
    enough = not hangs or right >= ENOUGH * len(hangs)
    return 0 if enough and not alarms and not failures else 1


if __name__ == "__main__":
    sys.exit(main())
