"""Everything that a user can set, call or be told of is documented, and nothing that does not exist."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import exporter.config
import exporter.metrics
import exporter.webconfig
import snapshotter.config
import snapshotter.metrics
from exporter.logs.model import Phase
from exporter.yamlconfig import Duration, Size

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIGURATION = (DOCS / "configuration.md").read_text(encoding="utf-8")
METRICS = (DOCS / "metrics.md").read_text(encoding="utf-8")
GENERATE = runpy.run_path(str(DOCS / "generate.py"), run_name="generate")


def test_generated_tables_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, DOCS / "generate.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


def test_a_stale_table_is_noticed() -> None:
    stale = METRICS.replace("`training_log_phase`", "`training_log_faze`")
    assert stale != METRICS and GENERATE["render"](stale) == METRICS


def test_every_block_that_can_be_made_is_shown() -> None:
    shown = set(re.findall(r"<!-- generated: ([\w -]+) -->", METRICS + CONFIGURATION))
    assert shown == set(GENERATE["blocks"]())


@pytest.mark.parametrize(
    "table", [exporter.metrics.TABLE, snapshotter.metrics.TABLE], ids=["exporter", "snapshotter"]
)
def test_every_metric_is_documented(table: tuple[Any, ...]) -> None:
    rows = {row[0]: row for row in re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| ", METRICS, re.MULTILINE)}
    for spec in table:
        assert rows[spec.name][1] == spec.kind
        assert tuple(re.findall(r"`(\w+)`", rows[spec.name][2])) == spec.labels


def test_no_metric_is_documented_that_is_not_there() -> None:
    kinds = {spec.name: spec.kind for spec in (*exporter.metrics.TABLE, *snapshotter.metrics.TABLE)}
    known = set(kinds)
    parts = {
        f"{name}{end}"
        for name, kind in kinds.items()
        for end in ("_sum", "_count", "_bucket")
        if kind in ("summary", "histogram")
    }
    prefixes = "training|nccl_ras|snapshotter|hangscope_exporter"
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(rf"(?<![\w:…/.])((?:{prefixes})_\w+)\b(?![*…])", text))
        wrong = {
            name
            for name in named - known - parts
            if not any(one.startswith(name.rstrip("_")) for one in known)
        }
        assert not wrong, f"{page.name}: {wrong}"


@pytest.mark.parametrize("program", ["exporter", "snapshotter"])
def test_every_flag_is_documented(program: str) -> None:
    module = sys.modules[f"{program}.cli"]
    part = re.search(
        rf"<!-- generated: flags of the {program} -->(.*?)<!-- end -->", CONFIGURATION, re.DOTALL
    )
    assert part is not None
    commands = GENERATE["commands"](module._parser())
    assert len(commands) >= 5
    for name, command in commands.items():
        assert command.description, f"{name} --help says nothing of what it does"
        section = re.search(rf"#### `hangscope-{program} {name}`\n(.*?)(?=\n####|\Z)", part[1], re.DOTALL)
        assert section is not None
        for action in GENERATE["arguments"](command):
            for option in action.option_strings:
                assert f"`{option}" in section[1] or f" {option} " in section[1], f"{name} {option}"
            assert action.help, f"{name} {action.dest} has no help"


def keys(struct: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Path and default of every key, as a page shows them."""
    hints = typing.get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        kind, here = hints[field.encode_name], f"{path}{field.encode_name}"
        inner, many = _inner(kind)
        if inner is not None:
            yield from keys(inner, f"{here}{'[]' if many else ''}.")
        else:
            yield here, _shown(field, kind)


def _inner(kind: Any) -> tuple[Any, bool]:
    """The section that a key holds, and whether it holds many."""
    many = typing.get_origin(kind) is tuple
    for one in (kind, *typing.get_args(kind)):
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            return one, many
    return None, many


def _shown(field: Any, kind: Any) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if value in (None, (), {}):
        return "none"
    if value == "":
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return ", ".join(f"`{one}`" for one in value)
    if Duration in (kind, *typing.get_args(kind)):
        unit, letter = next((u, name) for u, name in ((86400, "d"), (60, "m"), (1, "s")) if value % u == 0)
        return f"`{value / unit:g}{letter}`"
    if kind is Size:
        return f"`{value / 1024**3:g}GiB`"
    return f"`{value:g}`" if isinstance(value, int | float) else f"`{value}`"


SECTIONS = {
    "The exporter's file": exporter.config.Config,
    "The snapshotter's file": snapshotter.config.Config,
    "TLS and passwords": exporter.webconfig.WebConfig,
}


@pytest.mark.parametrize("title", SECTIONS)
def test_every_key_is_documented_with_its_default(title: str) -> None:
    section = CONFIGURATION.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.\[\]]+)` \| (.*?) \| (.+) \|$", section, re.MULTILINE)
    assert {key: default for key, default, _ in rows} == dict(keys(SECTIONS[title]))
    assert len(rows) == len({key for key, _, _ in rows})


@pytest.mark.parametrize("title", ["The exporter's file", "The snapshotter's file"])
def test_examples_are_good_configurations(title: str, tmp_path: Path) -> None:
    section = CONFIGURATION.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    (example,) = re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)
    (tmp_path / "file.yaml").write_text(re.sub(r"^    ", "", example, flags=re.MULTILINE))
    load: types.FunctionType = sys.modules[SECTIONS[title].__module__].load
    assert load(tmp_path / "file.yaml") != SECTIONS[title]()


def test_phases_are_those_of_the_exporter() -> None:
    (listed,) = re.findall(r"The phases are (.*?);", METRICS)
    assert re.findall(r"`(\w+)`", listed) == [str(phase) for phase in Phase]


def test_every_alert_is_documented() -> None:
    page = (DOCS / "alerts.md").read_text(encoding="utf-8")
    alerts = {
        rule["alert"]: rule["labels"]["severity"]
        for path in (ROOT / "rules").glob("*_alerts.yaml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    rows = dict(re.findall(r"^\| \[`(\w+)`\]\(\S+\) \| (\w+) \|", page, re.MULTILINE))
    assert rows == alerts
    for name in alerts:
        assert (ROOT / "rules" / "runbooks" / f"{name}.md").exists()


PAGES = sorted([*DOCS.glob("*.md"), *(ROOT / "deploy").glob("**/*.md"), ROOT / "README.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for text, target in re.findall(r"\[([^\]]+)\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"[{text}]({target})"
        if anchor:
            titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in anchors, f"[{text}]({target})"


def test_quoted_messages_are_what_the_programs_say() -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    section = page.partition("## A program does not start")[2].partition("\n## ")[0]
    quoted = re.findall(r"^\| \*(.+?)\* \|", section, re.MULTILINE)
    sources = "".join(
        path.read_text() for part in ("exporter", "snapshotter") for path in (ROOT / part).rglob("*.py")
    )
    said = re.sub(r'"\s*\n\s*f?"', "", sources)
    assert len(quoted) == 5
    for line in quoted:
        assert line in said, line
