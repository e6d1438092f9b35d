"""Metrics as both programs promise them in their tables, and families that keep to the promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

Kind = Literal["gauge", "counter", "summary", "histogram"]


@dataclass(frozen=True, slots=True)
class Spec:
    """One metric as it is promised. `help` says unit and source."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


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
            self._metric = Metric(spec.name, spec.help, spec.kind)

    def add(self, *values: str, value: float, suffix: str = "", **extra: str) -> None:
        """Add one sample; `values` are the label values in the table's order.

        `suffix` and `extra` are for summaries alone (`_sum`, `_count`, `quantile="0.5"`).
        """
        labels = dict(zip(self._spec.labels, values, strict=True)) | extra
        self._metric.add_sample(self._spec.name + suffix, labels, value)

    @property
    def metric(self) -> Metric:
        return self._metric
