"""docs/faults.md: what `make faults FAULTS=--write` found, as a page."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from standalone.chain import ROOT
from tests.faults.running import SAMPLE_INTERVAL, Outcome

PATH = ROOT / "docs" / "faults.md"

_INTRODUCTION = """# Fault suite

<!-- written by `make faults FAULTS=--write`; change tests/faults/page.py instead -->

`make faults` runs real PyTorch jobs (torch {torch}, gloo, 2 to 8 ranks on one machine), each with one fault: hangs,
and look-alikes that log nothing for long and are well. When the fault is in effect the job is captured as
`hangscope-snapshotter capture` does it, with two samples {interval:g} seconds apart, and the verdict is compared with
the truth in `tests/faults/catalogue.py`. `make faults FAULTS="--only two-threads,straggler --keep /tmp/kept"` runs
some and keeps their bundles; `FAULTS=--list` names them all.

The run fails where culprits are right in less than 95 % of the hangs, or where a look-alike is called hung.

"""

_COLUMNS = (
    f"| fault | what is wrong | culprits | precision | recall | cause | seconds | verdict |\n{'|---' * 8}|\n"
)


def names(text: str) -> list[str]:
    """The faults of a page, in its order."""
    return re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)


def render(outcomes: Sequence[Outcome], totals: str) -> str:
    """The page. `totals`: what the run says at its end."""
    hangs = [one for one in outcomes if one.fault.hung]
    others = [one for one in outcomes if not one.fault.hung]
    text = _INTRODUCTION.format(torch=torch.__version__, interval=SAMPLE_INTERVAL)
    text += f"```\n{totals}```\n\n`seconds`: from the start of the capture to the verdict.\n\n"
    text += f"## Hangs\n\n{_COLUMNS}{''.join(map(_row, hangs))}\n"
    text += f"## Look-alikes\n\n{_COLUMNS}{''.join(map(_row, others))}"
    return text


def _row(one: Outcome) -> str:
    cells = (
        f"`{one.fault.name}`",
        one.fault.story,
        one.fault.culprits or "none",
        f"{one.precision:.0%}",
        f"{one.recall:.0%}",
        one.verdict["cause"] if one.cause_right else f"**{one.verdict['cause']}**",
        f"{one.seconds:.1f}",
        re.sub(r"\(pid \d+\)", "(pid …)", one.verdict["headline"]).replace("|", "\\|").replace("<", "&lt;"),
    )
    return f"| {' | '.join(cells)} |\n"
