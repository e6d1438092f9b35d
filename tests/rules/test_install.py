"""docs/install.md followed step by step, as far as files and configurations go."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "install.md").read_text()


def test_every_file_it_names_is_there() -> None:
    paths = set(re.findall(r"(?<![\w/])((?:rules|dashboards)/[\w./*-]+)", TEXT))
    assert len(paths) > 5
    for path in paths:
        assert list(ROOT.glob(path)), path
    for link in re.findall(r"\]\(([\w./-]+)\)", TEXT):
        assert (ROOT / "docs" / link).is_file(), link


def test_an_existing_prometheus_takes_it(tmp_path: Path) -> None:
    """The lines of step 3 appended to somebody's configuration, the files of step 1 copied."""
    folder = tmp_path / "hangscope"
    folder.mkdir()
    for pattern in ("settings.yaml", "*_alerts.yaml", "*_rules.yaml"):
        for path in (ROOT / "rules").glob(pattern):
            shutil.copy(path, folder)
    block = re.search(r"^       rule_files:\n(?:(?:       .*)?\n)+", TEXT, re.M)
    assert block is not None
    ours = yaml.safe_load(block.group())
    theirs = {
        "global": {"evaluation_interval": "30s"},
        "rule_files": [],
        "scrape_configs": [{"job_name": "node"}],
    }
    theirs["rule_files"] += ours["rule_files"]
    theirs["scrape_configs"] += ours["scrape_configs"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(theirs))
    done = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(list(folder.iterdir()))} rule files found" in done.stdout


def test_scrape_jobs_are_called_what_the_settings_say() -> None:
    settings = (ROOT / "rules" / "settings.yaml").read_text()
    for text in (TEXT, (ROOT / "rules" / "prometheus-example.yaml").read_text()):
        for name in re.findall(r"job_name: (\S+)", text):
            assert f'up{{job="{name}"}}' in settings


def test_provisioning_example_is_what_grafana_reads() -> None:
    provisioning = yaml.safe_load((ROOT / "dashboards" / "provisioning-example.yaml").read_text())
    assert provisioning["apiVersion"] == 1
    (provider,) = provisioning["providers"]
    assert provider["type"] == "file"
    assert provider["allowUiUpdates"] is False
    assert provider["options"]["path"] in TEXT
