"""Hangs in a page fault: maps a file of a FUSE file system whose server never answers a read, and touches it.

    capture_page_fault.py FOLDER

Speaks just enough of the FUSE protocol (Linux, include/uapi/linux/fuse.h) to mount FOLDER with one file `f`.
Needs root. Prints the pid of the process that hangs, once the file is being read. When this process ends, the
mount is aborted and the one that hangs gets SIGBUS.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys

LOOKUP, GETATTR, OPEN, READ, FLUSH, RELEASE, INIT = 1, 3, 14, 15, 25, 18, 26
ROOT, FILE = 1, 2
SIZE = 4096


def attributes(node: int) -> bytes:
    mode = 0o040755 if node == ROOT else 0o100644
    return struct.pack("<6Q 10I", node, SIZE, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def serve(device: int, reader: int) -> None:
    told = False
    while True:
        request = os.read(device, 1 << 17)
        _, operation, unique, node = struct.unpack_from("<IIQQ", request)
        if operation == INIT:
            # With reading ahead the fault waits for the page in state D, not for the answer in state S.
            body = struct.pack("<IIIIHHIIHH32x", 7, 31, 131072, 1, 8, 8, 4096, 1, 0, 0)
        elif operation == LOOKUP:
            body = struct.pack("<QQQQII", FILE, 0, 3600, 3600, 0, 0) + attributes(FILE)
        elif operation == GETATTR:
            body = struct.pack("<QII", 3600, 0, 0) + attributes(node)
        elif operation == OPEN:
            body = struct.pack("<QII", 1, 0, 0)
        elif operation == READ:  # never answered
            if not told:
                print(reader, flush=True)
            told = True
            continue
        elif operation in (FLUSH, RELEASE):
            body = b""
        else:
            os.write(device, struct.pack("<IiQ", 16, -38, unique))  # ENOSYS
            continue
        os.write(device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)


def touch(path: str) -> None:
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ)
        print(data[0])


def main() -> None:
    folder = sys.argv[1]
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"capture-test", folder.encode(), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    child = os.fork()
    if child == 0:
        os.close(device)
        touch(f"{folder}/f")
        os._exit(0)
    serve(device, child)


if __name__ == "__main__":
    main()
