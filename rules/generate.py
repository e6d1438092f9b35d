"""Write the rules as PrometheusRule objects, for the Prometheus Operator: `python rules/generate.py`.

One object for each file, so that settings.yaml can be replaced by a site's own without touching the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
OUTPUT = HERE / "kubernetes" / "prometheusrules.yaml"
FILES = (
    "settings.yaml",
    "training_rules.yaml",
    "training_alerts.yaml",
    "exporter_alerts.yaml",
    "snapshotter_alerts.yaml",
)
HEAD = """\
# Generated from the files in rules/ by `python rules/generate.py`; do not edit.
# If your Prometheus selects rules by label (spec.ruleSelector), add that label to the objects.
"""


class _Dumper(yaml.SafeDumper):
    """Expressions of several lines stay readable."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def objects() -> list[dict[str, Any]]:
    """The PrometheusRule objects, in the order of FILES."""
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {
                "name": "hangscope-" + name.removesuffix(".yaml").replace("_", "-"),
                "labels": {"app.kubernetes.io/part-of": "hangscope"},
            },
            "spec": {"groups": yaml.safe_load((HERE / name).read_text(encoding="utf-8"))["groups"]},
        }
        for name in FILES
    ]


def render() -> str:
    """The text of the output file."""
    return HEAD + yaml.dump_all(
        objects(), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True, explicit_start=True
    )


if __name__ == "__main__":
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(render(), encoding="utf-8")
