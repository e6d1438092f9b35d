from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapshotter.capture.kernellog import troubles

NOW, UPTIME = 1_800_000_000.0, 10_000.0  # booted 10,000 s ago


class Device:
    """A FIFO in packet mode: as /dev/kmsg, it gives one record a read and EAGAIN at the end."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self.end = os.open(path, os.O_RDWR)
        fcntl.fcntl(self.end, fcntl.F_SETFL, os.O_RDWR | os.O_DIRECT)
        fcntl.fcntl(self.end, fcntl.F_SETPIPE_SZ, 1 << 20)

    def say(self, seconds_ago: float, text: str) -> None:
        stamp = int((UPTIME - seconds_ago) * 1e6)
        os.write(self.end, f"4,{stamp},{stamp},-;{text}\n SUBSYSTEM=x\n".encode())

    def troubles(self, since: float = 3600.0) -> tuple[str, ...]:
        return troubles(NOW - since, NOW, device=self.path, now=lambda: NOW, uptime=lambda: UPTIME)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    device = Device(tmp_path / "kmsg")
    yield device
    os.close(device.end)


@pytest.mark.parametrize(
    "line",
    [
        "INFO: task python:1234 blocked for more than 122 seconds.",
        "NVRM: Xid (PCI:0000:4e:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
        "nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "nfs: server filer7 not responding, still trying",
        "nfs: server filer7 OK",
        "LustreError: 11-0: lustre-OST0001-osc: operation ost_read to node 10.0.0.1@o2ib failed: rc = -107",
        "libceph: osd3 (1)10.0.0.2:6801 socket closed",
        "Out of memory: Killed process 4242 (python) total-vm:1kB",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)",
        "Memory cgroup out of memory: Killed process 4242 (python)",
        "nvme nvme0: I/O 12 QID 3 timeout, aborting",
        "blk_update_request: I/O error, dev sda, sector 8",
        "mlx5_core 0000:9a:00.0: health compromised - reached miss count: device's health error",
        "python[4242]: segfault at 0 ip 00007f sp 00007f error 4",
        "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:1]",
        "rcu: INFO: rcu_sched self-detected stall on CPU",
        "mce: [Hardware Error]: Machine check events logged",
    ],
)
def test_lines_of_trouble_are_taken_with_their_time(device: Device, line: str) -> None:
    device.say(60, line)
    assert device.troubles() == (f"2027-01-15T07:59:00Z {line}",)


@pytest.mark.parametrize(
    "line",
    [
        "Command line: console=ttyS0 rcupdate.rcu_cpu_stall_cputime=1",
        "EXT4-fs (vda): mounted filesystem r/w without journal. Quota mode: none.",
        "eth0: Link is Up - 10Gbps/Full",
        "NFS: Registering the id_resolver key type",
        "audit: type=1400 audit(1.2:3): apparmor",
    ],
)
def test_other_lines_are_left(device: Device, line: str) -> None:
    device.say(60, line)
    assert device.troubles() == ()


def test_only_the_window_counts_and_the_newest_lines(device: Device) -> None:
    device.say(3700, "nfs: server old not responding")
    for number in range(250):
        device.say(60, f"nfs: server n{number} not responding")
    device.say(-5, "nfs: server later not responding")
    found = device.troubles()
    assert len(found) == 200
    assert found[0].endswith("n50 not responding")
    assert found[-1].endswith("n249 not responding")


def test_what_is_no_record_is_left_out_and_lines_are_bounded(device: Device) -> None:
    os.write(device.end, b"\xff\xfe nonsense")
    device.say(1, "I/O error " + "x" * 5000)
    (line,) = device.troubles()
    assert len(line) < 600


def test_a_log_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    (line,) = troubles(0, NOW, device=tmp_path / "none")
    assert line.startswith("hangscope: the kernel log ")
    assert line.endswith("cannot be read: No such file or directory")
