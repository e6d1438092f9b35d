"""A process that stands in for a trainer with a RAS service: it replays one recorded answer to whoever asks.

usage: ras_stand_in.py HOST PORT ANSWER [--own-network]; several may share a port, as NCCL's processes do.
Prints `ready` when it listens, then each question that it is asked.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP = 1


def own_network() -> None:
    """Move into a new network namespace with nothing but a loopback interface."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "no network namespace of our own")
    with socket.socket() as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def serve(connection: socket.socket, report: bytes) -> None:
    with connection, connection.makefile("rb") as lines:
        for raw in lines:
            command = raw.decode().strip()
            if command.startswith("CLIENT PROTOCOL"):
                connection.sendall(b"SERVER PROTOCOL 2\n")
            elif command == "SET FORMAT json" and report.startswith(b"{"):
                connection.sendall(b"OK\n")
            elif command.endswith("STATUS"):
                print(command, flush=True)
                connection.sendall(report)
                return
            else:
                connection.sendall(b"ERROR: Unknown command " + raw)


def main() -> None:
    host, port, answer, *options = sys.argv[1:]
    if options == ["--own-network"]:
        own_network()
    report = Path(answer).read_bytes()
    for line in (b"SERVER PROTOCOL 2\n", b"OK\n"):
        report = report.removeprefix(line)
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((host, int(port)))
    listener.listen()
    print("ready", os.getpid(), flush=True)
    while True:
        connection, _ = listener.accept()
        try:
            serve(connection, report)
        except OSError:
            pass  # a client that left


if __name__ == "__main__":
    main()
