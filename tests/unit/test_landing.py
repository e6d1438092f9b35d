"""What the exporter's open page says of a command line."""

from __future__ import annotations

import pytest

from exporter.landing import processes, program
from exporter.ranks import Scan
from exporter.sampler import Snapshot


@pytest.mark.parametrize(
    ("command_line", "shown"),
    [
        (("/opt/venv/bin/python3", "-u", "train.py", "--api-key", "S3CRET"), "python3 train.py"),
        (
            ("python", "-m", "torch.distributed.run", "--nproc-per-node=8", "train.py"),
            "python -m torch.distributed.run",
        ),
        (
            ("/usr/bin/python3", "/usr/bin/torchrun", "--rdzv-id", "S3CRET", "train.py"),
            "python3 /usr/bin/torchrun",
        ),
        (("python", "-c", "login(S3CRET)"), "python"),
        (("bash", "-c", "KEY=S3CRET python train.py"), "bash"),
        (("trainer", "--key", "S3CRET"), "trainer"),
        (("trainer", "key=S3CRET"), "trainer"),
        (("python", "-X", "importtime", "train.py"), "python"),
        ((), ""),
    ],
)
def test_only_the_program_is_shown(command_line: tuple[str, ...], shown: str) -> None:
    assert program(command_line) == shown


def test_what_may_not_be_read_is_told_with_the_remedy() -> None:
    unreadable = (("environ", "denied", 3), ("io", "gone", 1))
    notes = processes(Snapshot(1.0, Scan(1.0, "node-a", ()), unreadable=unreadable)).notes
    assert [("CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH" in note) for note in notes] == [True, False]
