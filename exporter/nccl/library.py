"""Which NCCL a process has loaded, before anything is asked: from its memory map and the library file."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from exporter.nccl.model import Version, parse_version
from exporter.procfs import ProcFS, Unreadable

# The library itself; libnccl-net.so and other plugins have names of their own.
_LIBRARY = re.compile(r"libnccl\.so(?:\.(\d+(?:\.\d+)*))?$")
# libnccl.so holds "NCCL version 2.30.7+cuda12.9" among its constants (2.24.3 to 2.32.3).
_EMBEDDED = re.compile(rb"NCCL version (\d+\.\d+\.\d+[^\s\0]*)")
_MAP_LINE = re.compile(r"(?P<range>[0-9a-f]+-[0-9a-f]+) \S+ \S+ \S+ (?P<inode>\d+)\s+(?P<path>/.*)$")
_LARGEST_RODATA = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Library:
    """A mapped NCCL. `version` None: neither its content nor its name says."""

    path: str
    version: Version | None


@dataclass(frozen=True, slots=True)
class _Mapping:
    path: str
    deleted: bool
    address_range: str


def mapped_library(procfs: ProcFS, pid: int) -> Library | Unreadable | None:
    """The NCCL that the process has mapped; None: it has not loaded one.

    Reads /proc/PID/maps, which may never return for a process stuck in a page fault: ask that first.
    """
    maps = procfs.maps(pid)
    if isinstance(maps, Unreadable):
        return maps
    for mapping in _mappings(maps):
        name = _LIBRARY.search(mapping.path)
        assert name is not None
        embedded = next(filter(None, map(embedded_version, _files(procfs.root / str(pid), mapping))), None)
        by_name = parse_version(name[1]) if name[1] and "." in name[1] else None
        return Library(mapping.path, embedded or by_name)
    return None


def _mappings(maps: str) -> Iterator[_Mapping]:
    for line in maps.splitlines():
        found = _MAP_LINE.match(line)
        if found:
            path = found["path"].removesuffix(" (deleted)")
            if _LIBRARY.search(path.rsplit("/", 1)[-1]):
                yield _Mapping(path, path != found["path"], found["range"])


def _files(process: Path, mapping: _Mapping) -> Iterator[Path]:
    """Where the file can be read: in the process's own file tree, or by its mapping where it was replaced."""
    if not mapping.deleted:
        yield process / "root" / mapping.path.lstrip("/")
    yield process / "map_files" / mapping.address_range


def embedded_version(path: Path) -> Version | None:
    """The version among the constants (`.rodata`) of a 64-bit ELF file; None where it cannot be found."""
    try:
        with path.open("rb") as file:
            for offset, size in _rodata(file.read(64), file):
                file.seek(offset)
                found = _EMBEDDED.search(file.read(min(size, _LARGEST_RODATA)))
                if found:
                    return parse_version(found[1].decode("ascii", "replace"))
    except (OSError, struct.error, ValueError):
        pass  # not ours to read, or no ELF file: then the name has to say
    return None


def _rodata(header: bytes, file: BinaryIO) -> list[tuple[int, int]]:
    """Offset and size of the sections named .rodata (ELF-64 specification, section header table)."""
    if header[:5] != b"\x7fELF\x02":
        return []
    order = "<" if header[5] == 1 else ">"
    (table,) = struct.unpack_from(order + "Q", header, 0x28)
    entry_size, entries, names_at = struct.unpack_from(order + "HHH", header, 0x3A)
    file.seek(table)
    raw = file.read(entry_size * entries)
    sections = [struct.unpack_from(order + "IIQQQQ", raw, index * entry_size) for index in range(entries)]
    _, _, _, _, names_offset, names_size = sections[names_at]
    file.seek(names_offset)
    names = file.read(names_size)
    found = []
    for name, _, _, _, offset, size in sections:
        if names[name:].startswith((b".rodata\0", b".rodata.")):
            found.append((offset, size))
    return found
