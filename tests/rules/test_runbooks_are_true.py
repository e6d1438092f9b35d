"""What the runbooks and pages tell people to run, set and look at is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from exporter import config as exporter_config
from exporter import metrics as exporter_metrics
from snapshotter import config as snapshotter_config
from snapshotter import metrics as snapshotter_metrics

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / "rules" / "runbooks").glob("*.md"),
    *(ROOT / "docs" / name for name in ("alerts.md", "install.md")),
]
TEXT = "\n".join(path.read_text() for path in PAGES)
COMMANDS = sorted(set(re.findall(r"hangscope-(exporter|snapshotter) ([a-z][a-z-]+)((?: --?[a-z-]+)*)", TEXT)))


@pytest.mark.parametrize(("program", "command", "flags"), COMMANDS, ids=" ".join)
def test_command_exists(program: str, command: str, flags: str) -> None:
    script = Path(sys.executable).parent / f"hangscope-{program}"
    done = subprocess.run([script, command, "--help"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    for flag in flags.split():
        assert flag in done.stdout, flag


def _keys(section: type, prefix: str = "") -> set[str]:
    """Every key of a configuration, dotted, and its last part alone."""
    found = set()
    for field in msgspec.structs.fields(section):
        found |= {f"{prefix}{field.name}", field.name}
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found |= _keys(field.type, f"{prefix}{field.name}.")
    return found


def test_configuration_keys_exist() -> None:
    known = _keys(exporter_config.Config) | _keys(snapshotter_config.Config)
    known |= {key for one in (exporter_config.LogConfig, exporter_config.JobConfig) for key in _keys(one)}
    named = set(re.findall(r"`((?:limits|storage|incidents|nccl|logs|jobs)\.\w+)`", TEXT))
    named |= set(re.findall(r"`(hang_limit|pattern|job_id|workers|startup_grace)`", TEXT))
    assert len(named) > 5
    assert named <= known


def test_metrics_exist() -> None:
    known = {spec.name for spec in (*exporter_metrics.TABLE, *snapshotter_metrics.TABLE)}
    named = set(re.findall(r"\b((?:training|nccl_ras|snapshotter|hangscope_exporter)_[a-z_]+)\b", TEXT))
    recorded = set(
        re.findall(r"record: \w+:(\w+)", "".join(p.read_text() for p in (ROOT / "rules").glob("*.yaml")))
    )
    assert len(named) > 5
    assert named - recorded <= known
