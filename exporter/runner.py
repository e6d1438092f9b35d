"""Runs the collectors of one scrape side by side; one that fails or is slow loses its own families alone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from prometheus_client.metrics_core import Metric

from exporter.metrics import family, metrics

log = logging.getLogger(__name__)

DEADLINE_SECONDS = 5.0
"""Half of Prometheus's default scrape timeout: what is there by then is the scrape."""


class Collector(Protocol):
    """Turns published data into families. Never blocks: readers in the background do the reading."""

    @property
    def name(self) -> str: ...

    def collect(self) -> Iterable[Metric]: ...


class Runner:
    """The one custom collector of the exporter's registry."""

    def __init__(self, collectors: Sequence[Collector], *, deadline: float = DEADLINE_SECONDS) -> None:
        self._collectors = tuple(collectors)
        self._deadline = deadline
        # Two scrapes may run at once (HA pairs of Prometheus), hence two threads a collector.
        self._pool = ThreadPoolExecutor(max(1, 2 * len(self._collectors)), thread_name_prefix="collector")
        self._late: dict[str, Future[_Result]] = {}
        self._late_lock = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registration does not scrape."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All families of this scrape, then how each collector fared."""
        duration = family("hangscope_exporter_collector_duration_seconds")
        success = family("hangscope_exporter_collector_success")
        running = {one.name: self._start(one) for one in self._collectors}
        wait([future for future in running.values() if future is not None], timeout=self._deadline)
        for name, future in running.items():
            result = self._result(name, future)
            yield from result.families
            duration.add(name, value=result.seconds)
            success.add(name, value=float(result.ok))
        yield from metrics((duration, success))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self, collector: Collector) -> Future[_Result] | None:
        """None where the collector still hangs in an earlier scrape: another thread would hang as well."""
        with self._late_lock:
            late = self._late.get(collector.name)
            if late is not None and not late.done():
                return None
            self._late.pop(collector.name, None)
        return self._pool.submit(_run, collector)

    def _result(self, name: str, future: Future[_Result] | None) -> _Result:
        if future is not None and future.done():
            return future.result()
        if future is not None:
            with self._late_lock:
                self._late[name] = future
            log.warning("collector %s was too slow for this scrape", name)
        return _Result((), self._deadline, False)


class _Result:
    __slots__ = ("families", "ok", "seconds")

    def __init__(self, families: tuple[Metric, ...], seconds: float, ok: bool) -> None:
        self.families = families
        self.seconds = seconds
        self.ok = ok


def _run(collector: Collector) -> _Result:
    started = time.monotonic()
    try:
        families = tuple(collector.collect())
    except Exception:
        log.exception("collector %s failed; its metrics are missing from this scrape", collector.name)
        return _Result((), time.monotonic() - started, False)
    return _Result(families, time.monotonic() - started, True)
