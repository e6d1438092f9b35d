"""The database under the index: its tables, how it is opened, and who may write when."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from snapshotter.errors import CannotStore

WRITE_TIMEOUT = 5.0  # seconds that a writer waits for its turn
# How long a server is waited for that has gone without a word, in libpq's terms: seconds, but for the last,
# milliseconds. Without them the kernel takes a quarter of an hour and more to give a connection up.
POSTGRESQL_SILENCE = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

metadata = sa.MetaData()

captures = sa.Table(
    "captures",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("job_id", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("trigger", sa.Text, nullable=False),
    sa.Column("requested_at", sa.Double, nullable=False),
    sa.Column("request", sa.Text, nullable=False),  # CaptureRequest as JSON
    sa.Column("enqueued_at", sa.Double),  # None: not handed to the queue yet
    sa.Column("owner", sa.Text),  # the snapshotter that takes it
    sa.Column("lease_until", sa.Double),  # when another may take it over
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sa.Column("progress", sa.Text, nullable=False, default=""),
    sa.Column("started_at", sa.Double),
    sa.Column("finished_at", sa.Double),
    sa.Column("outcome", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("verdict", sa.Text),  # VerdictSummary as JSON
    sa.Column("processes", sa.Integer, nullable=False, default=0),
    sa.Column("processes_ok", sa.Integer, nullable=False, default=0),
    sa.Column("bytes", sa.BigInteger, nullable=False, default=0),
    sa.Column("pinned", sa.Boolean, nullable=False, default=False),
    sa.Index("captures_of_job", "job_id", "id"),
    sa.Index("captures_by_state", "state", "id"),
)

incidents = sa.Table(
    "incidents",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("job_id", sa.Text, nullable=False),
    sa.Column("opened_at", sa.Double, nullable=False),
    sa.Column("closed_at", sa.Double),
    sa.Column("data", sa.Text, nullable=False),  # Incident as JSON
    sa.Index("incidents_of_job", "job_id", "id"),
    sa.Index("incidents_open", "closed_at"),
)


def open_engine(url: str) -> sa.Engine:
    """The engine of a SQLAlchemy URL, SQLite or PostgreSQL. Raises CannotStore for others."""
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise CannotStore(
            "storage.index is no address of a database", "write it as sqlite:// or postgresql://"
        ) from error
    if parsed.get_backend_name() == "postgresql":
        return sa.create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            pool_pre_ping=True,
            pool_size=10,
            max_overflow=20,
            pool_timeout=5,
            connect_args=POSTGRESQL_SILENCE,
        )
    if parsed.get_backend_name() != "sqlite":
        raise CannotStore(f"no index at {parsed.render_as_string()}", "give a sqlite:// or postgresql:// URL")
    if parsed.database:
        try:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotStore(
                f"the index cannot be in {Path(parsed.database).parent}: {error.strerror}",
                "give another --storage.path, or storage.index",
            ) from error
    engine = sa.create_engine(
        parsed, pool_size=10, max_overflow=20, pool_timeout=5, connect_args={"timeout": WRITE_TIMEOUT}
    )

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # BEGIN is ours: the driver's own comes too late for IMMEDIATE
        connection.execute("PRAGMA journal_mode=WAL")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        synchronous = connection.get_execution_options().get("hangscope_writes")
        if synchronous is None:
            connection.exec_driver_sql("BEGIN")
        else:
            connection.exec_driver_sql(f"PRAGMA synchronous={synchronous}")
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


@contextlib.contextmanager
def storing() -> Iterator[None]:
    """Turns whatever the database raises into CannotStore."""
    try:
        yield
    except SQLAlchemyError as error:
        problem = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        damaged = "not a database" in problem or "malformed" in problem  # in SQLite's words
        remedy = (
            "move its file away and run reindex"
            if damaged
            else "check the database, and the room on its disk"
        )
        raise CannotStore(f"the index cannot be used: {problem}", remedy) from error


def lock_jobs(connection: sa.Connection, job_ids: Iterable[str]) -> None:
    """Keep other snapshotters off these jobs until the transaction ends; SQLite has one writer anyway."""
    if connection.dialect.name != "postgresql":
        return
    keys = {int.from_bytes(hashlib.sha256(one.encode()).digest()[:8], signed=True) for one in job_ids}
    for key in sorted(keys):  # in one order, so that two never wait for each other
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
