"""Where a job is asked and whether it may be, on a small /proc of our own."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from exporter.config import NcclConfig
from exporter.nccl.find import Target, find, use_json, version_gate
from exporter.nccl.library import embedded_version, mapped_library
from exporter.nccl.model import Version
from exporter.nccl.ras import Address
from exporter.nccl.sockets import local_addresses, parse_tcp
from exporter.procfs import ProcFS
from exporter.ranks import ProcessId, TrainingProcess

BOOT = 1_700_000_000
TICKS = 100
HOST_NAMESPACE = "net:[4026531840]"


@dataclass
class FakeProcess:
    pid: int
    rank: int | None = 0
    local_rank: int | None = 0
    job_id: str = "job"
    environ: dict[str, str] = field(default_factory=dict)
    library: str | None = "/usr/lib/libnccl.so.2.30.7"
    listens: tuple[str, ...] = ("127.0.0.1:28028",)
    inode: int = 0
    namespace: str = HOST_NAMESPACE
    start_ticks: int = 5000
    state: str = "S"
    ns_pids: tuple[int, ...] = ()
    readable: bool = True


def hex_address(text: str) -> str:
    host, port = text.rsplit(":", 1)
    host = host.strip("[]")
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{int(port):04X}"


def make_proc(root: Path, *processes: FakeProcess) -> tuple[ProcFS, tuple[TrainingProcess, ...]]:
    """A /proc with these processes; each listening socket of a process has inode `inode` or its pid."""
    root.mkdir(parents=True)
    (root / "stat").write_text(f"cpu 0\nbtime {BOOT}\n")
    for one in processes:
        folder = root / str(one.pid)
        for name in ("fd", "ns", "net", "root", "task"):
            (folder / name).mkdir(parents=True)
        fields = [one.state, "1"] + ["0"] * 17 + [str(one.start_ticks)] + ["0"] * 25
        (folder / "stat").write_text(f"{one.pid} (python) {' '.join(fields)}\n")
        ns_pids = " ".join(map(str, one.ns_pids or (one.pid,)))
        (folder / "status").write_text(
            f"Name:\tpython\nState:\tS\nTgid:\t{one.pid}\nPPid:\t1\nUid:\t0 0 0 0\nNSpid:\t{ns_pids}\n"
        )
        if one.readable:
            (folder / "environ").write_bytes(
                b"".join(f"{key}={value}".encode() + b"\0" for key, value in one.environ.items())
            )
        mapped = f"7f0000000000-7f0000100000 r-xp 00000000 fd:00 77 {one.library}\n" if one.library else ""
        (folder / "maps").write_text("55d0-55d1 r-xp 00000000 fd:00 1 /usr/bin/python3\n" + mapped)
        (folder / "ns" / "net").symlink_to(one.namespace)
        if one.listens:
            (folder / "fd" / "7").symlink_to(f"socket:[{one.inode or one.pid}]")
    for one in processes:
        lines = {4: ["  sl  local_address rem_address st"], 6: ["  sl  local_address rem_address st"]}
        for other in processes:
            if other.namespace != one.namespace:
                continue
            for place in other.listens:
                family = 6 if place.startswith("[") else 4
                remote = "[::]:0" if family == 6 else "0.0.0.0:0"
                lines[family].append(
                    f"   0: {hex_address(place)} {hex_address(remote)} 0A 00000000:00000000 00:00000000 "
                    f"00000000     0        0 {other.inode or other.pid} 1 0000000000000000 100 0 0 10 0"
                )
        (root / str(one.pid) / "net" / "tcp").write_text("\n".join(lines[4]) + "\n")
        (root / str(one.pid) / "net" / "tcp6").write_text("\n".join(lines[6]) + "\n")
    training = tuple(
        TrainingProcess(
            id=ProcessId(one.pid, one.start_ticks),
            parent_pid=1,
            job_id=one.job_id,
            role="trainer",
            rank=one.rank,
            local_rank=one.local_rank,
            world_size=8,
            name="python",
            command_line=("python", "train.py"),
            launcher="torchrun",
        )
        for one in processes
    )
    return ProcFS(root, ticks=TICKS), training


def found(
    root: Path, *processes: FakeProcess, config: NcclConfig | None = None, job_id: str = "job"
) -> object:
    procfs, training = make_proc(root / "proc", *processes)
    ours = tuple(one for one in training if one.job_id == job_id)
    return find(procfs, ours, config or NcclConfig())


def target(root: Path, *processes: FakeProcess) -> Target:
    result = found(root, *processes)
    assert isinstance(result, Target)
    return result


def test_the_default_address(tmp_path: Path) -> None:
    one = target(tmp_path, FakeProcess(10, ns_pids=(10, 3)), FakeProcess(11, rank=1, local_rank=1))
    assert one.addresses == (Address("127.0.0.1", 28028),)
    assert one.version == Version(2, 30, 7)
    assert one.listeners == (10, 11)
    assert one.own_pids == {10, 3, 11}
    assert one.started == BOOT + 5000 / TICKS
    assert not one.shared


def test_the_address_of_the_environment(tmp_path: Path) -> None:
    environ = {"NCCL_RAS_ADDR": "trainer-0.internal:4000"}
    one = target(tmp_path, FakeProcess(10, environ=environ, listens=("10.1.2.3:4000", "10.1.2.3:5000")))
    assert one.addresses == (Address("10.1.2.3", 4000),)


def test_ipv6_and_wildcards(tmp_path: Path) -> None:
    listens = ("[::1]:28028", "0.0.0.0:28028")
    one = target(tmp_path, FakeProcess(10, listens=listens))
    assert set(one.addresses) == {Address("::1", 28028), Address("127.0.0.1", 28028)}


def test_another_job_on_the_port_is_noticed(tmp_path: Path) -> None:
    one = target(tmp_path, FakeProcess(10), FakeProcess(20, job_id="other"))
    assert one.shared
    assert one.listeners == (10,)


def test_the_same_port_in_another_network_namespace_is_not_shared(tmp_path: Path) -> None:
    one = target(tmp_path, FakeProcess(10), FakeProcess(20, job_id="other", namespace="net:[1]"))
    assert not one.shared


def test_a_socket_inherited_by_a_worker_is_the_jobs_own(tmp_path: Path) -> None:
    one = target(tmp_path, FakeProcess(10, inode=99), FakeProcess(11, rank=1, local_rank=1, inode=99))
    assert not one.shared


def test_two_jobs_without_an_id_are_ambiguous(tmp_path: Path) -> None:
    assert found(tmp_path, FakeProcess(10, rank=0), FakeProcess(20, rank=0)) == "ambiguous"


def test_one_node_asks(tmp_path: Path) -> None:
    elsewhere = FakeProcess(10, rank=8, local_rank=0)
    assert found(tmp_path / "a", elsewhere) == "other_node"
    procfs, training = make_proc(tmp_path / "b", elsewhere)
    assert isinstance(find(procfs, training, NcclConfig(), any_node=True), Target)


def test_the_node_of_rank_0_goes_on_asking_when_rank_0_is_gone(tmp_path: Path) -> None:
    assert isinstance(found(tmp_path, FakeProcess(11, rank=1, local_rank=1)), Target)


@pytest.mark.parametrize(
    ("process", "skip"),
    [
        (FakeProcess(10, environ={"NCCL_RAS_ENABLE": "0"}), "disabled_by_job"),
        (FakeProcess(10, environ={"NCCL_RAS_ADDR": "somewhere"}), "bad_address"),
        (FakeProcess(10, library=None), "no_nccl"),
        (FakeProcess(10, library="/opt/libnccl-net.so.2"), "no_nccl"),
        (FakeProcess(10, library="/opt/libnccl.so.2"), "unknown_version"),
        (FakeProcess(10, library="/opt/libnccl.so.2.23.4"), "old_version"),
        (FakeProcess(10, library="/opt/libnccl.so.2.26.2"), "unsafe_version"),
        (FakeProcess(10, library="/opt/libnccl.so.2.27.7"), "unsafe_version"),
        (FakeProcess(10, listens=()), "not_listening"),
        (FakeProcess(10, listens=("127.0.0.1:4444",)), "not_listening"),
        (FakeProcess(10, readable=False), "unreadable"),
        (FakeProcess(10, state="D"), "target"),
    ],
)
def test_reasons_not_to_ask(tmp_path: Path, process: FakeProcess, skip: str) -> None:
    result = found(tmp_path, process)
    assert (("target") if isinstance(result, Target) else result) == skip


def test_a_process_in_a_page_fault_is_not_read(tmp_path: Path) -> None:
    procfs, training = make_proc(tmp_path / "proc", FakeProcess(10, state="D"))
    thread = tmp_path / "proc" / "10" / "task" / "10"
    thread.mkdir()
    (thread / "stat").write_text((tmp_path / "proc" / "10" / "stat").read_text())
    (thread / "wchan").write_text("handle_mm_fault")
    assert find(procfs, training, NcclConfig()) == "unreadable"


def test_a_pid_used_again_is_not_read(tmp_path: Path) -> None:
    procfs, training = make_proc(tmp_path / "proc", FakeProcess(10, start_ticks=5000))
    stat = tmp_path / "proc" / "10" / "stat"
    stat.write_text(stat.read_text().replace(" 5000 ", " 6000 "))
    assert find(procfs, training, NcclConfig()) == "unreadable"


def test_one_switch_turns_it_off(tmp_path: Path) -> None:
    assert found(tmp_path, FakeProcess(10), config=NcclConfig(enabled=False)) == "switched_off"


def test_the_configuration_knows_the_version(tmp_path: Path) -> None:
    process = FakeProcess(10, library=None)
    result = found(tmp_path / "a", process, config=NcclConfig(version="2.30.7"))
    assert isinstance(result, Target)
    assert found(tmp_path / "b", process, config=NcclConfig(version="2.26.2")) == "unsafe_version"


@pytest.mark.parametrize(
    ("version", "gate"),
    [
        ((2, 23, 4), "old_version"),
        ((2, 24, 3), None),
        ((2, 25, 1), None),
        ((2, 26, 0), "unsafe_version"),
        ((2, 28, 3), "unsafe_version"),
        ((2, 28, 7), None),
        ((2, 30, 7), None),
        ((3, 0, 0), None),
        (None, "unknown_version"),
    ],
)
def test_version_gate(version: tuple[int, int, int] | None, gate: str | None) -> None:
    known = None if version is None else Version(*version)
    assert version_gate(known, NcclConfig()) == gate
    insisting = version_gate(known, NcclConfig(ask_unsafe_versions=True))
    assert insisting == ("old_version" if gate == "old_version" else None)


def test_which_form_is_asked_for() -> None:
    auto = NcclConfig()
    assert not use_json(Version(2, 24, 3), auto, 0)
    assert not use_json(None, auto, 0)
    assert use_json(Version(2, 28, 9), auto, 1_000_000)  # its text is not sound
    assert use_json(Version(2, 30, 7), auto, 64)
    assert not use_json(Version(2, 30, 7), auto, 1_000_000)  # JSON would leak tens of megabytes a question
    assert not use_json(Version(2, 30, 7), NcclConfig(format="text"), 0)
    assert use_json(Version(2, 24, 3), NcclConfig(format="json"), 0)


def elf(sections: dict[str, bytes]) -> bytes:
    """A little-endian 64-bit ELF file with these sections."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    body, headers, at = b"", [struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)], 64
    for name, data in (*sections.items(), (".shstrtab", names)):
        headers.append(
            struct.pack("<IIQQQQIIQQ", names.index(name.encode()), 1, 0, 0, at, len(data), 0, 0, 1, 0)
        )
        body += data
        at += len(data)
    head = (
        b"\x7fELF\x02\x01"
        + bytes(10)
        + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, at, 0, 64, 0, 0, 64, len(headers), len(headers) - 1)
    )
    return head + body + b"".join(headers)


def test_the_version_inside_the_library(tmp_path: Path) -> None:
    path = tmp_path / "libnccl.so.2"
    constants = b"NCCL version %s, but\0NCCL version 2.27.5+cuda12.9\0more"
    path.write_bytes(elf({".text": b"NCCL version 9.9.9", ".rodata": constants}))
    assert embedded_version(path) == (2, 27, 5)
    for broken in (b"", b"text", elf({".text": constants}), elf({".rodata": constants})[:70]):
        path.write_bytes(broken)
        assert embedded_version(path) is None
    assert embedded_version(tmp_path / "missing") is None


def test_the_library_is_read_in_the_processs_own_file_tree(tmp_path: Path) -> None:
    procfs, _ = make_proc(tmp_path / "proc", FakeProcess(10, library="/venv/libnccl.so.2"))
    inside = tmp_path / "proc" / "10" / "root" / "venv"
    inside.mkdir()
    (inside / "libnccl.so.2").write_bytes(elf({".rodata": b"\0NCCL version 2.29.7+cuda12.9\0"}))
    library = mapped_library(procfs, 10)
    assert library is not None
    assert (library.path, library.version) == ("/venv/libnccl.so.2", (2, 29, 7))  # type: ignore[union-attr]


def test_a_pipe_in_the_place_of_a_library_is_not_waited_for(tmp_path: Path) -> None:
    procfs, _ = make_proc(tmp_path / "proc", FakeProcess(10, library="/venv/libnccl.so.2.30.7"))
    inside = tmp_path / "proc" / "10" / "root" / "venv"
    inside.mkdir()
    os.mkfifo(inside / "libnccl.so.2.30.7")
    library = mapped_library(procfs, 10)
    assert library is not None
    assert library.version == (2, 30, 7)  # type: ignore[union-attr]  # its name says so


def test_a_library_replaced_on_disk_is_read_through_its_mapping(tmp_path: Path) -> None:
    procfs, _ = make_proc(tmp_path / "proc", FakeProcess(10, library="/venv/libnccl.so.2 (deleted)"))
    process = tmp_path / "proc" / "10"
    (process / "root" / "venv").mkdir()
    new = elf({".rodata": b"\0NCCL version 2.30.7+cuda12.9\0"})
    (process / "root" / "venv" / "libnccl.so.2").write_bytes(new)
    (process / "map_files").mkdir()
    old = elf({".rodata": b"\0NCCL version 2.26.2+cuda12.2\0"})
    (process / "map_files" / "7f0000000000-7f0000100000").write_bytes(old)
    library = mapped_library(procfs, 10)
    assert library is not None
    assert library.version == (2, 26, 2)  # type: ignore[union-attr]


def test_sockets_of_the_kernel() -> None:
    text = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:6D7C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 54321 1 0 100\n"
        "   1: 0000000000000000FFFF00000100007F:6D7C 0000000000000000FFFF00000100007F:9C40 01 "
        "00000000:00000000 00:00000000 00000000  0  0 54322 1 0 20\n"
        "   2: nonsense\n"
    )
    listening, connected = parse_tcp(text)
    assert (str(listening.local), listening.state, listening.inode) == ("127.0.0.1:28028", 10, 54321)
    assert (str(connected.local), str(connected.remote)) == ("127.0.0.1:28028", "127.0.0.1:40000")


def test_addresses_of_a_network_namespace(tmp_path: Path) -> None:
    procfs, _ = make_proc(tmp_path / "proc", FakeProcess(10))
    net = tmp_path / "proc" / "10" / "net"
    assert local_addresses(procfs, 10) == ()
    (net / "fib_trie").write_text(
        "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n"
        "     +-- 127.0.0.0/8 2 0 2\n           |-- 127.0.0.0\n              /8 host LOCAL\n"
        "           |-- 10.1.0.0\n              /24 link UNICAST\n"
        "           |-- 10.1.0.5\n              /32 host LOCAL\n"
        "        |-- 10.1.0.255\n           /32 link BROADCAST\n"
    )
    (net / "if_inet6").write_text("fd000000000000000000000000000002 04 40 00 82     eth0\n")
    assert local_addresses(procfs, 10) == ("127.0.0.0/8", "10.1.0.5/32", "fd00::2/128")
