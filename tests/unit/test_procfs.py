"""Reading /proc: what the kernel writes, what hostile processes write, what cannot be read."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter import procparse
from exporter.procfs import ProcFS, Unreadable
from tests.running import wait_for

STAT = (
    b"4711 (%b) D 4242 1 4240 34816 4710 4194304 100 0 0 0 150 50 0 0 20 0 7 0 98765 2457600 300 "
    b"18446744073709551615 1 1 0 0 0 0 0 16781312 16386 0 0 0 17 1 0 0 42 0 0 0 0 0 0 0 0 0 0\n"
)


@pytest.mark.parametrize("name", [b"python3", b"a) R 1 (b", b")", b"", b"x y", b"\xff\xfe", b"(((", b"a\nb"])
def test_stat_with_any_name(name: bytes) -> None:
    stat = procparse.stat(STAT % name)
    assert (stat.pid, stat.state, stat.ppid, stat.session) == (4711, "D", 4242, 4240)
    assert (stat.utime, stat.stime, stat.num_threads, stat.start_ticks) == (150, 50, 7, 98765)
    assert stat.delayacct_blkio_ticks == 42
    assert stat.comm == name.decode("utf-8", "replace")


def test_stat_of_an_old_kernel_has_no_delay() -> None:
    assert (
        procparse.stat(b"1 (x) S 0 1 1 0 -1 4 0 0 0 0 1 2 0 0 20 0 1 0 5 0 0").delayacct_blkio_ticks is None
    )


@given(st.binary())
def test_no_bytes_crash_a_parser(data: bytes) -> None:
    for parse in (procparse.stat, procparse.status, procparse.io):
        try:
            parse(data)
        except ValueError:
            pass
    procparse.environ(data)
    procparse.cmdline(data)
    procparse.cgroup(data)
    procparse.kernel_stack(data)
    procparse.pressure(data)
    procparse.switches(data)


@given(
    st.dictionaries(
        st.text(min_size=1).filter(lambda x: not set(x) & set("=\0")),
        st.text().filter(lambda x: "\0" not in x),
    )
)
def test_environment_comes_back_whole(variables: dict[str, str]) -> None:
    try:
        data = b"".join(f"{key}={value}".encode() + b"\0" for key, value in variables.items())
    except UnicodeEncodeError:  # lone surrogates are no UTF-8
        return
    assert procparse.environ(data) == variables


def test_kernel_stack_loses_addresses() -> None:
    data = b"[<0>] rpc_wait_bit_killable+0x24/0xa0 [sunrpc]\n[<ffff>] nfs_read+0x1/0x2\n"
    data += b"[<0>] 0xffffffffffffffff\n"
    assert procparse.kernel_stack(data) == ("rpc_wait_bit_killable", "nfs_read")


def test_cgroup_of_both_versions() -> None:
    found = procparse.cgroup(b"12:cpu,cpuacct:/a:b\n0::/kubepods/x\nnonsense\n")
    assert [(one.hierarchy, one.controllers, one.path) for one in found] == [
        (12, ("cpu", "cpuacct"), "/a:b"),
        (0, (), "/kubepods/x"),
    ]


def test_pressure_is_in_seconds() -> None:
    found = procparse.pressure(b"some avg10=12.50 avg60=1.00 avg300=0.10 total=2500000\n")
    assert (found["some"].avg10, found["some"].total_seconds) == (0.125, 2.5)


def test_this_process_is_read() -> None:
    procfs, pid = ProcFS(), os.getpid()
    stat, status, io = procfs.stat(pid), procfs.status(pid), procfs.io(pid)
    assert isinstance(stat, procparse.Stat)
    assert isinstance(status, procparse.Status)
    assert isinstance(io, procparse.Io)
    assert (stat.pid, stat.ppid, status.tgid, status.ppid) == (pid, os.getppid(), pid, os.getppid())
    assert io.rchar > 0
    assert procfs.cmdline(pid) == tuple(Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0"))
    environ = procfs.environ(pid)
    assert isinstance(environ, dict)
    assert procfs.exe(pid) == os.path.realpath(sys.executable)
    assert procfs.switches(pid) is not None
    tids = procfs.tids(pid)
    assert isinstance(tids, tuple)
    assert pid in tids
    assert pid in procfs.pids()


def test_open_files_and_those_written(tmp_path: Path) -> None:
    written, read = tmp_path / "w", tmp_path / "r"
    read.write_text("x")
    with written.open("w"), read.open():
        descriptors = ProcFS().descriptors(os.getpid())
        assert isinstance(descriptors, dict)
        assert {str(written), str(read)} <= set(descriptors.values())
        files = ProcFS().written_files(os.getpid())
        assert isinstance(files, tuple)
        assert str(written) in files
        assert str(read) not in files


def test_vanished_process_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    procfs = ProcFS()
    for ask in (
        procfs.stat,
        procfs.status,
        procfs.io,
        procfs.environ,
        procfs.cmdline,
        procfs.tids,
        procfs.exe,
    ):
        assert ask(child.pid) is Unreadable.GONE


def test_zombie_has_a_state_and_no_command_line() -> None:
    child = subprocess.Popen(["/bin/true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    procfs = ProcFS()
    stat = procfs.stat(child.pid)
    assert isinstance(stat, procparse.Stat)
    assert stat.state == "Z"
    assert procfs.cmdline(child.pid) == ()
    child.wait()


def test_stat_file_stays_with_its_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    procfs = ProcFS()
    file = procfs.open_stat(child.pid, child.pid)
    assert not isinstance(file, Unreadable)
    assert file.state() in ("R", "S", "D")
    head = file.head()
    assert head is not None
    assert head[2] == os.getpid()
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert (file.state(), file.head(), file.read()) == (None, None, None)
    file.close()


@pytest.mark.parametrize("tid", [100, 101])
@pytest.mark.parametrize("keep_open", [0, 1, 8])
@pytest.mark.parametrize(("before", "after"), [("9 0 7", "9 0 8"), ("0 0 0", "0 0 0"), (None, None)])
def test_state_of_a_thread_that_ran(
    proc_tree: Any, before: str | None, after: str | None, keep_open: int, tid: int
) -> None:
    def write(letter: str, schedule: str | None) -> None:
        stat = proc_tree.root / f"100/task/{tid}/stat"
        head, _, rest = stat.read_text().rpartition(") ")
        stat.write_text(f"{head}) {letter}{rest[1:]}")
        if schedule is not None:
            proc_tree.file(f"100/task/{tid}/schedstat", f"{schedule}\n")

    proc_tree.process(100, argv=["x"], threads=["t"])
    write("S", before)
    file = ProcFS(proc_tree.root, keep_open=keep_open).open_stat(100, tid)
    assert not isinstance(file, Unreadable)
    assert (file.state(), file.state()) == ("S", "S")
    write("D", after)
    assert (file.state(), file.state()) == ("D", "D")
    file.close()


def test_thread_that_did_not_run_is_not_read_unless_it_was_about_to(proc_tree: Any) -> None:
    proc_tree.process(100, argv=["x"], runs=3)
    file = ProcFS(proc_tree.root, keep_open=8).open_stat(100, 100)
    assert not isinstance(file, Unreadable)
    stat = proc_tree.root / "100/task/100/stat"
    text = stat.read_text()
    for letter, expected in (("R", "R"), ("S", "S"), ("D", "S")):
        stat.write_text(text.replace(") S", f") {letter}"))
        assert file.state() == expected
    file.close()


def test_real_thread_counts_its_runs() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    file = ProcFS().open_stat(child.pid, child.pid)
    assert not isinstance(file, Unreadable)
    wait_for(lambda: file.state() == "S")
    child.send_signal(signal.SIGSTOP)
    wait_for(lambda: file.state() == "T")
    child.send_signal(signal.SIGCONT)
    wait_for(lambda: file.state() == "S")
    child.kill()
    wait_for(lambda: file.state() == "Z")
    child.communicate()
    assert file.state() is None
    file.close()


def test_files_kept_open_are_given_back(proc_tree: Any) -> None:
    proc_tree.process(100, argv=["x"], runs=3)
    procfs = ProcFS(proc_tree.root, keep_open=2)

    def held() -> int:
        """Files of the tree that this process has open."""
        links = []
        for one in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # that of the listing itself
                links.append(one.readlink())
        return sum(link.is_relative_to(proc_tree.root) for link in links)

    for _ in range(5):
        file = procfs.open_stat(100, 100)
        assert not isinstance(file, Unreadable)
        assert held() == 2
        file.close()
    assert held() == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.1 0.2 0.3 1/200 4711\n", 4711), ("0.00 0.00 0.00 0/0 0\n", None), ("", None), ("x\n", None)],
)
def test_newest_pid(proc_tree: Any, text: str, expected: int | None) -> None:
    assert ProcFS(proc_tree.root).newest_pid() is None
    proc_tree.file("loadavg", text)
    assert ProcFS(proc_tree.root).newest_pid() == expected


def test_without_rights_files_are_denied() -> None:
    program = (
        "import os; from exporter.procfs import ProcFS; p = ProcFS()\n"
        "if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(*[getattr(p, name)(1).name for name in ('environ', 'io', 'exe', 'syscall')], p.stat(1).pid)"
    )
    root = Path(__file__).parents[2]
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root
    )
    assert out.stdout.split() == ["DENIED"] * 4 + ["1"]


@pytest.mark.parametrize(
    ("stack", "wchan", "expected"),
    [
        ("[<0>] folio_wait_bit+0x1/0x2\n[<0>] filemap_fault+0x1/0x2\n", "folio_wait_bit", True),
        (
            "[<0>] rpc_wait_bit_killable+0x1/0x2\n[<0>] nfs_file_read+0x1/0x2\n",
            "rpc_wait_bit_killable",
            False,
        ),
        (None, "rpc_wait_bit_killable", False),
        (None, "handle_mm_fault", True),
        (None, "0", False),
    ],
)
def test_page_fault_of_any_thread(proc_tree: Any, stack: str | None, wchan: str, expected: bool) -> None:
    proc_tree.process(100, argv=["/bin/x"], threads=["reader"], thread_states="D", wchan=wchan)
    if stack is not None:
        proc_tree.file("100/task/101/stack", stack)
    assert ProcFS(proc_tree.root).page_fault(100) is expected


def test_hidden_wchan_and_stack_are_taken_for_a_page_fault(
    proc_tree: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc_tree.process(100, argv=["/bin/x"], state="D", wchan="0")
    monkeypatch.setattr(ProcFS, "kernel_stack", lambda *_: Unreadable.DENIED)
    assert ProcFS(proc_tree.root).page_fault(100)


def test_endless_file_is_cut(proc_tree: Any) -> None:
    proc_tree.process(100, argv=["/bin/x"], environ=b"A=" + b"x" * (6 << 20))
    environ = ProcFS(proc_tree.root).environ(100)
    assert isinstance(environ, dict)
    assert len(environ["A"]) < 5 << 20
