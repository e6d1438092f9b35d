"""The index of captures and incidents in a database: SQLite by default, PostgreSQL when it is shared.

A capture is durable once its row is committed here; the queue only says that there is work. Everything but
open incidents and queued captures can be rebuilt from the bundles' manifests.

Methods raise CannotStore where the database fails.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa

from snapshotter.bundle import records
from snapshotter.bundle.database import (
    WRITE_TIMEOUT,
    captures,
    incidents,
    lock_jobs,
    metadata,
    open_engine,
    storing,
)
from snapshotter.bundle.records import CaptureRecord, CaptureState
from snapshotter.bundle.room import Room, room
from snapshotter.bundle.schema import CaptureRequest, Manifest, storable
from snapshotter.errors import CannotStore
from snapshotter.incidents import Incident

__all__ = ["CaptureRecord", "CaptureState", "Decisions", "Index"]


_LAST_INCIDENT = (
    sa.select(incidents.c.data)
    .where(incidents.c.job_id == sa.bindparam("job_id"))
    .order_by(incidents.c.id.desc())
    .limit(1)
)


class Index:
    """All captures and incidents. Safe for many threads and, on PostgreSQL, many snapshotters."""

    def __init__(self, url: str) -> None:
        """`url` is SQLAlchemy's; tables are made where they are missing. Raises CannotStore."""
        self._engine = open_engine(url)
        self._writer = threading.Lock()
        try:
            with self._writing() as connection:
                lock_jobs(connection, ["tables of hangscope"])  # two that start at once would both make them
                metadata.create_all(connection)
        except CannotStore:
            self._engine.dispose()
            raise

    def close(self) -> None:
        self._engine.dispose()

    def room(self) -> Room | None:
        """The room where SQLite's file is, None where the database is a server's. Raises OSError."""
        url = self._engine.url
        file = url.database if url.get_backend_name() == "sqlite" else None
        return room(Path(file).parent) if file else None

    # Incidents and new captures

    def last_incidents(self, job_ids: Sequence[str]) -> dict[str, Incident]:
        """The newest incident of each job, open or closed."""
        with self._reading() as connection:
            return _last_incidents(connection, job_ids)

    def open_incidents(self) -> tuple[Incident, ...]:
        query = sa.select(incidents.c.data).where(incidents.c.closed_at.is_(None)).order_by(incidents.c.id)
        with self._reading() as connection:
            return tuple(records.incident(data) for data in connection.scalars(query))

    @contextlib.contextmanager
    def deciding(self, job_ids: Iterable[str]) -> Iterator[Decisions]:
        """A transaction in which nobody else decides about these jobs."""
        with self._writing() as connection:
            lock_jobs(connection, job_ids)
            yield Decisions(connection)

    def hand_out(self, limit: int, now: float) -> tuple[str, ...]:
        """Captures that wait and were not handed to the queue yet, oldest first; from now on they were."""
        waiting = (
            sa.select(captures.c.id)
            .where(captures.c.state == "queued", captures.c.enqueued_at.is_(None))
            .order_by(captures.c.id)
            .limit(limit)
            .with_for_update(skip_locked=True)  # what another snapshotter hands out just now
        )
        with self._writing(lasting=False) as connection:
            ids = tuple(connection.scalars(waiting))
            if ids:
                connection.execute(captures.update().where(captures.c.id.in_(ids)).values(enqueued_at=now))
        return ids

    def take_back(self, ids: Sequence[str]) -> None:
        """These could not be handed to the queue: they wait as before."""
        self._update(sa.and_(captures.c.id.in_(ids), captures.c.state == "queued"), enqueued_at=None)

    def requeue_lost(self, *, now: float, enqueued_before: float) -> None:
        """Have captures handed out again whose owner is gone, or which the queue lost."""
        lost_owner = sa.and_(captures.c.state == "running", captures.c.lease_until < now)
        lost_message = sa.and_(captures.c.state == "queued", captures.c.enqueued_at < enqueued_before)
        self._update(lost_owner, state="queued", enqueued_at=None, owner=None, lease_until=None)
        self._update(lost_message, enqueued_at=None)

    def requeue_own(self, owner: str) -> None:
        """At the start of `owner`: what it ran when it died, and what waited, is handed out again."""
        self._update(
            sa.and_(captures.c.state == "running", captures.c.owner == owner),
            state="queued",
            enqueued_at=None,
            owner=None,
            lease_until=None,
        )
        self._update(captures.c.state == "queued", enqueued_at=None)

    # The life of a capture

    def claim(self, capture_id: str, owner: str, *, now: float, lease: float) -> CaptureRecord | None:
        """Take a waiting capture, if nobody else has and its job is not being captured right now."""
        record = self.get(capture_id)
        if record is None or record.state != "queued":
            return None
        busy = sa.select(captures.c.id).where(
            captures.c.job_id == record.job_id,
            captures.c.state == "running",
            captures.c.lease_until >= now,
        )
        with self._writing(lasting=False) as connection:
            lock_jobs(connection, [record.job_id])
            waiting = sa.and_(captures.c.id == capture_id, captures.c.state == "queued")
            if connection.execute(busy.limit(1)).first() is not None:
                connection.execute(captures.update().where(waiting).values(enqueued_at=None))
                return None
            taken = connection.execute(
                captures.update()
                .where(waiting)
                .values(
                    state="running",
                    owner=owner,
                    lease_until=now + lease,
                    started_at=now,
                    attempts=captures.c.attempts + 1,
                )
            )
        return self.get(capture_id) if taken.rowcount == 1 else None

    def renew(self, ids: Iterable[str], owner: str, until: float) -> frozenset[str]:
        """Prolong the leases of `owner`; returns those that are still its own."""
        wanted = tuple(ids)
        mine = sa.and_(captures.c.id.in_(wanted), captures.c.owner == owner, captures.c.state == "running")
        self._update(mine, lease_until=until)
        with self._reading() as connection:
            return frozenset(connection.scalars(sa.select(captures.c.id).where(mine)))

    def set_progress(self, capture_id: str, text: str) -> None:
        self._update(captures.c.id == capture_id, progress=text)

    def finish(self, manifest: Manifest, size: int, owner: str) -> bool:
        """Record a capture whose bundle of `size` bytes is stored; False if it is no longer the owner's.

        Whether it is pinned stays: that may have been said while it was taken.
        """
        row = records.manifest_row(manifest, size)
        del row["pinned"]
        mine = sa.and_(captures.c.id == manifest.capture_id, captures.c.owner == owner)
        return self._update(mine, **row)

    def fail(self, capture_id: str, owner: str, error: str, now: float) -> bool:
        """Record that a capture left nothing; False if it is no longer the owner's."""
        return self._update(
            sa.and_(captures.c.id == capture_id, captures.c.owner == owner),
            state="failed",
            outcome="failed",
            error=error,
            finished_at=now,
            owner=None,
            lease_until=None,
        )

    # Looking up

    def get(self, capture_id: str) -> CaptureRecord | None:
        with self._reading() as connection:
            row = connection.execute(sa.select(captures).where(captures.c.id == capture_id)).first()
        return None if row is None else records.record(row)

    def list(
        self, *, job_id: str | None = None, before: str | None = None, limit: int = 50
    ) -> tuple[CaptureRecord, ...]:
        """Newest first; `before` is the id of the last capture of the page before."""
        query = sa.select(captures).order_by(captures.c.id.desc()).limit(limit)
        if job_id is not None:
            query = query.where(captures.c.job_id == storable(job_id))
        if before is not None:
            query = query.where(captures.c.id < before)
        return self._records(query)

    def newest(self, *, verdicts_only: bool = False, limit: int = 1000) -> tuple[CaptureRecord, ...]:
        """The newest capture of each job (or the newest with a verdict), newest first."""
        ids = sa.select(sa.func.max(captures.c.id)).group_by(captures.c.job_id)
        if verdicts_only:
            ids = ids.where(captures.c.verdict.is_not(None))
        query = sa.select(captures).where(captures.c.id.in_(ids)).order_by(captures.c.id.desc()).limit(limit)
        return self._records(query)

    def waiting(self, job_id: str) -> CaptureRecord | None:
        """A capture of the job that waits to be taken."""
        query = sa.select(captures).where(captures.c.job_id == job_id, captures.c.state == "queued").limit(1)
        return next(iter(self._records(query)), None)

    def latest(self, job_id: str) -> CaptureRecord | None:
        """The newest capture of the job that is not still waiting or running, else the newest at all."""
        finished = captures.c.state.in_(("done", "failed"))
        query = sa.select(captures).where(captures.c.job_id == storable(job_id))
        query = query.order_by(sa.case((finished, 1), else_=0).desc(), captures.c.id.desc()).limit(1)
        return next(iter(self._records(query)), None)

    def last_scheduled_at(self, job_id: str, before: float) -> float | None:
        """When the newest scheduled capture of the job was asked for that is older than `before`."""
        with self._reading() as connection:
            return _last_scheduled_at(connection, job_id, before)

    def queue_length(self) -> int:
        query = sa.select(sa.func.count()).where(captures.c.state == "queued")
        with self._reading() as connection:
            return connection.scalar(query) or 0

    def total_bytes(self) -> int:
        with self._reading() as connection:
            return int(connection.scalar(sa.select(sa.func.sum(captures.c.bytes))) or 0)

    def finished(self) -> tuple[CaptureRecord, ...]:
        """All captures that are done or failed, oldest first."""
        query = sa.select(captures).where(captures.c.state.in_(("done", "failed"))).order_by(captures.c.id)
        return self._records(query)

    # Changing

    def set_pinned(self, capture_id: str, pinned: bool) -> None:
        self._update(captures.c.id == capture_id, lasting=True, pinned=pinned)

    def delete(self, capture_id: str) -> bool:
        """Forget a capture that does not run."""
        with self._writing() as connection:
            idle = sa.and_(captures.c.id == capture_id, captures.c.state != "running")
            return connection.execute(captures.delete().where(idle)).rowcount == 1

    def adopt(self, manifest: Manifest, size: int) -> None:
        """Enter a bundle by its manifest alone, in place of what was known of it."""
        values = records.new_row(manifest.request, enqueued_at=None) | records.manifest_row(manifest, size)
        with self._writing() as connection:
            connection.execute(captures.delete().where(captures.c.id == manifest.capture_id))
            connection.execute(captures.insert().values(**values))

    def restore(self, found: Sequence[Incident]) -> None:
        """Enter incidents that are not known."""
        with self._writing() as connection:
            for one in found:
                if connection.scalar(sa.select(incidents.c.id).where(incidents.c.id == one.id)) is None:
                    connection.execute(incidents.insert().values(**records.incident_row(one)))

    def _records(self, query: sa.Select[Any]) -> tuple[CaptureRecord, ...]:
        with self._reading() as connection:
            return tuple(records.record(row) for row in connection.execute(query))

    def _update(self, where: sa.ColumnElement[bool], *, lasting: bool = False, **values: Any) -> bool:
        with self._writing(lasting=lasting) as connection:
            return connection.execute(captures.update().where(where).values(**values)).rowcount > 0

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with storing(), self._engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def _writing(self, *, lasting: bool = True) -> Iterator[sa.Connection]:
        """A transaction; `lasting`: it survives a power cut, not only the end of this process.

        What is not lasting is found out again after a power cut: a capture that was claimed waits again, one
        that was finished is entered from its bundle.
        """
        with storing(), self._turn(), self._engine.connect() as connection:
            connection = connection.execution_options(hangscope_writes="FULL" if lasting else "NORMAL")
            with connection.begin():
                yield connection

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """SQLite has one writer; who waits for its lock sleeps for up to 0.1 s at a time, so wait in line here."""
        if self._engine.dialect.name != "sqlite":
            yield
            return
        if not self._writer.acquire(timeout=WRITE_TIMEOUT):
            raise CannotStore("the index cannot be used: it is busy", "check the disk it is on")
        try:
            yield
        finally:
            self._writer.release()


class Decisions:
    """What may be done inside `Index.deciding`."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def last_incidents(self, job_ids: Sequence[str]) -> dict[str, Incident]:
        return _last_incidents(self._connection, job_ids)

    def last_scheduled_at(self, job_id: str, before: float) -> float | None:
        return _last_scheduled_at(self._connection, job_id, before)

    def save(self, changed: Sequence[Incident]) -> None:
        """Store incidents, new or known."""
        if not changed:
            return
        known = set()
        for chunk in _chunks([one.id for one in changed]):
            known |= set(self._connection.scalars(sa.select(incidents.c.id).where(incidents.c.id.in_(chunk))))
        new = [records.incident_row(one) for one in changed if one.id not in known]
        if new:
            self._connection.execute(incidents.insert(), new)
        for one in changed:
            if one.id in known:
                row = records.incident_row(one)
                self._connection.execute(incidents.update().where(incidents.c.id == one.id).values(**row))

    def add(self, requests: Sequence[CaptureRequest], *, enqueued_at: Mapping[str, float]) -> None:
        """Enter new captures; `enqueued_at` says which go to the queue at once."""
        rows = [records.new_row(one, enqueued_at=enqueued_at.get(one.capture_id)) for one in requests]
        if rows:
            self._connection.execute(captures.insert(), rows)


def _last_incidents(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, Incident]:
    if len(job_ids) == 1:
        data = connection.scalar(_LAST_INCIDENT, {"job_id": job_ids[0]})
        return {} if data is None else {job_ids[0]: records.incident(data)}
    found: dict[str, Incident] = {}
    for chunk in _chunks(job_ids):
        newest = sa.select(sa.func.max(incidents.c.id)).where(incidents.c.job_id.in_(chunk))
        query = sa.select(incidents.c.data).where(incidents.c.id.in_(newest.group_by(incidents.c.job_id)))
        for data in connection.scalars(query):
            incident = records.incident(data)
            found[incident.job_id] = incident
    return found


def _last_scheduled_at(connection: sa.Connection, job_id: str, before: float) -> float | None:
    query = sa.select(sa.func.max(captures.c.requested_at)).where(
        captures.c.job_id == job_id, captures.c.trigger == "schedule", captures.c.requested_at < before
    )
    return cast("float | None", connection.scalar(query))


def _chunks(ids: Sequence[str], size: int = 500) -> Iterator[Sequence[str]]:
    """Pieces short enough for one IN list."""
    for start in range(0, len(ids), size):
        yield ids[start : start + size]
