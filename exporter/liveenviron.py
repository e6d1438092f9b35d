"""The environment of a process as it is now, with what the process itself set since it started.

/proc/PID/environ shows the environment of the start. Ray and scripts of their own set RANK and MASTER_ADDR
later; those are found through the C library's variable `environ` in the process's memory. Reading it needs
the right to trace, stops nothing and takes the lock of the memory map: not for a process in a page fault.
"""

from __future__ import annotations

import os
import struct
from pathlib import PurePath
from typing import BinaryIO

from exporter import procparse
from exporter.procfs import ProcFS, Unreadable, open_regular

_NAMES = (b"environ", b"__environ")
_MOST_VARIABLES, _LONGEST = 4096, 4096
_DYNSYM = 11  # section type, elf(5)
_EXECUTABLE = 2  # file type: loaded at the addresses it names


def read(procfs: ProcFS, pid: int) -> dict[str, str] | Unreadable:
    """Names and values; UNSUPPORTED where the variable is not found (no 64-bit ELF, no symbols)."""
    maps = procfs.maps(pid)
    if isinstance(maps, Unreadable):
        return maps
    executable = procfs.exe(pid)
    places: list[tuple[int, int, str]] = []
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and int(fields[2], 16) == 0 and fields[5].startswith("/"):
            name = PurePath(fields[5]).name
            # An executable that names the variable holds it itself; else a library does.
            order = 0 if fields[5] == executable else 1 if "libpython" in name else 2
            if order < 2 or name.startswith(("libc.so", "libc-", "ld-musl")):
                places.append((order, int(fields[0].partition("-")[0], 16), fields[5]))
    try:
        with (procfs.root / str(pid) / "mem").open("rb", buffering=0) as memory:
            for _, base, path in sorted(places):
                address = _address(procfs, pid, path, base)
                if address is not None:
                    return _variables(memory, address)
    except PermissionError:
        return Unreadable.DENIED
    except (OSError, ValueError, struct.error, OverflowError):
        return Unreadable.UNSUPPORTED
    return Unreadable.UNSUPPORTED


def _address(procfs: ProcFS, pid: int, path: str, base: int) -> int | None:
    """Where the process holds the variable, if this file of its memory map defines it."""
    try:
        with open_regular(f"{procfs.root}/{pid}/root/{path.lstrip('/')}") as file:
            found = symbol(file)
    except (OSError, ValueError, struct.error):
        return None
    if found is None:
        return None
    value, fixed = found
    return value if fixed else base + value


def symbol(file: BinaryIO) -> tuple[int, bool] | None:
    """Address of `environ` in a 64-bit little-endian ELF file, and whether it is absolute. None: not defined.

    Raises ValueError or struct.error for what is no such file.
    """
    header = file.read(64)
    if header[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    kind, table, entry_size, count = struct.unpack_from("<H22xQ10xHH", header, 16)
    sections = [_piece(file, table + number * entry_size, 64) for number in range(count)]
    for section in sections:
        section_type, offset, size, link = struct.unpack_from("<I16xQQI", section, 4)
        if section_type != _DYNSYM or link >= count:
            continue
        names_offset, names_size = struct.unpack_from("<QQ", sections[link], 24)
        symbols, names = _piece(file, offset, size), _piece(file, names_offset, names_size)
        for name, _, _, index, value, _ in struct.iter_unpack("<IBBHQQ", symbols[: size // 24 * 24]):
            if index and value and names[name : names.find(b"\0", name)] in _NAMES:
                return value, kind == _EXECUTABLE
    return None


def _variables(memory: BinaryIO, address: int) -> dict[str, str]:
    (table,) = struct.unpack("<Q", _at(memory, address, 8))
    found: list[bytes] = []
    while len(found) < _MOST_VARIABLES:
        (entry,) = struct.unpack("<Q", _at(memory, table + 8 * len(found), 8))
        if not entry:
            break
        found.append(os.pread(memory.fileno(), _LONGEST, entry).partition(b"\0")[0])
    return procparse.environ(b"\0".join(found))


def _at(memory: BinaryIO, address: int, size: int) -> bytes:
    return os.pread(memory.fileno(), size, address)


def _piece(file: BinaryIO, offset: int, size: int) -> bytes:
    if size > 64 << 20:
        raise ValueError("a table of an ELF file is too large to be true")
    file.seek(offset)
    return file.read(size)
