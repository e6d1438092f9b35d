"""Who this snapshotter is, across restarts: an id in its data folder, held by a lock while it runs.

What an instance ran when it died is taken up again at its next start; the lock sees to it that no second
process takes the same captures for left behind. The kernel drops the lock with the process, kill -9 included.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from pathlib import Path

from snapshotter.errors import CannotStore


class Instance:
    """The held lock and the id in it; released with `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        """Raises CannotStore where the folder cannot be used or another snapshotter holds it."""
        path = folder / "instance"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._file = path.open("a+", encoding="ascii", errors="replace")
        except OSError as error:
            raise CannotStore(
                f"the data folder {folder} cannot be used: {error.strerror}", "give another --storage.path"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise CannotStore(
                f"another snapshotter runs on the data folder {folder}",
                "stop it, or give this one a --storage.path of its own",
            ) from error
        self._file.seek(0)
        known = self._file.read().strip()
        self.id = known if re.fullmatch(r"[0-9a-f]{16}", known) else self._make()

    def release(self) -> None:
        self._file.close()

    def _make(self) -> str:
        made = secrets.token_hex(8)
        self._file.truncate(0)
        self._file.write(made + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        return made
