"""The exporter's command line: `serve`, and the tools by which a user sees what the exporter understands."""

from __future__ import annotations

import argparse
import logging
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from exporter import __version__, commandline, config, listranks, procfs, webconfig
from exporter.logs import check as check_log
from exporter.nccl import check as check_nccl
from exporter.procfs import ProcFS
from exporter.ranks import RankFinder
from exporter.service import Service, node_name

_RIGHTS = "Other users' processes are seen by root alone, or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH."
_OPEN_FILES = 4 * procfs.MOST_KEPT_OPEN


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0, 1 for an error said on stderr, 2 where nothing was understood."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version")):
        words.insert(0, "serve")
    return commandline.run(_parser().parse_args(words), OSError, log_level="info")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hangscope-exporter",
        description="Prometheus exporter for the training processes of one node: age of the last logged "
        "iteration, what each rank waits for, NCCL communicator status. Without a command it serves.",
        epilog="Try list-ranks and check-log FILE first: do they see your job and understand its log?",
    )
    parser.add_argument("--version", action="version", version=f"hangscope-exporter {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    serve = commands.add_parser(
        "serve",
        help="serve the metrics of this node (the default)",
        description="Serves /metrics for Prometheus, and at / a page that says what is seen of each job and log "
        f"of this node, which limit holds and what is missing. {_RIGHTS} SIGHUP or POST /-/reload reads the "
        "configuration again.",
    )
    _add_node_flags(serve)
    commandline.add_web_flags(serve, listen=":11028")
    commandline.add_log_flag(serve)
    serve.set_defaults(run=_serve)

    log = commands.add_parser(
        "check-log",
        help="say what is understood of a training log",
        description="Reads logs from their beginning as the exporter would: framework, iterations, whether "
        "training goes on. Exit status 1 where one cannot be read.",
        epilog="example: hangscope-exporter check-log --explain train.log",
    )
    log.add_argument("paths", nargs="+", type=Path, metavar="FILE", help="log files, or folders of them")
    log.add_argument("--format", choices=("text", "json"), default="text", help="(%(default)s)")
    log.add_argument("--records", action="store_true", help="list every iteration record as well")
    log.add_argument("--explain", action="store_true", help="say why records that nearly matched did not")
    log.set_defaults(run=_check_log)

    nccl = commands.add_parser(
        "check-nccl",
        help="read a RAS answer as the exporter would; prints JSON",
        description="An answer that was saved is only read. A service is asked at once, whatever its version: "
        "from 2.26 to 2.28.6 a question can crash the job (docs/nccl.md). Exit status 2 where nothing was "
        "understood.",
        epilog="example: hangscope-exporter check-nccl localhost:28028",
    )
    nccl.add_argument("target", metavar="FILE|HOST:PORT", help="a saved answer, or a RAS service to ask once")
    nccl.set_defaults(run=_check_nccl)

    check = commands.add_parser(
        "check-config",
        help="check a configuration file",
        description="Prints that the file is good, or the key that is wrong and what to write; exit status 1 then.",
    )
    check.add_argument("file", type=Path, metavar="FILE", help="what serve is given as --config.file")
    check.set_defaults(run=_check_config)

    ranks = commands.add_parser(
        "list-ranks",
        help="list the training processes seen on this node",
        description="Prints the ranks of each job with their DataLoader workers and launchers, and the Python "
        f"processes that are nearly ranks, with the reason. {_RIGHTS} Exit status 2 where nothing trains.",
    )
    _add_node_flags(ranks)
    ranks.add_argument("--format", choices=("table", "json"), default="table", help="(%(default)s)")
    ranks.set_defaults(run=_list_ranks)
    return parser


def _add_node_flags(parser: argparse.ArgumentParser) -> None:
    commandline.add_config_flag(parser)
    commandline.add_procfs_flag(parser)


def _serve(options: argparse.Namespace) -> int:
    _allow_more_files()
    service = Service(options.config, options.procfs)
    web = webconfig.load(options.web_config)
    gate = webconfig.Gate(service.app, web)

    def reload() -> None:
        read = webconfig.load(options.web_config)  # before anything is put in force: all or nothing
        service.reload()
        gate.replace(read)

    service.on_reload(reload)
    server = webconfig.server(gate, options.listen, web, options.web_config)
    webconfig.bind(server)
    signal.signal(signal.SIGHUP, lambda *_: service.reload_or_log())
    signal.signal(signal.SIGTERM, lambda *_: _interrupt())
    service.start()
    logging.getLogger(__name__).info("listening on %s:%s", *server.bind_addr[:2])
    try:
        server.serve()
    except KeyboardInterrupt:
        pass
    finally:
        server.stop()
        service.stop()
    return 0


def _allow_more_files() -> None:
    """The usual soft limit is for programs that use select; a file of each watched thread is kept open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _interrupt() -> None:
    raise KeyboardInterrupt


def _check_log(options: argparse.Namespace) -> int:
    return check_log.run(
        options.paths,
        as_json=options.format == "json",
        records=options.records,
        explain=options.explain,
        out=sys.stdout,
    )


def _check_nccl(options: argparse.Namespace) -> int:
    return check_nccl.run(options.target, out=sys.stdout)


def _check_config(options: argparse.Namespace) -> int:
    config.load(options.file)
    print(f"{options.file}: good")
    return 0


def _list_ranks(options: argparse.Namespace) -> int:
    settings = config.load(options.config)
    finder = RankFinder(ProcFS(options.procfs), node=node_name(settings), job_id=settings.identity.job_id)
    return listranks.run(finder.scan(), as_json=options.format == "json", out=sys.stdout)
