"""Who listens where: TCP sockets of a process's network namespace, and sockets made inside that namespace.

Formats: proc(5) and net/ipv4/tcp_ipv4.c, net/ipv6/tcp_ipv6.c of Linux 6.x.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from exporter.nccl.ras import Address
from exporter.procfs import ProcFS, Unreadable

LISTEN = 0x0A
_CLONE_NEWNET = 0x40000000
_SOCKET = re.compile(r"socket:\[(\d+)\]\Z")


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """A line of /proc/PID/net/tcp or tcp6. `inode` is 0 while nobody has accepted the connection."""

    local: Address
    remote: Address
    state: int
    inode: int


def parse_tcp(text: str) -> Iterator[TcpSocket]:
    """The sockets of /proc/PID/net/tcp or tcp6; lines of another form are passed over."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 10 or not fields[0].endswith(":"):
            continue
        try:
            yield TcpSocket(_address(fields[1]), _address(fields[2]), int(fields[3], 16), int(fields[9]))
        except (ValueError, struct.error):
            continue


def _address(text: str) -> Address:
    """`0100007F:6D7C`: 32-bit words of the address in the byte order of the machine, port in hex."""
    words, port = text.split(":")
    if len(words) not in (8, 32):
        raise ValueError(f"no address: {text!r}")
    packed = b"".join(
        struct.pack("=I", int(words[start : start + 8], 16)) for start in range(0, len(words), 8)
    )
    if len(packed) == 16 and packed.startswith(b"\0" * 10 + b"\xff\xff"):
        packed = packed[12:]  # an IPv4 connection of a socket that serves both
    family = socket.AF_INET6 if len(packed) == 16 else socket.AF_INET
    return Address(socket.inet_ntop(family, packed), int(port, 16))


def tcp_sockets(procfs: ProcFS, pid: int) -> tuple[TcpSocket, ...]:
    """All TCP sockets of the network namespace that the process lives in."""
    found: list[TcpSocket] = []
    for name in ("tcp", "tcp6"):
        try:
            text = (procfs.root / str(pid) / "net" / name).read_text()
        except (OSError, UnicodeDecodeError):
            continue  # gone, or a kernel without IPv6
        found.extend(parse_tcp(text))
    return tuple(found)


def socket_inodes(procfs: ProcFS, pid: int) -> frozenset[int] | Unreadable:
    """Inodes of the sockets that a process holds; needs the right to trace it."""
    links = procfs.descriptors(pid)
    if isinstance(links, Unreadable):
        return links
    found = (_SOCKET.match(link) for link in links.values())
    return frozenset(int(one[1]) for one in found if one)


def local_addresses(procfs: ProcFS, pid: int) -> tuple[str, ...]:
    """The addresses of a process's network namespace: `10.0.0.5/32`, `127.0.0.0/8`, `fd00::2/128`.

    From /proc/PID/net/fib_trie (net/ipv4/fib_trie.c) and if_inet6; empty where neither can be read.
    """
    folder = procfs.root / str(pid) / "net"
    found: dict[str, None] = {}
    leaf = ""
    for line in _lines(folder / "fib_trie"):
        words = line.split()
        if words[:1] == ["|--"]:
            leaf = words[1]
        elif words[1:] == ["host", "LOCAL"]:
            found[leaf + words[0]] = None
    for line in _lines(folder / "if_inet6"):
        packed = line.split()[:1]
        if packed and len(packed[0]) == 32:
            found[socket.inet_ntop(socket.AF_INET6, bytes.fromhex(packed[0])) + "/128"] = None
    return tuple(found)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def network_namespace(process: Path) -> str | None:
    """The network namespace of a process (`net:[4026531840]`); None where it cannot be read."""
    try:
        return str((process / "ns" / "net").readlink())
    except OSError:
        return None


def socket_maker(
    procfs: ProcFS, pid: int, *, own: Path = Path("/proc/self")
) -> Callable[[socket.AddressFamily], socket.socket]:
    """A function that makes sockets in the network namespace of a process.

    A socket stays in the namespace that it was made in. To enter one takes CAP_SYS_ADMIN: the function raises
    OSError without it. A thread of its own enters, so that no other thread changes namespace.
    """
    namespace = network_namespace(procfs.root / str(pid))
    if namespace is None or namespace == network_namespace(own):
        return lambda family: socket.socket(family, socket.SOCK_STREAM)
    return lambda family: _made_inside(procfs.root / str(pid) / "ns" / "net", family)


def _made_inside(namespace: Path, family: socket.AddressFamily) -> socket.socket:
    result: list[socket.socket | OSError] = []

    def make() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if libc.setns(descriptor, _CLONE_NEWNET) != 0:
                    number = ctypes.get_errno()
                    raise OSError(number, f"cannot enter {namespace}: {os.strerror(number)}")
            finally:
                os.close(descriptor)
            result.append(socket.socket(family, socket.SOCK_STREAM))
        except OSError as error:
            result.append(error)

    thread = threading.Thread(target=make, name="ras-namespace")
    thread.start()
    thread.join()
    if isinstance(result[0], OSError):
        raise result[0]
    return result[0]
