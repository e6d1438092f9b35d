"""What a job of the suite tells its watcher through files: the iteration of each rank, and that a fault struck."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_BEAT = struct.Struct("=q")
_BEATS = "beats"


class Signs:
    """`folder` is shared by watcher and ranks; the watcher makes it, with `create`."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.folder = folder
        self._ranks = ranks
        with (folder / _BEATS).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), ranks * _BEAT.size)

    @classmethod
    def create(cls, folder: Path, ranks: int) -> Signs:
        folder.mkdir(parents=True)
        (folder / _BEATS).write_bytes(bytes(ranks * _BEAT.size))
        return cls(folder, ranks)

    def beat(self, rank: int, iteration: int) -> None:
        """This rank begins this iteration."""
        _BEAT.pack_into(self._map, rank * _BEAT.size, iteration)

    def beats(self) -> tuple[int, ...]:
        """The iteration that each rank began last, 0 where none."""
        return tuple(_BEAT.unpack_from(self._map, rank * _BEAT.size)[0] for rank in range(self._ranks))

    def strike(self, rank: int) -> None:
        """The fault is about to take effect in this rank, or in a helper of it."""
        (self.folder / f"struck-{rank}").touch()

    def struck(self) -> frozenset[int]:
        """The ranks in which it is."""
        return frozenset(int(path.name.partition("-")[2]) for path in self.folder.glob("struck-*"))
