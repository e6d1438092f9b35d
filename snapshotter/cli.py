"""The snapshotter's command line: the service, the agent, and what works without either."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from exporter import commandline
from exporter.procfs import ProcFS
from snapshotter import __version__, analysis, analyze, config, oneshot
from snapshotter.capture.pyspy import PySpyMissing
from snapshotter.errors import SnapshotterError

if TYPE_CHECKING:
    from snapshotter import serving


_AS_THE_SERVICE = "Give it the service's --config.file and --storage.path; it may run beside the service."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Exit status: 0; 1 for an error said on stderr; 2 where nothing could be analysed."""
    options = _parser().parse_args(arguments)
    errors = (SnapshotterError, PySpyMissing, oneshot.CannotCapture, OSError)
    return commandline.run(options, *errors, log_level="warning")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hangscope-snapshotter",
        description="Takes the stacks of every process of a training job, merges them and says which rank "
        "is to blame and what it is doing.",
        epilog="A job hangs now and nothing is set up: capture -o report.html, as root, on its node.",
    )
    parser.add_argument("--version", action="version", version=f"hangscope-snapshotter {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    serve = commands.add_parser(
        "serve",
        help="the service: webhook, captures, report pages, metrics",
        description="Alertmanager's webhook posts to /api/v1/alerts; the job is captured by the agents of its nodes, "
        "or on this node where neither --prometheus.url nor agents.nodes names any; pages, API and /metrics show "
        "what came of it. To be reached from other machines it wants a token, a password or client certificates.",
        epilog="a token: (umask 077; openssl rand -hex 32 > FILE)",
    )
    commandline.add_config_flag(serve)
    _add_storage_flag(serve)
    _add_serving_flags(serve, port=11029)
    serve.add_argument(
        "--web.external-url",
        dest="external_url",
        metavar="URL",
        help="under which people reach this service; goes into alerts and links (http://localhost:PORT)",
    )
    serve.add_argument(
        "--prometheus.url",
        dest="prometheus_url",
        metavar="URL",
        help="the Prometheus that scrapes the exporters: says on which nodes a job runs (prometheus.url)",
    )
    serve.add_argument(
        "--web.open-to-everyone",
        dest="open_to_everyone",
        action="store_true",
        help="listen beyond this machine although neither a token nor a password protects the service",
    )
    serve.set_defaults(run=_serve)

    agent = commands.add_parser(
        "agent",
        help="the privileged part on each node: captures on request",
        description="Answers GET /api/v1/ranks and POST /api/v1/capture, both with the bearer token. Needs "
        "root, or CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, to read other users' processes.",
    )
    commandline.add_config_flag(agent)
    _add_serving_flags(agent, port=11030)
    agent.set_defaults(run=_agent)

    capture = commands.add_parser(
        "capture",
        help="capture a job of this node now, without any server",
        description="Take the stacks of every process of a job on this node (or through agents), analyse "
        "them and write a bundle or one self-contained page. As root, or as the job's user where the kernel "
        "lets him (kernel.yama.ptrace_scope 0). Exit status 2 where no process was found.",
        epilog="example: hangscope-snapshotter capture -o report.html",
    )
    commandline.add_config_flag(capture)
    commandline.add_procfs_flag(capture)
    oneshot.add_arguments(capture)
    capture.set_defaults(run=_capture)

    _add_analyze(
        commands.add_parser("analyze", help="turn a bundle, or a folder of py-spy dumps, into a report")
    )

    gc = commands.add_parser(
        "gc",
        help="delete captures that are too old or too much (the service does so itself)",
        description=f"Deletes what storage.keep and storage.max_size no longer allow. {_AS_THE_SERVICE}",
    )
    commandline.add_config_flag(gc)
    _add_storage_flag(gc)
    gc.set_defaults(run=_gc)

    reindex = commands.add_parser(
        "reindex",
        help="rebuild the index of captures from the bundles",
        description="For an index that was lost or damaged, or bundles that were copied in. Exit status 1 where "
        f"bundles are damaged and left out. {_AS_THE_SERVICE}",
    )
    commandline.add_config_flag(reindex)
    _add_storage_flag(reindex)
    reindex.set_defaults(run=_reindex)

    check = commands.add_parser(
        "check-config",
        help="check a configuration file",
        description="Prints that the file is good, or the key that is wrong and what to write; exit status 1 then.",
    )
    check.add_argument(
        "file", type=Path, metavar="FILE", help="what serve or agent is given as --config.file"
    )
    check.set_defaults(run=_check_config)
    return parser


def _add_analyze(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Analyse a capture's bundle, or a folder of `py-spy dump --json` files named [NODE-]rank-<N>.json "
        "and [NODE-]rank-<N>.dataloader-<K>.json (a second sample in second/), gathered by srun, pdsh or any "
        "other means. Exit status 2 where nothing could be analysed."
    )
    parser.epilog = "example: hangscope-snapshotter analyze DUMPS --format html -o report.html"
    commandline.add_config_flag(parser)
    parser.add_argument(
        "path", nargs="?", type=Path, metavar="PATH", help="bundle, zip of one, or folder of dumps"
    )
    parser.add_argument(
        "--format",
        choices=("json", "text", "html", "folded", "speedscope"),
        default="text",
        help="(%(default)s)",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead of printing")
    parser.add_argument(
        "--compare",
        type=Path,
        nargs="+",
        default=[],
        metavar="PATH",
        help="say what changed from the first PATH to the second",
    )
    parser.set_defaults(run=_analyze, refuse=parser.error)


def _add_storage_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--storage.path",
        dest="storage",
        type=Path,
        default=Path("/var/lib/hangscope"),
        metavar="FOLDER",
        help="captures, their index and the queue (%(default)s)",
    )


def _add_serving_flags(parser: argparse.ArgumentParser, *, port: int) -> None:
    commandline.add_web_flags(parser, listen=f"127.0.0.1:{port}")
    parser.add_argument(
        "--web.token-file",
        dest="token_file",
        type=Path,
        metavar="FILE",
        help="bearer token that every request which changes something must carry",
    )
    commandline.add_procfs_flag(parser)
    commandline.add_log_flag(parser)


# Index, queue and pages take a second to load, so that only those commands do that need them.


def _serve(options: argparse.Namespace) -> int:
    from snapshotter import serving

    return serving.serve(
        _web(options),
        storage=options.storage,
        external_url=options.external_url,
        prometheus_url=options.prometheus_url,
        open_to_everyone=options.open_to_everyone,
    )


def _agent(options: argparse.Namespace) -> int:
    from snapshotter import serving

    return serving.agent(_web(options))


def _web(options: argparse.Namespace) -> serving.Web:
    from snapshotter import serving

    return serving.Web(
        config=options.config,
        listen=options.listen,
        web_config=options.web_config,
        token_file=options.token_file,
        procfs=options.procfs,
    )


def _capture(options: argparse.Namespace) -> int:
    from snapshotter import serving

    return oneshot.run(
        oneshot.wanted(options),
        config.load(options.config),
        node=serving.node_name(),
        procfs=ProcFS(options.procfs),
        read_token=serving.read_token,
    )


def _analyze(options: argparse.Namespace) -> int:
    paths = ([] if options.path is None else [options.path]) + options.compare
    if len(paths) != (2 if options.compare else 1):
        options.refuse("give one PATH, or two to compare: PATH --compare PATH")
    chosen = analysis.analyser(config.load(options.config).analysis, options.config)
    return analyze.run(
        paths[0],
        format=options.format,
        output=options.output,
        compare=paths[1] if options.compare else None,
        knowledge=chosen.knowledge,
        sizes=chosen.sizes,
    )


def _gc(options: argparse.Namespace) -> int:
    from snapshotter import maintenance

    return maintenance.gc(config.load(options.config), options.storage, now=time.time, out=sys.stdout)


def _reindex(options: argparse.Namespace) -> int:
    from snapshotter import maintenance

    return maintenance.reindex(config.load(options.config), options.storage, out=sys.stdout)


def _check_config(options: argparse.Namespace) -> int:
    analysis.analyser(config.load(options.file).analysis, options.file)
    print(f"{options.file}: good")
    return 0
