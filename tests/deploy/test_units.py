"""The systemd units: checked by systemd, and their capability sets by programs that run with just those."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from exporter import cli as exporter_cli
from exporter import config as exporter_config
from snapshotter import cli as snapshotter_cli
from snapshotter import config as snapshotter_config

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
BIN = Path(sys.executable).parent
SOMEBODY = 60001
# At most this exposed, by systemd's own count from 0 (nothing to reach) to 10; times ten.
EXPOSURE = {"hangscope-exporter": 30, "hangscope-agent": 35, "hangscope-snapshotter": 15}


def unit(name: str) -> dict[str, list[str]]:
    """The keys of the section Service, each with all its values."""
    found: dict[str, list[str]] = {}
    path = next(one for one in UNITS if one.stem == name)
    for line in path.read_text().partition("[Service]")[2].partition("[Install]")[0].splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The units as installed where this interpreter is."""
    folder = tmp_path_factory.mktemp("units")
    for path in UNITS:
        (folder / path.name).write_text(path.read_text().replace("/opt/hangscope/bin", str(BIN)))
    return folder


@pytest.mark.parametrize("name", EXPOSURE)
def test_systemd_accepts_the_unit(installed: Path, name: str) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", installed / f"{name}.service"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("name", EXPOSURE)
def test_unit_is_hardened(installed: Path, name: str) -> None:
    done = subprocess.run(
        [
            *("systemd-analyze", "security", "--offline=true", "--no-pager"),
            f"--threshold={EXPOSURE[name]}",
            installed / f"{name}.service",
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def test_a_careless_unit_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "bad.service").write_text("[Service]\nExecStart=/bin/true\nProtectSytem=strict\n")
    verify = ["systemd-analyze", "verify", tmp_path / "bad.service"]
    security = ["systemd-analyze", "security", "--offline=true", "--threshold=35", tmp_path / "bad.service"]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=240)
    assert "ProtectSytem" in done.stderr
    assert subprocess.run(security, capture_output=True, timeout=240).returncode != 0


@pytest.mark.parametrize("name", EXPOSURE)
def test_program_understands_its_flags(name: str) -> None:
    program, *words = shlex.split(unit(name)["ExecStart"][0])
    parser = exporter_cli._parser() if program.endswith("-exporter") else snapshotter_cli._parser()
    options = parser.parse_args([word for word in words if not word.startswith("$HANGSCOPE_")])
    assert str(options.config).startswith("/etc/hangscope/")


def test_an_empty_file_is_a_configuration(tmp_path: Path) -> None:
    """The page says to create the files empty."""
    (tmp_path / "empty.yaml").write_text("")
    assert exporter_config.load(tmp_path / "empty.yaml") == exporter_config.Config()
    assert snapshotter_config.load(tmp_path / "empty.yaml") == snapshotter_config.Config()


@pytest.fixture
def rank() -> Iterator[int]:
    """The pid of a rank that belongs to somebody, who cannot reach this checkout."""
    environment = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "TORCHELASTIC_RUN_ID": "privileges"}
    lines = ("import time", "def waits():", "    print('up', flush=True)", "    time.sleep(600)", "waits()")
    process = subprocess.Popen(
        ["/usr/bin/python3", "-c", "\n".join(lines)],
        env=environment,
        cwd="/",
        user=SOMEBODY,
        group=SOMEBODY,
        extra_groups=[],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


def with_capabilities(names: list[str], *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run as user 0 with these capabilities alone, as a container does that drops all and adds these.

    What the kernel lets the program do is the same under systemd's AmbientCapabilities for another user.
    """
    bounds = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in names)])
    arguments = [f"--bounding-set={bounds}", "--inh-caps=-all", "--no-new-privs"]
    return subprocess.run(["setpriv", *arguments, *command], capture_output=True, text=True, timeout=240)


def given(where: str) -> list[str]:
    """The capabilities that a unit or the chart gives."""
    program, _, place = where.partition(" in ")
    if place == "chart":
        values = yaml.safe_load((ROOT / "deploy" / "helm" / "hangscope" / "values.yaml").read_text())
        names: list[str] = values[program]["capabilities"]
        return names
    service = unit(f"hangscope-{program}")
    assert service["AmbientCapabilities"] == service["CapabilityBoundingSet"]
    return service["AmbientCapabilities"][0].split()


root_only = pytest.mark.skipif(
    os.environ.get("CI") != "true" and os.geteuid() != 0, reason="only root can become others"
)


@root_only
@pytest.mark.parametrize("where", ["exporter in chart", "exporter in unit"])
def test_exporters_capabilities_show_other_users_ranks(rank: int, where: str) -> None:
    command = (BIN / "hangscope-exporter", "list-ranks", "--format", "json")
    done = with_capabilities(given(where), *command)
    assert done.returncode == 0, done.stderr
    assert "privileges" in done.stdout and str(rank) in done.stdout


@root_only
@pytest.mark.parametrize("missing", ["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"])
def test_exporter_needs_each_of_its_capabilities(rank: int, missing: str) -> None:
    names = [name for name in given("exporter in unit") if name != missing]
    done = with_capabilities(names, BIN / "hangscope-exporter", "list-ranks", "--format", "json")
    assert "privileges" not in done.stdout and "cannot be read" in done.stdout


@root_only
@pytest.mark.parametrize("where", ["agent in chart", "agent in unit"])
def test_agents_capabilities_take_other_users_stacks(rank: int, where: str, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    command = (BIN / "hangscope-snapshotter", "capture", "--pid", str(rank), "-o", bundle)
    done = with_capabilities(given(where), *command)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((bundle / "report.json").read_text())
    assert any(one["function"].startswith("waits ") for one in report["function_stats"])


@root_only
def test_agents_capabilities_let_a_stopped_process_go_on(rank: int) -> None:
    os.kill(rank, signal.SIGSTOP)
    command = ("kill", "-CONT", str(rank))
    without = [name for name in given("agent in unit") if name != "CAP_KILL"]
    assert with_capabilities(without, *command).returncode != 0
    assert with_capabilities(given("agent in unit"), *command).returncode == 0
