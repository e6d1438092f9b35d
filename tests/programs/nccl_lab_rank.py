"""One training process of the NCCL lab: NVIDIA's own libnccl.so.2, its RAS service on made-up communicators.

No GPU is needed: three entry points of the RAS code are called with zeroed objects in which only the fields
are set that RAS reads. Where the fields lie in each version is in tests/fixtures/nccl/library_layouts.json.
Everything of RAS is real: threads, network, time limits, answers. usage: nccl_lab_rank.py LIBRARY LAYOUTS
VERSION; commands are JSON lines on the standard input, each answered by a line.
"""

from __future__ import annotations

import ctypes
import json
import random
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

MASK = (1 << 64) - 1
SOCKET_ADDRESS_SIZE = 28
DRIVER_VERSION = 13010


class Library:
    """The loaded library, and memory for the objects that it is shown."""

    def __init__(self, path: str, layout: dict[str, Any]) -> None:
        self.layout = layout
        symbols = layout["sym"]
        library = ctypes.CDLL(path)
        self._libc = ctypes.CDLL(None)
        self._libc.calloc.restype = ctypes.c_void_p
        self._libc.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        version = ctypes.cast(library.ncclGetVersion, ctypes.c_void_p).value
        assert version is not None
        self._base = version - symbols["ver"]
        self.init = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
            self._base + symbols["init"]
        )
        self.add = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)(self._base + symbols["add"])
        self.finish = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._base + symbols["fini"])
        self.write(self._base + symbols["drv"], "<i", DRIVER_VERSION)

    def memory(self, count: int, size: int) -> int:
        address = self._libc.calloc(count, size)
        assert isinstance(address, int)
        return address

    @staticmethod
    def write(address: int, kind: str, value: int) -> None:
        ctypes.memmove(address, struct.pack(kind, value), struct.calcsize(kind))


class Communicator:
    """A made-up communicator object of this process."""

    def __init__(self, library: Library, spec: dict[str, Any]) -> None:
        self._library, self._layout = library, library.layout
        layout, write = self._layout, library.write
        self.address = library.memory(1, layout["sizeof_comm"] + 4096)
        peers = spec["peers"]  # host hash, process hash, CUDA device, NVML device
        self._peers = library.memory(len(peers) + 1, layout["sizeof_pi"])
        self._abort = library.memory(1, 64)
        for index, (host, process, cuda, nvml) in enumerate(peers):
            at = self._peers + index * layout["sizeof_pi"]
            for offset, value in ((0, index), (4, cuda), (8, nvml)):
                write(at + offset, "<i", value)
            write(at + layout["pi_hostHash"], "<Q", (host + spec["hash"]) & MASK)
            write(at + layout["pi_pidHash"], "<Q", (process + spec["hash"]) & MASK)
        self._field("commHash", "<Q", spec["hash"])
        self._field("rank", "<i", spec["rank"])
        self._field("nRanks", "<i", len(peers))
        self._field("cudaDev", "<i", spec["cuda"])
        self._field("nvmlDev", "<i", spec["nvml"])
        self._field("peerInfo", "<Q", self._peers)
        self._field("abortFlag", "<Q", self._abort)
        if "peerInfoValid" in layout:
            self._field("peerInfoValid", "<B", 1)
        if layout.get("magic"):
            for at in (0, layout["sizeof_comm"] - 8):
                write(self.address + at, "<Q", 0x0280028002800280)
        self.counts = [0] * 5  # Broadcast, Reduce, AllGather, ReduceScatter, AllReduce
        self.running = False

    def _field(self, name: str, kind: str, value: int) -> None:
        self._library.write(self.address + self._layout[name], kind, value)

    def launch(self, counts: list[int]) -> None:
        self.counts = counts
        if "seqNumber" in self._layout:
            for index, value in enumerate(counts):
                self._library.write(self.address + self._layout["seqNumber"] + 8 * index, "<Q", value)
        else:
            self._field("collOpCount", "<Q", sum(counts))

    def state(self, **values: int) -> None:
        fields = {
            "init": ("initState", "<i"),
            "error": ("asyncResult", "<i"),
            "finalize": ("finalizeCalled", "<B"),
        }
        for name, value in values.items():
            if name == "abort":
                self._library.write(self._abort, "<I", value)
            else:
                self._field(*fields[name], value)

    def run(self, interval: float) -> None:
        """Launch an AllReduce every `interval` seconds, more or less, until `running` is false."""
        self.running = True

        def work() -> None:
            while self.running:
                self.launch([*self.counts[:4], self.counts[4] + 1])
                time.sleep(interval * (0.8 + 0.4 * random.random()))

        threading.Thread(target=work, daemon=True).start()


def socket_address(ip: str) -> bytes:
    """struct sockaddr_in or sockaddr_in6 with port 0, as NCCL's union of the two."""
    if ":" in ip:
        return struct.pack("<HHI", socket.AF_INET6, 0, 0) + socket.inet_pton(socket.AF_INET6, ip) + bytes(4)
    return struct.pack("<HH", socket.AF_INET, 0) + socket.inet_aton(ip) + bytes(20)


class Process:
    """Carries out the lab's commands."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._communicators: dict[str, Communicator] = {}

    def start(self, ip: str, communicator: dict[str, Any]) -> dict[str, Any]:
        """The first communicator starts the RAS thread; its address is for the other processes."""
        layout = self._library.layout
        one = self._communicators[communicator["id"]] = Communicator(self._library, communicator)
        info = self._library.memory(1, layout["sizeof_ri"])
        ctypes.memmove(info, socket_address(ip), SOCKET_ADDRESS_SIZE)
        status = self._library.init(one.address, info)
        return {"status": status, "address": ctypes.string_at(info, SOCKET_ADDRESS_SIZE).hex()}

    def meet(self, peers: list[dict[str, Any]]) -> dict[str, Any]:
        """Tell RAS of all processes of the job."""
        layout, write = self._library.layout, self._library.write
        table = self._library.memory(len(peers), layout["sizeof_ri"])
        for index, peer in enumerate(peers):
            at = table + index * layout["sizeof_ri"]
            ctypes.memmove(at, bytes.fromhex(peer["address"]), SOCKET_ADDRESS_SIZE)
            write(at + layout["ri_pid"], "<i", peer["pid"])
            write(at + layout["ri_cudaDev"], "<i", peer["cuda"])
            write(at + layout["ri_nvmlDev"], "<i", peer["nvml"])
            if "ri_hostHash" in layout:
                write(at + layout["ri_hostHash"], "<Q", peer["host"])
                write(at + layout["ri_pidHash"], "<Q", peer["process"])
        return {"status": self._library.add(table, len(peers))}

    def join(self, communicator: dict[str, Any]) -> dict[str, Any]:
        """A further communicator."""
        one = self._communicators[communicator["id"]] = Communicator(self._library, communicator)
        return {"status": self._library.init(one.address, None)}

    def launch(self, communicator: str, counts: list[int]) -> dict[str, Any]:
        self._communicators[communicator].launch(counts)
        return {"status": 0}

    def state(self, communicator: str, **values: int) -> dict[str, Any]:
        self._communicators[communicator].state(**values)
        return {"status": 0}

    def run(self, communicator: str, interval: float) -> dict[str, Any]:
        self._communicators[communicator].run(interval)
        return {"status": 0}

    def halt(self, communicator: str) -> dict[str, Any]:
        self._communicators[communicator].running = False
        return {"status": 0}


def main() -> None:
    path, layouts, version = sys.argv[1:]
    process = Process(Library(path, json.loads(Path(layouts).read_text())[version]))
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(getattr(process, command.pop("do"))(**command)), flush=True)


if __name__ == "__main__":
    main()
