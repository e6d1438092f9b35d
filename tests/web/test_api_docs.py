"""docs/api.md names every route, metric and setting that it should, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import yaml

from snapshotter import config

if TYPE_CHECKING:
    from conftest import Service

TEXT = (Path(__file__).parent.parent.parent / "docs" / "api.md").read_text(encoding="utf-8")


def test_every_route_of_the_api_is_described(service: Service) -> None:
    rules = {
        re.sub(r"<capture_id>", "ID", rule.rule): rule.methods or set()
        for rule in service.client.application.url_map.iter_rules()
        if rule.rule.startswith(("/api/", "/-/", "/metrics"))
    }
    assert len(rules) > 10
    for rule, methods in rules.items():
        plain = rule.replace("flamegraph.<extension>", "flamegraph.html")
        for method in methods - {"HEAD", "OPTIONS"}:
            assert f"{method} {plain}" in TEXT, f"{method} {rule}"


def test_every_address_that_is_described_is_there(service: Service) -> None:
    adapter = service.client.application.url_map.bind("localhost")
    described = re.findall(r"`(GET|POST|PATCH|DELETE) (/[^`?\s]*)", TEXT)
    assert len(described) > 10
    for method, path in described:
        assert adapter.test(path.replace("ID", "20261130T012233Z-0123456789ab"), method), f"{method} {path}"


def test_the_settings_that_are_shown_are_good_and_defaults_are_true() -> None:
    blocks = re.findall(r"(?:^    .*\n)+", TEXT, re.MULTILINE)
    shown = [
        yaml.safe_load(block) for block in blocks if re.match(r"    (?:incidents|schedules|storage):", block)
    ]
    assert len(shown) == 3
    for part in shown:
        msgspec.convert(part, config.Config, dec_hook=lambda kind, value: kind(0))
    defaults = config.Config()
    assert tuple(shown[0]["incidents"]["alertnames"]) == defaults.incidents.alertnames
    for key, value in (("cool_down", "10m"), ("recapture_after", "15m"), ("forget_after", "1d")):
        assert shown[0]["incidents"][key] == value
    assert (defaults.incidents.cool_down, defaults.incidents.recapture_after) == (600, 900)
    assert (defaults.incidents.forget_after, defaults.incidents.max_captures) == (86400, 4)
    assert (defaults.storage.keep, defaults.storage.max_size) == (30 * 86400, 20 * 1024**3)
