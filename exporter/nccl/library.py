"""Which NCCL a process has loaded, before anything is asked: from its memory map and the library file."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from exporter.nccl.model import Version, parse_version
from exporter.procfs import ProcFS, Unreadable, open_regular

# The library itself; libnccl-net.so and other plugins have names of their own.
_LIBRARY = re.compile(r"libnccl\.so(?:\.(\d+(?:\.\d+)*))?$")
# What NCCL may be linked into: PyTorch, as its own build does by default (USE_SYSTEM_NCCL=0).
_HOST = re.compile(r"libtorch(?:_cuda(?:_cpp|_cu)?)?\.so(?:\.\d+)*$")
# libnccl.so holds "NCCL version 2.30.7+cuda12.9" among its constants (2.24.3 to 2.32.3).
_MARK = b"NCCL version "
_EMBEDDED = re.compile(rb"NCCL version (\d+\.\d+\.\d+[^\s\0]{,40})")
_MAP_LINE = re.compile(r"(?P<range>[0-9a-f]+-[0-9a-f]+) \S+ \S+ \S+ (?P<inode>\d+)\s+(?P<path>/.*)$")
_LARGEST_RODATA = 512 * 1024 * 1024  # that of libtorch_cuda.so is well below
_PIECE = 4 * 1024 * 1024  # bytes searched at once
_OVERLAP = 64

_Identity = tuple[int, int, int, int]  # device, inode, size, time of change
_versions: dict[_Identity, Version | None] = {}
"""What files were found to hold: one of PyTorch's takes seconds to search."""
_MOST_VERSIONS = 256


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
    """The NCCL that the process has mapped, by itself or within PyTorch; None: it has not loaded one.

    Reads /proc/PID/maps, which may never return for a process stuck in a page fault: ask that first.
    """
    maps = procfs.maps(pid)
    if isinstance(maps, Unreadable):
        return maps
    process = procfs.root / str(pid)
    for mapping in _mappings(maps, _LIBRARY, "libnccl.so"):
        name = _LIBRARY.search(mapping.path)
        by_name = parse_version(name[1]) if name is not None and name[1] and "." in name[1] else None
        return Library(mapping.path, _embedded(process, mapping) or by_name)
    for mapping in _mappings(maps, _HOST, "libtorch"):
        version = _embedded(process, mapping)
        if version is not None:
            return Library(mapping.path, version)
    return None


def _embedded(process: Path, mapping: _Mapping) -> Version | None:
    return next(filter(None, map(embedded_version, _files(process, mapping))), None)


def _mappings(maps: str, names: re.Pattern[str], part: str) -> Iterator[_Mapping]:
    """The mapped files of these names, each once; `part` is in all of them."""
    seen: set[str] = set()
    for line in maps.splitlines() if part in maps else ():
        found = _MAP_LINE.match(line) if part in line else None
        if found is None or found["path"] in seen:
            continue
        seen.add(found["path"])
        path = found["path"].removesuffix(" (deleted)")
        if names.match(path.rsplit("/", 1)[-1]):
            yield _Mapping(path, path != found["path"], found["range"])


def _files(process: Path, mapping: _Mapping) -> Iterator[Path]:
    """Where the file can be read: in the process's own file tree, or by its mapping where it was replaced."""
    if not mapping.deleted:
        yield process / "root" / mapping.path.lstrip("/")
    yield process / "map_files" / mapping.address_range


def embedded_version(path: Path) -> Version | None:
    """The version among the constants (`.rodata`) of a 64-bit ELF file; None where it cannot be found."""
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if identity not in _versions:
                if len(_versions) >= _MOST_VERSIONS:
                    _versions.clear()
                _versions[identity] = _searched(file)
            return _versions[identity]
    except (OSError, struct.error, ValueError, IndexError):
        return None  # not ours to read, or no ELF file: then the name has to say


def _searched(file: BinaryIO) -> Version | None:
    for offset, size in _rodata(file.read(64), file):
        end = offset + min(size, _LARGEST_RODATA)
        for start in range(offset, end, _PIECE):
            file.seek(start)
            data = file.read(min(_PIECE + _OVERLAP, end - start))
            at = data.find(_MARK)
            while at >= 0:
                found = _EMBEDDED.match(data, at)
                if found:
                    return parse_version(found[1].decode("ascii", "replace"))
                at = data.find(_MARK, at + 1)
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
