"""How the commands of both programs end."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable

import pytest

from exporter import commandline
from exporter.yamlconfig import ConfigError


def ends(command: Callable[[], object]) -> int:
    def run(options: argparse.Namespace) -> int:
        command()
        return 0

    return commandline.run(argparse.Namespace(run=run), OSError, log_level="warning")


def fails(error: BaseException) -> Callable[[], object]:
    def command() -> None:
        raise error

    return command


def test_status_and_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends(lambda: print("done")) == 0
    assert capsys.readouterr() == ("done\n", "")
    assert ends(fails(ConfigError("config.yaml: unknown key"))) == 1
    assert capsys.readouterr() == ("", "error: config.yaml: unknown key\n")
    assert ends(fails(KeyboardInterrupt())) == 130
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ZeroDivisionError):
        ends(fails(ZeroDivisionError()))


@pytest.mark.parametrize("length", [1, 10 * io.DEFAULT_BUFFER_SIZE])
@pytest.mark.parametrize(
    ("reader", "status", "said"),
    [("gone", 141, ""), ("full", 1, "error: [Errno 28] No space left on device\n")],
)
def test_output_that_nobody_takes(
    length: int,
    reader: str,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if reader == "gone":
        other, end = os.pipe()
        os.close(other)
    else:
        end = os.open("/dev/full", os.O_WRONLY)
    with os.fdopen(end, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert ends(lambda: print("x" * length)) == status
    # Closing it, as the interpreter does at the exit, has written the rest nowhere without an error.
    assert capsys.readouterr().err == said
