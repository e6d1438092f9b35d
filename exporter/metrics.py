"""Every metric of the exporter: name, type, labels and help, in one table.

Collectors ask `family(name)` for a fresh family and add samples; nothing else makes one. The documentation,
the rules and the dashboards are tested against this table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

Kind = Literal["gauge", "counter", "summary"]


@dataclass(frozen=True, slots=True)
class Spec:
    """One metric as it is promised. `help` says unit and source."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


TABLE: tuple[Spec, ...] = (
    Spec(
        "hangscope_exporter_build_info", "gauge", ("version", "python_version"), "1, with what runs here."
    ),
    Spec(
        "hangscope_exporter_collector_duration_seconds",
        "gauge",
        ("collector",),
        "Time that the collector took in this scrape.",
    ),
    Spec(
        "hangscope_exporter_collector_success",
        "gauge",
        ("collector",),
        "1 where the collector gave all it has in this scrape, 0 where it failed or was too slow.",
    ),
)

_BY_NAME: dict[str, Spec] = {spec.name: spec for spec in TABLE}


class Family:
    """A family under construction: samples are added by label values in the table's order."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._metric: Metric
        if spec.kind == "counter":
            self._metric = CounterMetricFamily(spec.name.removesuffix("_total"), spec.help)
        elif spec.kind == "gauge":
            self._metric = GaugeMetricFamily(spec.name, spec.help)
        else:
            self._metric = Metric(spec.name, spec.help, "summary")

    def add(self, *values: str, value: float, suffix: str = "", **extra: str) -> None:
        """Add one sample; `values` are the label values in the table's order.

        `suffix` and `extra` are for summaries alone (`_sum`, `_count`, `quantile="0.5"`).
        """
        labels = dict(zip(self._spec.labels, values, strict=True)) | extra
        self._metric.add_sample(self._spec.name + suffix, labels, value)

    @property
    def metric(self) -> Metric:
        return self._metric


def family(name: str) -> Family:
    """A fresh, empty family of a metric of the table."""
    return Family(_BY_NAME[name])


def metrics(families: Iterable[Family]) -> list[Metric]:
    """The families that hold a sample; an empty family would only print its help."""
    return [one.metric for one in families if one.metric.samples]
