"""The GPU of a process as the driver says it, and a machine without a driver."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable

import pytest

from exporter import gpus
from exporter.gpus import GpuReader


class Driver:
    def __init__(self, running: list[Iterable[int] | Exception]) -> None:
        self._running = running

    def count(self) -> int:
        return len(self._running)

    def processes(self, index: int) -> Iterable[int]:
        answer = self._running[index]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_pids_of_all_gpus_but_the_one_that_fell_off() -> None:
    reader = GpuReader(Driver([[10, 10], RuntimeError("GPU is lost"), [11, 10], []]))
    reader.poll()
    assert reader.latest == {10: "0,2", 11: "2"}


def test_without_a_driver_nothing_is_known() -> None:
    reader = GpuReader(None)
    reader.poll()
    assert reader.latest == {}


def test_missing_extra_and_failing_driver_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus.load() is None
    broken = types.ModuleType("pynvml")

    def fail() -> None:
        raise RuntimeError("Driver Not Loaded")

    broken.nvmlInit = fail  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", broken)
    assert gpus.load() is None


def test_driver_is_asked_as_nvml_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.ModuleType("pynvml")
    process = types.SimpleNamespace(pid=77)
    functions = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: ("handle", index),
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [process] if handle == ("handle", 0) else [],
    }
    for name, function in functions.items():
        setattr(fake, name, function)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    reader = GpuReader(gpus.load())
    reader.poll()
    assert reader.latest == {77: "0"}
