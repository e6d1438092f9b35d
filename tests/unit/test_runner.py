"""One scrape: a collector that fails or hangs loses its own families, never the scrape."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from exporter.background import Background
from exporter.metrics import family, metrics
from exporter.runner import Runner


class Good:
    name = "good"

    def collect(self) -> Iterable[Metric]:
        one = family("hangscope_exporter_reader_duration_seconds")
        one.add("logs", value=0.25)
        return metrics((one,))


class Failing:
    name = "failing"

    def collect(self) -> Iterable[Metric]:
        raise OSError("the disk is gone")


class Hanging:
    name = "hanging"

    def __init__(self) -> None:
        self.began, self.release = threading.Event(), threading.Event()
        self.calls = 0

    def collect(self) -> Iterable[Metric]:
        self.calls += 1
        self.began.set()
        self.release.wait()
        return ()


def success(registry: CollectorRegistry, collector: str) -> float | None:
    return registry.get_sample_value("hangscope_exporter_collector_success", {"collector": collector})


def test_a_failing_collector_loses_its_own_families_alone() -> None:
    registry = CollectorRegistry()
    registry.register(Runner([Failing(), Good()]))
    text = {sample.name: sample.value for metric in registry.collect() for sample in metric.samples}
    assert text["hangscope_exporter_reader_duration_seconds"] == 0.25
    assert success(registry, "good") == 1.0
    assert success(registry, "failing") == 0.0


def test_a_hanging_collector_is_left_behind_and_not_started_twice() -> None:
    hanging = Hanging()
    runner = Runner([hanging, Good()], deadline=0.1)
    registry = CollectorRegistry()
    registry.register(runner)
    stop_at = time.monotonic() + 60
    try:
        while success(registry, "good") != 1.0:  # on a busy machine it may be late in one scrape or another
            assert time.monotonic() < stop_at
        assert hanging.began.wait(60)
        assert success(registry, "hanging") == 0.0
        assert hanging.calls == 1
    finally:
        hanging.release.set()
    while success(registry, "hanging") != 1.0:
        assert time.monotonic() < stop_at
    runner.close()


def test_registration_does_not_scrape() -> None:
    hanging = Hanging()
    CollectorRegistry(auto_describe=True).register(Runner([hanging]))
    assert hanging.calls == 0


def test_a_reader_that_fails_is_counted_and_tries_again() -> None:
    answers: list[Exception | None] = [OSError("stale file handle"), None]

    def poll() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    reader = Background("logs", poll, 1.0, now=lambda: 1000.0)
    reader.poll_once()
    assert reader.health.failures == 1
    assert reader.health.last_success is None
    reader.poll_once()
    assert reader.health.failures == 1
    assert reader.health.last_success == 1000.0
