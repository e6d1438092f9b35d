"""The snapshotter's command line: the service, the agent, and what works without either."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from exporter import webconfig
from exporter.procfs import ProcFS
from exporter.ranks import RankFinder
from exporter.yamlconfig import ConfigError
from snapshotter import __version__, analyze, app, config
from snapshotter.bundle.schema import CaptureRequest
from snapshotter.capture.facts import look
from snapshotter.capture.node import Progress as Step
from snapshotter.capture.node import capture_node
from snapshotter.capture.pyspy import PySpy, PySpyMissing
from snapshotter.config import Config
from snapshotter.errors import SnapshotterError
from snapshotter.stacks import report
from snapshotter.stacks.model import JobCapture, NodeAnswer
from snapshotter.tasks import Progress
from snapshotter.web.auth import Auth, TokenFile

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Exit status: 0; 1 for an error said on stderr; 2 where nothing could be analysed."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper() if "log_level" in options else "WARNING",
        format="time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s",
    )
    try:
        return int(options.run(options))
    except (ConfigError, SnapshotterError, PySpyMissing) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hangscope-snapshotter",
        description="Takes the stacks of every process of a training job, merges them and says which rank "
        "is to blame and what it is doing.",
    )
    parser.add_argument("--version", action="version", version=f"hangscope-snapshotter {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    serve = commands.add_parser("serve", help="the service: webhook, captures, report pages, metrics")
    _add_config_flag(serve)
    _add_serving_flags(serve, port=11029)
    serve.add_argument(
        "--web.external-url",
        dest="external_url",
        metavar="URL",
        help="under which people reach this service; goes into alerts and links (http://localhost:PORT)",
    )
    serve.add_argument(
        "--storage.path",
        dest="storage",
        type=Path,
        default=Path("/var/lib/hangscope"),
        metavar="FOLDER",
        help="captures, their index and the queue (%(default)s)",
    )
    serve.set_defaults(run=_serve)

    check = commands.add_parser("check-config", help="check a configuration file")
    check.add_argument("file", type=Path)
    check.set_defaults(run=_check_config)

    analysis = commands.add_parser(
        "analyze",
        help="turn a bundle, or a folder of py-spy dumps, into a report",
        description="Analyse a capture's bundle, or a folder of `py-spy dump --json` files named "
        "[NODE-]rank-<N>.json and [NODE-]rank-<N>.dataloader-<K>.json (a second sample in second/), gathered "
        "by srun, pdsh or any other means.",
    )
    analysis.add_argument("path", type=Path, metavar="PATH", help="bundle or folder")
    analysis.add_argument(
        "--format",
        choices=("json", "text", "html", "folded", "speedscope"),
        default="text",
        help="(%(default)s)",
    )
    analysis.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead of printing")
    analysis.set_defaults(run=_analyze)
    return parser


def _add_config_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config.file", dest="config", type=Path, metavar="FILE", help="YAML; works without one"
    )


def _add_serving_flags(parser: argparse.ArgumentParser, *, port: int) -> None:
    parser.add_argument(
        "--web.listen-address",
        dest="listen",
        default=f"127.0.0.1:{port}",
        metavar="ADDRESS",
        help="where to listen: :PORT, HOST:PORT or [IPV6]:PORT (%(default)s)",
    )
    parser.add_argument(
        "--web.config.file",
        dest="web_config",
        type=Path,
        metavar="FILE",
        help="TLS and basic auth, in the form of Prometheus's exporter-toolkit",
    )
    parser.add_argument(
        "--web.token-file",
        dest="token_file",
        type=Path,
        metavar="FILE",
        help="bearer token that every request which changes something must carry",
    )
    parser.add_argument(
        "--path.procfs",
        dest="procfs",
        type=Path,
        default=Path("/proc"),
        metavar="FOLDER",
        help="where the node's /proc is mounted (%(default)s)",
    )
    parser.add_argument(
        "--log.level",
        dest="log_level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="(%(default)s)",
    )


def _serve(options: argparse.Namespace) -> int:
    state = _State(options)
    running = app.start(
        lambda: state.config,
        options.storage,
        capture=_LocalCapture(ProcFS(options.procfs), lambda: state.config),
        analyse=_analyse,
        auth=state.auth,
        external_url=state.external_url,
        reload=state.reload,
    )
    try:
        return _run_server(app.create_app(running.services), state)
    finally:
        running.stop()


class _State:
    """What a reload replaces: the configuration and the web configuration. Raises ConfigError."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.config = config.load(options.config)
        self.web = webconfig.load(options.web_config)
        token = TokenFile(options.token_file) if options.token_file else None
        self.auth = Auth(token, basic_auth=lambda: bool(self.web.basic_auth_users))
        self._gate: webconfig.Gate | None = None
        port = webconfig.parse_address(options.listen)[1]
        scheme = "https" if self.web.tls_server_config else "http"
        self.external_url = options.external_url or f"{scheme}://localhost:{port}"

    @property
    def options(self) -> argparse.Namespace:
        return self._options

    def gate(self, inner: webconfig.WsgiApp) -> webconfig.Gate:
        """The middleware that the next reloads keep up to date."""
        self._gate = webconfig.Gate(inner, self.web)
        return self._gate

    def reload(self) -> None:
        """Read both files again; where one is bad, both old ones stay in force. Raises ConfigError."""
        fresh, web = config.load(self._options.config), webconfig.load(self._options.web_config)
        self.config, self.web = fresh, web
        if self._gate is not None:
            self._gate.replace(web)


def _run_server(wsgi: webconfig.WsgiApp, state: _State) -> int:
    """Serve until SIGINT or SIGTERM; SIGHUP reloads."""
    server = webconfig.server(state.gate(wsgi), state.options.listen, state.web, state.options.web_config)
    webconfig.bind(server)
    signal.signal(signal.SIGHUP, lambda *_: _reload_or_log(state))
    signal.signal(signal.SIGTERM, _interrupt)
    log.info("listening on %s:%s", *server.bind_addr[:2])
    try:
        server.serve()
    except KeyboardInterrupt:
        pass
    finally:
        server.stop()
    return 0


def _reload_or_log(state: _State) -> None:
    try:
        state.reload()
    except ConfigError as error:
        log.error("the old configuration stays in force: %s", error)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _node_name() -> str:
    return os.environ.get("NODE_NAME") or socket.gethostname()


class _LocalCapture:
    """Captures a job's processes on this node."""

    def __init__(self, procfs: ProcFS, settings: Callable[[], Config]) -> None:
        self._procfs = procfs
        self._settings = settings
        self._finder = RankFinder(procfs, node=_node_name())
        self._pyspy = PySpy(lambda pid: look(procfs, pid))

    def __call__(self, request: CaptureRequest, progress: Progress) -> tuple[NodeAnswer, ...]:
        settings = self._settings().capture

        def tell(step: Step) -> None:
            progress(f"{step.node}: {step.stage}: {step.done} of {step.total} processes")

        return (
            capture_node(
                self._finder.scan,
                self._procfs,
                self._pyspy,
                node=_node_name(),
                job_id=request.job_id,
                interval=settings.sample_interval,
                at_once=settings.processes_at_once,
                progress=tell,
            ),
        )


def _analyse(capture: JobCapture, at: float) -> dict[str, Any]:
    return report.to_json(report.analyse(capture, at=at))


def _check_config(options: argparse.Namespace) -> int:
    config.load(options.file)
    print(f"{options.file}: good")
    return 0


def _analyze(options: argparse.Namespace) -> int:
    return analyze.run(options.path, format=options.format, output=options.output)
