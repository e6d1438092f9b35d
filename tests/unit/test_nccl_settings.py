"""What NCCL takes its settings and its version from: files beside the environment, and PyTorch's own library."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from exporter import liveenviron
from exporter.config import NcclConfig
from exporter.nccl import library
from exporter.nccl.environment import parse_conf, settings
from exporter.nccl.find import Target, find
from exporter.nccl.library import Library, embedded_version, mapped_library
from exporter.nccl.model import Communicator, RasProcess, RasReport, Version
from exporter.nccl.question import belongs
from exporter.nccl.ras import Address
from exporter.procfs import ProcFS
from tests.unit.test_nccl_find import FakeProcess, elf, make_proc

PASSWD = "root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The file tree of process 10."""
    make_proc(tmp_path / "proc", FakeProcess(10))
    return tmp_path / "proc" / "10" / "root"


def put(root: Path, path: str, text: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def of(root: Path, **environ: str) -> dict[str, str]:
    found = settings(ProcFS(root.parent.parent), 10, environ)
    return {name: value for name, value in found.items() if name.startswith("NCCL_RAS")}


def test_the_environment_wins_over_the_users_file_and_that_over_the_systems(root: Path) -> None:
    put(root, "/etc/passwd", PASSWD)
    put(root, "/etc/nccl.conf", "NCCL_RAS_ADDR=localhost:1\nNCCL_RAS_ENABLE=0\n")
    assert of(root) == {"NCCL_RAS_ADDR": "localhost:1", "NCCL_RAS_ENABLE": "0"}
    put(root, "/root/.nccl.conf", "NCCL_RAS_ADDR=localhost:2\n")
    assert of(root) == {"NCCL_RAS_ADDR": "localhost:2", "NCCL_RAS_ENABLE": "0"}
    assert of(root, NCCL_RAS_ADDR="a:3", NCCL_RAS_ENABLE="1") == {
        "NCCL_RAS_ADDR": "a:3",
        "NCCL_RAS_ENABLE": "1",
    }


def test_a_file_that_the_environment_names_takes_the_place_of_the_users(root: Path) -> None:
    put(root, "/home/x/.nccl.conf", "NCCL_RAS_ADDR=localhost:2\n")
    put(root, "/conf/mine", "NCCL_RAS_TIMEOUT_FACTOR=2\n")
    assert of(root, HOME="/home/x") == {"NCCL_RAS_ADDR": "localhost:2"}
    named = of(root, HOME="/home/x", NCCL_CONF_FILE="/conf/mine")
    assert named == {"NCCL_RAS_TIMEOUT_FACTOR": "2"}
    (root.parent / "cwd").symlink_to("/conf")
    assert of(root, NCCL_CONF_FILE="mine") == {"NCCL_RAS_TIMEOUT_FACTOR": "2"}
    assert of(root, HOME="/home/x", NCCL_CONF_FILE="/nowhere") == {}


def test_lines_of_a_file() -> None:
    text = "# NCCL_DEBUG=INFO\nNCCL_A=x=y\nNCCL_B= spaced \r\nno value\n\n=\nNCCL_C"
    assert list(parse_conf(text)) == [("NCCL_A", "x=y"), ("NCCL_B", " spaced "), ("", "")]


def test_what_is_no_file_is_not_waited_for(root: Path) -> None:
    (root / "etc").mkdir()
    os.mkfifo(root / "etc" / "nccl.conf")
    (root / "x").mkdir()
    assert of(root, NCCL_CONF_FILE="/x") == {}
    (root / "y").write_bytes(b"\xff\xfe\0=\0NCCL_RAS_ADDR=1\n" * 9)
    assert of(root, NCCL_CONF_FILE="/y") == {}
    assert of(root, NCCL_CONF_FILE="/\0") == {}


def test_a_job_whose_file_turns_ras_off_or_moves_it(tmp_path: Path) -> None:
    procfs, training = make_proc(tmp_path / "proc", FakeProcess(10, listens=("127.0.0.1:4444",)))
    tree = tmp_path / "proc" / "10" / "root"
    assert find(procfs, training, NcclConfig()) == "not_listening"
    put(tree, "/etc/nccl.conf", "NCCL_RAS_ADDR=localhost:4444\n")
    found = find(procfs, training, NcclConfig())
    assert isinstance(found, Target)
    assert found.addresses == (Address("127.0.0.1", 4444),)
    put(tree, "/etc/nccl.conf", "NCCL_RAS_ENABLE=0\n")
    assert find(procfs, training, NcclConfig()) == "disabled_by_job"


def test_an_address_that_the_program_set_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    procfs, training = make_proc(tmp_path / "proc", FakeProcess(10, listens=("127.0.0.1:4444",)))
    monkeypatch.setattr(liveenviron, "read", lambda *_: {"NCCL_RAS_ADDR": "localhost:4444"})
    found = find(procfs, training, NcclConfig())
    assert isinstance(found, Target)
    assert found.addresses == (Address("127.0.0.1", 4444),)
    monkeypatch.setattr(liveenviron, "read", lambda *_: {"NCCL_RAS_ADDR": "localhost:4445"})
    assert find(procfs, training, NcclConfig()) == "not_listening"


CONSTANTS = b"NCCL version \0" + bytes(70_000) + b"\0NCCL version 2.27.5+cuda12.9\0"


@pytest.mark.parametrize("name", ["libtorch_cuda.so", "libtorch.so.2.8", "libtorch_cuda_cpp.so"])
def test_nccl_that_is_linked_into_pytorch(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    procfs, _ = make_proc(tmp_path / "proc", FakeProcess(10, library=f"/torch/lib/{name}"))
    file = tmp_path / "proc" / "10" / "root" / "torch" / "lib" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(elf({".rodata": CONSTANTS}))
    for piece in (4 << 20, 70_010, 1000):  # also where the words lie across two pieces
        monkeypatch.setattr(library, "_PIECE", piece)
        library._versions.clear()
        assert mapped_library(procfs, 10) == Library(f"/torch/lib/{name}", Version(2, 27, 5))


def test_pytorch_without_nccl_is_no_nccl(tmp_path: Path) -> None:
    process = FakeProcess(10, library="/torch/lib/libtorch_cuda.so")
    procfs, training = make_proc(tmp_path / "proc", process)
    file = tmp_path / "proc" / "10" / "root" / "torch" / "lib" / "libtorch_cuda.so"
    file.parent.mkdir(parents=True)
    file.write_bytes(elf({".rodata": b"NCCL version \0\0libnccl.so.2\0"}))
    assert find(procfs, training, NcclConfig()) == "no_nccl"


def test_a_library_beside_pytorch_is_the_one_that_counts(tmp_path: Path) -> None:
    procfs, _ = make_proc(tmp_path / "proc", FakeProcess(10, library="/torch/lib/libtorch_cuda.so"))
    maps = tmp_path / "proc" / "10" / "maps"
    maps.write_text(maps.read_text() + "7f11-7f12 r-xp 00000000 fd:00 78 /nccl/libnccl.so.2.30.7\n")
    assert mapped_library(procfs, 10) == Library("/nccl/libnccl.so.2.30.7", Version(2, 30, 7))


def test_a_file_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "libtorch_cuda.so"
    path.write_bytes(elf({".rodata": CONSTANTS}))
    assert embedded_version(path) == (2, 27, 5)
    monkeypatch.setattr(library, "_searched", lambda file: pytest.fail("it is searched again"))
    assert embedded_version(path) == (2, 27, 5)


def test_an_answer_is_tied_to_its_job_by_pid_or_communicator() -> None:
    report = RasReport("text", communicators=(Communicator("00000000000000ab", 0),))
    assert not belongs(report, frozenset({10}))
    assert belongs(report, frozenset({10}), {"00000000000000ab"})
    assert not belongs(report, frozenset({10}), {"00000000000000ac"})
    named = replace(report, processes=(RasProcess(10, "10.0.0.1"),))
    assert belongs(named, frozenset({10}))
    assert not belongs(named, frozenset({11}))
