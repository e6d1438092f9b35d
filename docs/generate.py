"""Write the tables of the documentation that the code knows: `python docs/generate.py`, with `--check` only compare.

What stands between `<!-- generated: NAME -->` and `<!-- end -->` is replaced; everything else is written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import exporter.cli
import exporter.metrics
import snapshotter.cli
import snapshotter.metrics
from exporter.families import Spec

HERE = Path(__file__).parent
PAGES = ("metrics.md", "configuration.md")
_BLOCK = re.compile(r"(<!-- generated: ([\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_EXPORTER_METRICS = {
    "exporter itself": "hangscope_exporter_",
    "logs": "training_log_",
    "nccl": "nccl_ras_",
}


def blocks() -> dict[str, Callable[[], str]]:
    """What makes each block, by its name."""
    made: dict[str, Callable[[], str]] = {
        name: lambda prefix=prefix: _metrics(  # type: ignore[misc]
            spec for spec in exporter.metrics.TABLE if spec.name.startswith(prefix)
        )
        for name, prefix in _EXPORTER_METRICS.items()
    }
    others = tuple(_EXPORTER_METRICS.values())
    made["processes"] = lambda: _metrics(
        spec for spec in exporter.metrics.TABLE if not spec.name.startswith(others)
    )
    made["snapshotter"] = lambda: _metrics(snapshotter.metrics.TABLE)
    for program, parser in (("exporter", exporter.cli._parser()), ("snapshotter", snapshotter.cli._parser())):
        made[f"flags of the {program}"] = lambda parser=parser: "".join(_commands(parser))  # type: ignore[misc]
    return made


def _metrics(specs: Iterable[Spec]) -> str:
    rows = [
        f"| `{spec.name}` | {spec.kind} | {', '.join(f'`{label}`' for label in spec.labels)} | {spec.help} |\n"
        for spec in specs
    ]
    return "| metric | type | labels | |\n|---|---|---|---|\n" + "".join(rows)


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a program's commands, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """What a command can be told, but for --help."""
    return (action for action in parser._actions if action.dest != "help")


def _commands(parser: argparse.ArgumentParser) -> Iterator[str]:
    helps = {
        choice.dest: choice.help
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for choice in action._choices_actions
    }
    for name, command in commands(parser).items():
        yield f"\n#### `{parser.prog} {name}`\n\n{_sentence(helps[name] or '')}\n\n"
        yield "| | default | |\n|---|---|---|\n"
        for action in arguments(command):
            yield f"| `{_shown(action)}` | {_default(action)} | {_help(action)} |\n"


def _shown(action: argparse.Action) -> str:
    flag = ", ".join(action.option_strings)
    value = "" if action.nargs == 0 else str(action.metavar or _choices(action) or action.dest.upper())
    many = "…" if action.nargs == "+" else ""
    return f"{flag} {value}{many}".strip().replace("|", "\\|")


def _choices(action: argparse.Action) -> str:
    return "|".join(map(str, action.choices)) if action.choices else ""


def _default(action: argparse.Action) -> str:
    if action.required:
        return "required" if action.option_strings else ""
    return "" if action.default in (None, False, []) else f"`{action.default}`"


def _help(action: argparse.Action) -> str:
    text = (action.help or "").replace("(%(default)s)", "").strip().removesuffix(",")
    return _sentence(text).replace("|", "\\|")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def render(page: str) -> str:
    """The page with its blocks as they should be. Raises KeyError for a block that nothing makes."""
    made = blocks()
    return _BLOCK.sub(lambda found: f"{found[1]}{made[found[2]]()}{found[3]}", page)


def main() -> int:
    """Exit status 1 where --check finds a page that is not as it would be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; say which pages are stale")
    check = parser.parse_args().check
    stale = []
    for name in PAGES:
        path = HERE / name
        text = path.read_text(encoding="utf-8")
        wanted = render(text)
        if wanted != text:
            stale.append(name)
            if not check:
                path.write_text(wanted, encoding="utf-8")
    if stale and check:
        print(f"stale: {', '.join(stale)}; run python docs/generate.py", file=sys.stderr)
    return int(bool(stale and check))


if __name__ == "__main__":
    sys.exit(main())
