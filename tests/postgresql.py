"""A real PostgreSQL of a test run, in its own folder and reached by a socket there alone."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

_databases = count()
_PATIENT = ("-w", "-t", "240")  # seconds that pg_ctl waits on a busy machine


def binaries() -> Path:
    """Where Debian puts initdb and pg_ctl: not on the PATH, by version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    path = found[-1] if found else shutil.which("initdb")
    assert path, "PostgreSQL's server is not installed (Debian: postgresql)"
    return Path(path).parent


class Server:
    """A server that runs from the start until `stop`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bin = binaries()
        self._account: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            account = pwd.getpwnam("postgres")
            os.chown(folder, account.pw_uid, account.pw_gid)
            self._account = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        data = str(folder / "data")
        self._run(
            "initdb", "-D", data, "-U", "hangscope", "-A", "trust", "-N", "-E", "UTF8", "--locale=C.UTF-8"
        )
        settings = (
            f"-c listen_addresses='' -c unix_socket_directories={folder} -c max_connections=200 -c fsync=off"
        )
        self._start = ("pg_ctl", "-D", data, "-l", str(folder / "log"), "-o", settings, *_PATIENT, "start")
        self.start()

    def start(self) -> None:
        self._run(*self._start)

    def stop(self, mode: str = "immediate") -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", mode, *_PATIENT, "stop")

    def database(self) -> str:
        """The URL of a new, empty database."""
        name = f"hangscope{next(_databases)}"
        with psycopg.connect(
            f"postgresql://hangscope@/postgres?host={self.folder}", autocommit=True
        ) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return f"postgresql://hangscope@/{name}?host={self.folder}"

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._bin / program), *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT if program == "initdb" else subprocess.DEVNULL,
            check=False,
            **self._account,
        )
        assert done.returncode == 0, f"{program}: {done.stdout!r}"
