"""The exporter about itself: its build, its background readers, its last configuration reload."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import Metric

from exporter import __version__
from exporter.background import Health
from exporter.metrics import family, metrics


class SelfCollector:
    """Reads the health of the background readers and of the configuration."""

    name = "self"

    def __init__(
        self,
        health: Callable[[], Iterable[Health]],
        reload_state: Callable[[], tuple[bool, float]],
    ) -> None:
        """`reload_state` gives whether the last (re)load succeeded, and when the last good one was."""
        self._health = health
        self._reload_state = reload_state

    def collect(self) -> Iterable[Metric]:
        build = family("hangscope_exporter_build_info")
        build.add(__version__, platform.python_version(), value=1.0)
        success = family("hangscope_exporter_reader_last_success_timestamp_seconds")
        failures = family("hangscope_exporter_reader_failures_total")
        duration = family("hangscope_exporter_reader_duration_seconds")
        for one in self._health():
            if one.last_success is not None:
                success.add(one.name, value=one.last_success)
            failures.add(one.name, value=float(one.failures))
            duration.add(one.name, value=one.duration_seconds)
        ok, when = self._reload_state()
        reloaded = family("hangscope_exporter_config_last_reload_successful")
        reloaded.add(value=float(ok))
        reload_time = family("hangscope_exporter_config_last_reload_success_timestamp_seconds")
        reload_time.add(value=when)
        return metrics((build, success, failures, duration, reloaded, reload_time))
