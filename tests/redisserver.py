"""A real Redis of a test run, reached by a socket in a folder alone, which keeps nothing when it ends."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

from tests.running import wait_for


class Server:
    """A server that runs from the start until `stop`."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server")
        assert program, "Redis is not installed (Debian: redis-server)"
        self._socket = folder / "redis.sock"
        self._command = [program, "--port", "0", "--unixsocket", str(self._socket), "--save", ""]
        self._command += ["--dir", str(folder)]
        self.url = f"unix://{self._socket}?db=0"
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        wait_for(self._listens)

    def stop(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self._socket)) == 0
