"""What the command lines of both programs share: flags named as those of Prometheus's programs, logging, errors."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

from exporter.yamlconfig import ConfigError


def run(options: argparse.Namespace, *errors: type[Exception], log_level: str) -> int:
    """The command that was chosen, `options.run`. One of `errors`, or a bad configuration, is said on stderr: 1.

    Ends as a shell expects, without a word, where Ctrl-C ends it or nobody reads on what it prints. `log_level`
    is that of commands without the flag.
    """
    logging.basicConfig(
        level=getattr(options, "log_level", log_level).upper(),
        format="time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s",
    )
    expected: tuple[type[Exception], ...] = (ConfigError, *errors)
    try:
        _check_procfs(getattr(options, "procfs", None))
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BrokenPipeError:
        status = 128 + signal.SIGPIPE
    except expected as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    try:
        sys.stdout.flush()
    except OSError:  # what is left would be tried again at the exit, and the error be said again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _check_procfs(folder: Path | None) -> None:
    """Only at the start: a mount that goes away later is told by metrics. Raises ConfigError."""
    if folder is not None and not os.path.lexists(folder / "self"):
        raise ConfigError(
            f"--path.procfs {folder}: no /proc is there: name the folder where the node's is mounted"
        )


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config.file", dest="config", type=Path, metavar="FILE", help="YAML; works without one"
    )


def add_procfs_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--path.procfs",
        dest="procfs",
        type=Path,
        default=Path("/proc"),
        metavar="FOLDER",
        help="where the node's /proc is mounted (%(default)s)",
    )


def add_web_flags(parser: argparse.ArgumentParser, *, listen: str) -> None:
    """`listen`: the address unless another is given."""
    parser.add_argument(
        "--web.listen-address",
        dest="listen",
        default=listen,
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


def add_log_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log.level",
        dest="log_level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="(%(default)s)",
    )
