"""Errors that nobody foresaw: each stops its own log or search alone, is counted, said once, and got over."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from exporter import landing
from exporter.collectors.iteration import IterationCollector
from exporter.config import Config, LogConfig
from exporter.logs import watcher as watcher_module
from exporter.logs.discovery import Discovery, Found, Search
from exporter.logs.files import Files
from exporter.logs.reading import Reading
from exporter.logs.userpattern import UserPattern
from exporter.logs.watcher import LogWatcher
from exporter.logs.wrappers import Record
from exporter.procfs import ProcFS
from exporter.ranks import Scan

PROC = ProcFS(Path("/proc"))


class Poisoned(UserPattern):
    """A pattern's reader with a fault: some records break it."""

    def read(self, record: Record) -> Reading | None:
        if "poison" in record.text:
            raise ZeroDivisionError("poisoned record")
        return super().read(record)


class BrokenFiles(Files):
    """A file system with a fault of a kind that is no OSError."""

    broken = False

    def status(self, descriptor: int) -> os.stat_result:
        if self.broken and os.readlink(f"/proc/self/fd/{descriptor}").endswith("a.log"):
            raise RuntimeError("no such luck")
        return super().status(descriptor)


class BrokenDiscovery(Discovery):
    """A search with a fault, for one configured path or for the processes."""

    broken = ""

    def configured(self, entry: LogConfig) -> tuple[Found, ...]:
        if self.broken and self.broken in entry.path:
            raise LookupError("broken search")
        return super().configured(entry)

    def search(self, configured: Iterable[Found], scan: Scan, now: float) -> Search:
        if self.broken == "<processes>":
            raise LookupError("broken search")
        return super().search(configured, scan, now)


class Node:
    def __init__(self, folder: Path, **options: object) -> None:
        self.now = time.time()
        self.scan_fails = False
        for name in ("a.log", "b.log"):
            (folder / name).touch()
        self.folder = folder
        entries = (
            LogConfig(path=f"{folder}/a.log", job_id="a", pattern=r"tick (?P<iteration>\d+)"),
            LogConfig(path=f"{folder}/b.log", job_id="b"),
        )
        self.watcher = LogWatcher(
            Config(logs=entries),
            PROC,
            self._scan,
            now=lambda: self.now,
            patience=60.0,  # nothing hangs here, however busy the machine is
            **options,  # type: ignore[arg-type]
        )

    def _scan(self) -> Scan:
        if self.scan_fails:
            raise LookupError("no scan")
        return Scan(self.now, "node", ())

    def write(self, a: str, b: str) -> None:
        for name, text in (("a.log", a), ("b.log", b)):
            with (self.folder / name).open("a") as stream:
                stream.write(text)
            os.utime(self.folder / name, (self.now + 3, self.now + 3))

    def poll(self) -> dict[str, int | None]:
        self.now += 3
        self.watcher.poll()
        return {one.log: one.last_iteration for one in self.watcher.latest.logs}

    def value(self, name: str, **labels: str) -> float | None:
        registry = CollectorRegistry()
        registry.register(IterationCollector(lambda: self.watcher.latest, lambda: self.now))
        return registry.get_sample_value(name, labels)

    def notes(self) -> tuple[str, ...]:
        return landing.logs(self.watcher.latest, self.now).notes


def _iterations(first: int, last: int, word: str) -> str:
    return "".join(f"{word} {number} loss 2.5\n" for number in range(first, last + 1))


def _errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]


def test_a_record_at_which_a_reader_fails_is_left_out_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watcher_module, "UserPattern", Poisoned)
    node = Node(tmp_path)
    node.poll()
    node.write(
        "tick 1\npoison\ntick 2\npoison\ntick 3\n" + "filler\n" * 1000 + "tick 4\n", _iterations(1, 5, "step")
    )
    assert node.poll() == {"a.log": 4, "b.log": 5}
    assert node.value("training_log_reading_failures_total", job_id="a", log="a.log") == 2
    assert node.value("training_log_reading_failures_total", job_id="b", log="b.log") == 0
    assert node.value("training_log_readable", job_id="a", log="a.log") == 1
    assert len(_errors(caplog)) == 1
    assert [note for note in node.notes() if "poisoned record" in note and "2 records" in note]
    node.write("tick 5\n", _iterations(6, 6, "step"))
    assert node.poll() == {"a.log": 5, "b.log": 6}


def test_a_read_that_fails_stops_its_own_log_until_it_works_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = BrokenFiles()
    node = Node(tmp_path, files=files)
    node.poll()
    node.write("tick 1\n", _iterations(1, 5, "step"))
    assert node.poll() == {"a.log": 1, "b.log": 5}
    files.broken = True
    node.write("tick 2\n", _iterations(6, 6, "step"))
    for _ in range(3):
        assert node.poll() == {"a.log": 1, "b.log": 6}
    assert node.value("training_log_reading_failures_total", job_id="a", log="a.log") == 3
    assert len(_errors(caplog)) == 1
    files.broken = False
    assert node.poll() == {"a.log": 2, "b.log": 6}


@pytest.mark.parametrize("broken", ["a.log", "<processes>"])
def test_a_search_that_fails_keeps_what_was_found(
    tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    discovery = BrokenDiscovery(PROC)
    node = Node(tmp_path, discovery=discovery)
    node.poll()
    discovery.broken = broken
    node.write("tick 1\n", _iterations(1, 5, "step"))
    for _ in range(3):
        assert node.poll() == {"a.log": 1, "b.log": 5}
    assert node.value("training_log_searches_failing") == 1
    assert len(_errors(caplog)) == 1
    assert [note for note in node.notes() if "broken search" in note]
    discovery.broken = ""
    node.poll()
    node.poll()
    assert node.value("training_log_searches_failing") == 0
    assert node.notes() == ()


def test_a_search_that_fails_from_the_beginning_hides_no_other_log(tmp_path: Path) -> None:
    discovery = BrokenDiscovery(PROC)
    discovery.broken = "a.log"
    node = Node(tmp_path, discovery=discovery)
    node.poll()
    node.write("tick 1\n", _iterations(1, 5, "step"))
    assert node.poll() == {"b.log": 5}
    discovery.broken = ""
    node.write("tick 2\n", "")
    node.poll()
    assert node.poll()["a.log"] == 2


def test_configured_logs_are_found_while_the_search_of_processes_fails(tmp_path: Path) -> None:
    discovery = BrokenDiscovery(PROC)
    discovery.broken = "<processes>"
    node = Node(tmp_path, discovery=discovery)
    node.poll()
    node.write("tick 1\n", _iterations(1, 5, "step"))
    assert node.poll() == {"a.log": 1, "b.log": 5}


def test_known_logs_are_read_while_the_processes_cannot_be_scanned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path)
    node.poll()
    node.scan_fails = True
    node.write("tick 1\n", _iterations(1, 5, "step"))
    for _ in range(3):
        assert node.poll() == {"a.log": 1, "b.log": 5}
    assert node.value("training_log_searches_failing") == 1
    assert len(_errors(caplog)) == 1
    node.scan_fails = False
    node.poll()
    assert node.value("training_log_searches_failing") == 0
