"""The running exporter: readers in the background, collectors over what they publish, the landing page.

Here is decided which reader feeds which collector; nothing here reads or parses anything.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry

from exporter import config as configuration
from exporter import gpus, landing
from exporter.background import Background, Health
from exporter.collectors.identity import IdentityCollector
from exporter.collectors.iteration import IterationCollector
from exporter.collectors.nccl import NcclCollector
from exporter.collectors.process import ProcessCollector
from exporter.collectors.self import SelfCollector
from exporter.config import Config
from exporter.gpus import GpuReader
from exporter.logs.watcher import LogWatcher
from exporter.nccl.watcher import NcclWatcher
from exporter.procfs import ProcFS
from exporter.ranks import RankFinder, Scan
from exporter.runner import Runner
from exporter.sampler import ProcessSampler
from exporter.server import Section, create_app
from exporter.webconfig import WsgiApp
from exporter.yamlconfig import ConfigError

log = logging.getLogger(__name__)

SCAN_SECONDS = 1.0
LOG_SECONDS = 0.5
SAMPLE_SECONDS = 1.0
GPU_SECONDS = 30.0
NCCL_SECONDS = 5.0
"""How often the NCCL reader looks whether a job is due; how often a job is asked is configured."""


NEEDED = ("scan", "logs", "processes")
"""Without these readers the exporter is not ready; a driver or RAS in trouble may block the others."""


def node_name(config: Config) -> str:
    """The node's name: configured, from the downward API's NODE_NAME, or the host name."""
    return config.node_name or os.environ.get("NODE_NAME") or socket.gethostname()


class Service:
    """Everything between the configuration file and the WSGI application. Raises ConfigError."""

    def __init__(self, config_path: Path | None, procfs_path: Path) -> None:
        self._config_path = config_path
        self._procfs = ProcFS(procfs_path)
        self._config = configuration.load(config_path)
        self._good_since = time.time()
        self._reload_ok = True
        self._reload: Callable[[], None] = self.reload
        self._node = node_name(self._config)
        self._gpus = GpuReader(gpus.load())
        self._finder = RankFinder(
            self._procfs,
            node=self._node,
            job_id=self._config.identity.job_id,
            gpus=lambda: self._gpus.latest,
        )
        self._finder.poll()  # so that nobody sees a node without jobs for a moment
        if denied := self.scan().denied:
            log.warning(
                "Python processes of other users that cannot be looked into: %d; ranks among them are not seen: run "
                "as root, or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
                denied,
            )
        self._logs = LogWatcher(self._config, self._procfs, self.scan)
        self._sampler = ProcessSampler(self._procfs, self.scan)
        self._nccl = NcclWatcher(self._config.nccl, self._procfs, self.scan)
        self._readers = (
            Background("scan", self._finder.poll, SCAN_SECONDS),
            Background("logs", self._logs.poll, LOG_SECONDS),
            Background("processes", self._sampler.poll, SAMPLE_SECONDS),
            Background("gpus", self._gpus.poll, GPU_SECONDS),
            Background("nccl", self._nccl.poll, NCCL_SECONDS),
        )
        registry = CollectorRegistry()
        self._runner = Runner(
            (
                IterationCollector(lambda: self._logs.latest),
                ProcessCollector(lambda: self._sampler.latest),
                IdentityCollector(self.scan),
                NcclCollector(lambda: self._nccl.latest),
                SelfCollector(self._health, lambda: (self._reload_ok, self._good_since)),
            )
        )
        registry.register(self._runner)
        self.app: WsgiApp = create_app(
            registry,
            node=self._node,
            sections=self._sections,
            ready=lambda: all(one.last_success is not None for one in self._health() if one.name in NEEDED),
            reload=self._reload_counted,
        )

    def scan(self) -> Scan:
        """The training processes of the node as they were last found."""
        return self._finder.latest

    def start(self) -> None:
        for reader in self._readers:
            reader.start()

    def stop(self) -> None:
        for reader in self._readers:
            reader.stop()
        self._runner.close()

    def on_reload(self, reload: Callable[[], None]) -> None:
        """What POST /-/reload calls: `reload` of this service, with whatever else the program re-reads."""
        self._reload = reload

    def reload(self) -> None:
        """Read the configuration again; a bad file raises ConfigError and leaves the old one in force."""
        config = configuration.load(self._config_path)
        self._finder.configure(config.identity.job_id)
        self._logs.configure(config)
        self._nccl.configure(config.nccl)

    def reload_or_log(self) -> None:
        """The same for SIGHUP, where nobody waits for an answer."""
        try:
            self._reload_counted()
        except ConfigError as error:
            log.error("the old configuration stays in force: %s", error)

    def _reload_counted(self) -> None:
        try:
            self._reload()
        except ConfigError:
            self._reload_ok = False
            raise
        self._reload_ok, self._good_since = True, time.time()

    def _health(self) -> tuple[Health, ...]:
        return tuple(reader.health for reader in self._readers)

    def _sections(self) -> Iterable[Section]:
        yield landing.logs(self._logs.latest, time.time())
        yield landing.processes(self._sampler.latest)
        yield landing.nccl(self._nccl.latest)
        yield landing.readers(self._health(), time.time())
