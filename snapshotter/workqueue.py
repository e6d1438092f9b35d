"""The task queue that carries capture ids to the workers: huey on SQLite, PostgreSQL or Redis.

The index is what remembers captures; a message lost here is sent again from there.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import huey
from huey.consumer import Consumer
from huey.storage import SqliteStorage

from snapshotter.bundle.database import POSTGRESQL_SILENCE
from snapshotter.errors import CannotStore

_NAME = "hangscope"
_HEALTH_EVERY = 10.0
_LOCK = 0x68616E67  # any number that nobody else locks
REDIS_SILENCE = 5.0  # seconds; well above the second for which a worker waits for a task


def open_queue(url: str | None, folder: Path) -> huey.Huey:
    """The queue at a URL, or in SQLite in `folder`. Raises CannotStore with what is missing."""
    scheme = urlsplit(url).scheme.partition("+")[0] if url else "sqlite"
    common: dict[str, Any] = {"results": False, "utc": True}
    try:
        if scheme == "sqlite":
            path = folder / "queue.db" if url is None else Path(urlsplit(url).path.removeprefix("/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            return huey.Huey(_NAME, storage_class=_SqliteStorage, filename=str(path), **common)
        if url is not None and scheme in ("postgresql", "postgres"):
            return _open_postgresql(f"postgresql://{url.partition('://')[2]}", common)
        if url is not None and scheme in ("redis", "rediss", "unix"):
            return huey.RedisHuey(_NAME, url=_impatient(url), **common)
    except Exception as error:
        # The drivers raise types of their own, and huey one where a driver is not installed.
        raise CannotStore(f"the queue cannot be used: {error}", "check storage.queue") from error
    raise CannotStore(
        f"storage.queue: no queue of the kind {scheme!r}", "give a sqlite:, postgresql: or redis: URL"
    )


def _impatient(url: str) -> str:
    """A Redis URL with limits to how long a silent server is waited for, where it has none of its own."""
    place, _, query = url.partition("?")
    limits = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), f"{REDIS_SILENCE}")
    return f"{place}?{urlencode(limits | dict(parse_qsl(query)))}"


def _open_postgresql(dsn: str, common: dict[str, Any]) -> huey.Huey:
    import psycopg  # an extra
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    dsn = make_conninfo("", **(POSTGRESQL_SILENCE | conninfo_to_dict(dsn)))
    with psycopg.connect(dsn) as connection:  # two that start at once would both make tables
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        return huey.PostgresHuey(_NAME, dsn=dsn, table_prefix=_NAME, **common)


class _SqliteStorage(SqliteStorage):  # type: ignore[misc]
    """SQLite without a wait for the disk at each message, and whole after a power cut all the same."""

    def _create_connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection = super()._create_connection()
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection


class _QuietConsumer(Consumer):  # type: ignore[misc]
    """A consumer inside a larger program, which has its own signal handlers."""

    def _set_signal_handlers(self) -> None:
        pass


class _Seldom(logging.Filter):
    """The same trouble again and again as one line a minute, without a traceback."""

    def __init__(self, *, every: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every = every
        self._clock = clock
        self._told: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info is None:
            return True
        now, said = self._clock(), str(record.msg)
        if now - self._told.get(said, -self._every) < self._every:
            return False
        self._told[said] = now
        record.msg, record.args = "%s: %s", (record.getMessage(), record.exc_info[1])
        record.exc_info = record.exc_text = None
        return True


class Workers:
    """The threads that take tasks off the queue, and the one that sends periodic tasks."""

    def __init__(self, queue: huey.Huey, count: int, *, stop_seconds: float = 10.0) -> None:
        library = logging.getLogger("huey")
        if not logging.getLogger(__name__).isEnabledFor(logging.DEBUG):
            library.setLevel(logging.WARNING)  # else two lines for each task, beside our own
        for name in ("consumer.Worker", "consumer.Scheduler"):
            library.getChild(name).filters = [_Seldom()]
        self._consumer = _QuietConsumer(
            queue,
            workers=count,
            periodic=True,
            initial_delay=0.05,
            backoff=1.1,
            max_delay=0.5,  # a hang is not to wait for a sleeping worker
            scheduler_interval=1,
            shutdown_timeout=stop_seconds,
        )
        self._watching = threading.Thread(target=self._watch, name="queue", daemon=True)
        self._stop = threading.Event()

    def start(self) -> None:
        self._consumer.start()
        self._watching.start()

    def stop(self) -> None:
        """Let tasks under way end, for some seconds; what does not end is taken up at the next start."""
        self._stop.set()
        self._consumer.stop(graceful=True)

    def _watch(self) -> None:
        while not self._stop.wait(_HEALTH_EVERY):
            self._consumer.check_worker_health()  # a thread that died is started anew
