"""Which process runs on which GPU, asked of NVIDIA's driver through NVML; needs the extra `gpu`.

A background reader, as a driver in trouble may block for ever: the rest of the exporter reads `latest` and is
never held up. NVML gives pids of the outermost namespace, so inside a container without hostPID none match.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

log = logging.getLogger(__name__)


class Nvml(Protocol):
    """What is used of NVML."""

    def count(self) -> int:
        """Number of GPUs."""

    def processes(self, index: int) -> Iterable[int]:
        """Pids with a compute context on a GPU. Raises Exception where the driver does not answer."""


class GpuReader:
    """`poll()` asks the driver; `latest` is GPU index by pid, several GPUs joined by commas."""

    def __init__(self, nvml: Nvml | None) -> None:
        """`nvml` is None where there is no driver: then nothing is ever asked."""
        self._nvml = nvml
        self.latest: Mapping[int, str] = {}

    def poll(self) -> None:
        """Ask about every GPU; one that does not answer (it may have fallen off the bus) is left out."""
        if self._nvml is None:
            return
        found: dict[int, list[str]] = {}
        for index in range(self._nvml.count()):
            try:
                pids = set(self._nvml.processes(index))
            except Exception as error:
                log.debug("GPU %d does not say what runs on it: %s", index, error)
                continue
            for pid in pids:
                found.setdefault(pid, []).append(str(index))
        self.latest = {pid: ",".join(indexes) for pid, indexes in found.items()}


class _Driver:
    """NVML by nvidia-ml-py."""

    def __init__(self) -> None:
        import pynvml  # the extra `gpu`

        self._nvml = pynvml
        pynvml.nvmlInit()

    def count(self) -> int:
        return int(self._nvml.nvmlDeviceGetCount())

    def processes(self, index: int) -> Iterable[int]:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        return [one.pid for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)]


def load() -> Nvml | None:
    """NVML of this machine; None without the extra or without a driver, which is said once in the log."""
    try:
        return _Driver()
    except ImportError:
        log.debug("no nvidia-ml-py: GPUs are known by CUDA_VISIBLE_DEVICES alone; install hangscope[gpu]")
    except Exception as error:  # pynvml.NVMLError: no driver, no GPU, no rights
        log.info("NVML cannot be used, GPUs are known by CUDA_VISIBLE_DEVICES alone: %s", error)
    return None
