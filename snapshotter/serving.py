"""The two programs that serve: built from their files and flags, run until a signal, reloaded by another."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from exporter import webconfig
from exporter.procfs import ProcFS
from exporter.yamlconfig import ConfigError
from snapshotter import analysis, app, config
from snapshotter.bundle.schema import CaptureRequest
from snapshotter.capture import agent as agent_app
from snapshotter.capture.job import JobCapturer, check_files
from snapshotter.capture.local import LocalNode, local_node
from snapshotter.capture.node import Progress as Step
from snapshotter.gathered import Gathered
from snapshotter.stacks.premerge import NodeTree
from snapshotter.tasks import Progress
from snapshotter.web.auth import Auth, TokenFile
from snapshotter.web.places import THREADS

log = logging.getLogger(__name__)

_AGENT_THREADS = 10


@dataclass(frozen=True, slots=True)
class Web:
    """The flags that both programs share."""

    config: Path | None
    listen: str
    web_config: Path | None
    token_file: Path | None
    procfs: Path


class Files:
    """The configuration files in force; a reload replaces all or none. Raises ConfigError."""

    def __init__(
        self,
        web: Web,
        *,
        prometheus_url: str | None = None,
        check: Callable[[config.Config], None] = lambda read: None,
    ) -> None:
        """`check` looks at each configuration before it is put in force; it raises ConfigError."""
        self.flags = web
        self._prometheus_url = prometheus_url
        self._check = check
        self._gate: webconfig.Gate | None = None
        self.config, self.analyser, self.web = self._read()

    def reload(self) -> None:
        """Read the files again; where one is bad, the old ones stay in force. Raises ConfigError."""
        self.config, self.analyser, self.web = self._read()
        if self._gate is not None:
            self._gate.replace(self.web)

    def gate(self, wsgi: webconfig.WsgiApp) -> webconfig.Gate:
        """The middleware that reloads keep up to date."""
        self._gate = webconfig.Gate(wsgi, self.web)
        return self._gate

    def _read(self) -> tuple[config.Config, analysis.Analyser, webconfig.WebConfig]:
        read = config.load(self.flags.config)
        if self._prometheus_url is not None:
            prometheus = msgspec.structs.replace(read.prometheus, url=self._prometheus_url)
            read = msgspec.structs.replace(read, prometheus=prometheus)
        self._check(read)
        return (
            read,
            analysis.analyser(read.analysis, self.flags.config),
            webconfig.load(self.flags.web_config),
        )


def serve(
    web: Web,
    *,
    storage: Path,
    external_url: str | None,
    prometheus_url: str | None,
    open_to_everyone: bool,
) -> int:
    """The `serve` command. Raises ConfigError, CannotStore, PySpyMissing."""
    config.check_url(prometheus_url, "--prometheus.url")
    config.check_url(external_url, "--web.external-url")
    files = Files(web, prometheus_url=prometheus_url, check=lambda read: check_files(read, read_token))
    host, port = webconfig.parse_address(web.listen)
    token = TokenFile(web.token_file) if web.token_file is not None else None
    if not (webconfig.is_loopback(host) or token or files.web.authenticates or open_to_everyone):
        raise ConfigError(
            f"--web.listen-address {web.listen} can be reached from other machines, and nothing protects the "
            "service: give --web.token-file, or --web.config.file with a password or client certificates, or say "
            "--web.open-to-everyone"
        )
    local = local_node(node_name(), ProcFS(web.procfs), lambda: files.config.capture)
    watch = agent_app.Watch(local.find, local.memory)
    scheme = "https" if files.web.tls_server_config else "http"
    running = app.start(
        lambda: files.config,
        storage,
        capture=_Capture(JobCapturer(lambda: local, lambda: files.config, read_token)),
        analyse=_Analyse(files),
        auth=Auth(token, basic_auth=lambda: bool(files.web.basic_auth_users)),
        external_url=external_url or f"{scheme}://localhost:{port}",
        reload=files.reload,
    )
    watch.start()
    try:
        return _run(app.create_app(running.services), files, running.services.reload, threads=THREADS)
    finally:
        watch.stop()
        running.stop()


def agent(web: Web) -> int:
    """The `agent` command. Raises ConfigError, PySpyMissing."""
    files = Files(web)
    token = TokenFile(web.token_file) if web.token_file is not None else None
    if token is None and not files.web.authenticates:
        raise ConfigError(
            "--web.token-file is needed: an agent reads processes for whoever has the token, e.g. of "
            "`openssl rand -hex 32 > FILE; chmod 600 FILE`; or a web configuration that asks for a password or a "
            "client certificate"
        )
    local: LocalNode = local_node(node_name(), ProcFS(web.procfs), lambda: files.config.capture)
    watch = agent_app.Watch(local.find, local.memory)
    wsgi = agent_app.create_app(
        node=local.node, find=local.find, capture=local.capture, matches=token.matches if token else None
    )
    watch.start()
    try:
        return _run(wsgi, files, files.reload, threads=_AGENT_THREADS)
    finally:
        watch.stop()


def read_token(path: Path) -> str:
    """The secret in a file, as others want it. Raises ConfigError."""
    return TokenFile(path).token


def node_name() -> str:
    """The node's name: from the downward API's NODE_NAME, or the host name."""
    return os.environ.get("NODE_NAME") or socket.gethostname()


class _Capture:
    """The capture function of the tasks."""

    def __init__(self, capturer: JobCapturer) -> None:
        self._capturer = capturer

    def __call__(self, request: CaptureRequest, progress: Progress) -> tuple[Gathered, ...]:
        newest: dict[str, str] = {}

        def tell(step: Step) -> None:
            newest[step.node] = f"{step.node}: {step.stage}: {step.done} of {step.total}"
            progress("\n".join(newest.values()))

        return self._capturer.capture(
            request.job_id,
            capture_id=request.capture_id,
            reason=request.reason,
            requested_by=request.requested_by,
            progress=tell,
        )


class _Analyse:
    """The analyse function of the tasks, by the configuration in force."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def __call__(self, job_id: str, trees: Iterable[NodeTree], at: float) -> dict[str, Any]:
        return self._files.analyser(job_id, trees, at)


def settle_interpreter() -> None:
    """Before serving: keep Python's own pauses short, as a storm of alerts is to be answered at any time.

    The garbage collector never looks again at what is there by now (0.1 s each time, with all threads stopped).
    Threads take turns more often than every 5 ms: a request takes the interpreter about ten times, and beside a
    long analysis each of them would wait that long (measured: a hundred requests a second, three times as many
    with turns of 0.2 ms).
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(0.0005)


def _run(wsgi: webconfig.WsgiApp, files: Files, reload: Callable[[], None], *, threads: int) -> int:
    """Serve until SIGINT or SIGTERM; SIGHUP reloads."""
    flags = files.flags
    server = webconfig.server(files.gate(wsgi), flags.listen, files.web, flags.web_config, threads=threads)
    webconfig.bind(server)
    signal.signal(signal.SIGHUP, lambda *_: _reload_or_log(reload))
    signal.signal(signal.SIGTERM, _interrupt)
    log.info("listening on %s:%s", *server.bind_addr[:2])
    settle_interpreter()
    try:
        server.serve()
    except KeyboardInterrupt:
        pass
    finally:
        server.stop()
    return 0


def _reload_or_log(reload: Callable[[], None]) -> None:
    try:
        reload()
    except ConfigError as error:
        log.error("the old configuration stays in force: %s", error)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
