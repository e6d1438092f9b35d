"""The generated PrometheusRule objects hold what the plain files hold."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import yaml

RULES = Path(__file__).parents[2] / "rules"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rules_generate", RULES / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_file_is_up_to_date(generate: ModuleType) -> None:
    assert generate.OUTPUT.read_text() == generate.render(), "run `python rules/generate.py`"


def test_every_rule_file_is_in_it(generate: ModuleType) -> None:
    written = {path.name for path in RULES.glob("*.yaml") if "groups:" in path.read_text().splitlines()}
    assert set(generate.FILES) == written


def test_objects_are_what_the_operator_expects(generate: ModuleType) -> None:
    objects = list(yaml.safe_load_all(generate.OUTPUT.read_text()))
    for one in objects:
        assert (one["apiVersion"], one["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    names = [one["metadata"]["name"] for one in objects]
    assert len(set(names)) == len(names)


def test_their_groups_load(generate: ModuleType, tmp_path: Path) -> None:
    """The operator writes each object's spec into a rule file as it stands."""
    for number, one in enumerate(yaml.safe_load_all(generate.OUTPUT.read_text())):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump(one["spec"]))
        done = subprocess.run(
            ["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(path)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
