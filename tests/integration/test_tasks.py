"""The life of captures in one process: time is the test's, stores and queues fail on demand."""

from __future__ import annotations

import io
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from exporter.yamlconfig import Duration, Size
from snapshotter import app, maintenance, workqueue
from snapshotter.alertmanager import JobAlerts, Reading
from snapshotter.bundle import reader
from snapshotter.bundle.index import CaptureRecord, Index
from snapshotter.bundle.schema import AlertInfo, CaptureRequest
from snapshotter.bundle.store import BundleStore
from snapshotter.config import Config, IncidentConfig, ScheduleConfig, StorageConfig
from snapshotter.errors import CannotStore
from snapshotter.gathered import Gathered
from snapshotter.incidents import AlertEvent
from snapshotter.metrics import Metrics
from snapshotter.stacks.model import NodeAnswer, Process
from snapshotter.tasks import LEASE, Tasks
from snapshotter.workqueue import _Seldom, open_queue
from tests.running import wait_for

VERDICT = {
    "hung": True,
    "scope": "local",
    "cause": "application",
    "culprit_ranks": "0",
    "culprit_nodes": ["gpu-1"],
    "confidence": 0.5,
    "headline": "Rank 0 is stuck.",
}


class Clock:
    def __init__(self) -> None:
        self.now = 1_796_001_753.0

    def __call__(self) -> float:
        return self.now


class Failing:
    """A store that fails as often as it is told."""

    def __init__(self, store: BundleStore) -> None:
        self._store = store
        self.failures = 0

    def put(self, capture_id: str, files: dict[str, bytes]) -> bool:
        if self.failures > 0:
            self.failures -= 1
            raise OSError(28, "No space left on device")
        return self._store.put(capture_id, files)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@dataclass
class World:
    """One snapshotter and what is around it."""

    tasks: Tasks
    index: Index
    store: Any
    queue: Any
    metrics: Metrics
    clock: Clock
    folder: Path
    settings: list[Config]  # one: the configuration in force
    captured: list[CaptureRequest] = field(default_factory=list)
    capture: Callable[[CaptureRequest], tuple[NodeAnswer, ...]] = lambda request: (
        NodeAnswer("gpu-1", "ok", 1.0, 2.0, request.job_id, None, (Process(1, "gpu-1", "trainer", 0, "ok"),)),
    )

    def alert(
        self, job_id: str = "llama", *, firing: bool = True, since: float | None = None
    ) -> tuple[str, ...]:
        self.clock.now += 0.001  # ids of one moment have no order
        event = AlertEvent("a", firing, since or self.clock.now, None if firing else self.clock.now)
        reading = Reading("hangscope", (JobAlerts(job_id, (event,), AlertInfo),), 0)
        return tuple(one.capture_id for one in self.tasks.notify(reading, "test").requests)

    def work(self) -> None:
        """Do what the queue holds, in this thread."""
        while (task := self.queue.dequeue()) is not None:
            self.queue.execute(task)

    def record(self, capture_id: str) -> CaptureRecord:
        record = self.index.get(capture_id)
        assert record is not None
        return record

    def records(self) -> tuple[CaptureRecord, ...]:
        return self.index.list(limit=500)


Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Snapshotters without threads of their own, on one index; each has a queue of its own."""
    made: list[World] = []

    def build(name: str = "one", config: Config | None = None) -> World:
        given, folder, clock = config or Config(), tmp_path, made[0].clock if made else Clock()
        settings = [given]
        index = app.open_index(given, folder)
        store = Failing(app.open_bundles(given, folder))
        queue = open_queue(None, folder / name)
        metrics = Metrics(lambda: "http://localhost", now=clock)
        world: World

        def capture(request: CaptureRequest, progress: Callable[[str], None]) -> tuple[Gathered, ...]:
            world.captured.append(request)
            return tuple(map(Gathered.of, world.capture(request)))

        tasks = Tasks(
            lambda: settings[0],
            index,
            store,
            queue,
            metrics,
            owner=name,
            capture=capture,
            analyse=lambda job_id, trees, at: {"schema_version": 1, "verdict": VERDICT},
            now=clock,
            store_retries=(0.0, 0.0),
        )
        world = World(tasks, index, store, queue, metrics, clock, folder, settings)
        made.append(world)
        return world

    yield build
    for world in made:
        world.index.close()
        world.queue.storage.close()


@pytest.fixture
def world(make: Make) -> World:
    return make()


def test_a_capture_goes_from_request_to_bundle(world: World) -> None:
    (capture_id,) = world.alert()
    assert world.record(capture_id).state == "queued"
    world.work()
    record = world.record(capture_id)
    assert (record.state, record.outcome, record.attempts) == ("done", "complete", 1)
    assert record.verdict is not None and record.verdict.culprit_ranks == "0"
    assert reader.open_bundle(world.store, capture_id).manifest().request == record.request


def test_while_a_hang_lasts_it_is_captured_at_growing_intervals_up_to_a_bound(world: World) -> None:
    started, taken = world.clock.now, []
    world.alert()
    for _ in range(100):  # five hours, three minutes at a time
        world.work()
        world.clock.now += 180
        world.alert(since=started)
        before = len(world.captured)
        world.tasks.tick()
        world.work()
        if len(world.captured) > before:
            taken.append((world.clock.now - started) / 60)
    assert taken == pytest.approx([15, 45, 105], abs=0.1)  # after 15 minutes, then 30, then 60
    incident = world.captured[0].incident_id
    assert [(one.incident_id, one.number) for one in world.captured] == [(incident, n) for n in (1, 2, 3, 4)]


def test_a_resolved_hang_is_not_captured_again(world: World) -> None:
    world.alert()
    world.work()
    world.clock.now += 60
    world.alert(firing=False)
    world.clock.now += 7200
    world.tasks.tick()
    world.work()
    assert len(world.captured) == 1


def test_an_incident_of_which_nothing_is_heard_is_closed(world: World) -> None:
    world.alert()
    world.clock.now += 86_401
    world.tasks.tick()
    assert world.index.open_incidents() == ()
    assert len(world.records()) == 1


def test_scheduled_captures(make: Make) -> None:
    world = make(config=Config(schedules=(ScheduleConfig(job_id="llama", every=Duration(3600)),)))
    for _ in range(3 * 6):
        world.tasks.tick()
        world.work()
        world.clock.now += 600
    assert [(one.trigger, one.job_id) for one in world.captured] == [("schedule", "llama")] * 3


def test_a_clock_that_is_set_back_holds_up_nothing_and_doubles_nothing(make: Make) -> None:
    schedule = ScheduleConfig(job_id="llama", every=Duration(3600))
    world = make(config=Config(schedules=(schedule,)))
    (before,) = world.alert("other")
    world.tasks.tick()
    world.alert("other", firing=False)
    world.clock.now -= 86400
    for _ in range(5):
        world.tasks.tick()
        world.clock.now += 60
    since = world.clock.now
    (after,) = world.alert("other", since=since)
    for _ in range(5):
        assert world.alert("other", since=since) == ()
    world.work()
    assert [one.request.trigger for one in world.records() if one.job_id == "llama"] == ["schedule"] * 2
    newest = world.index.latest("other")
    assert newest is not None
    assert (newest.capture_id, world.index.last_incidents(["other"])["other"].captures) == (after, 1)
    assert before != after


def test_a_capture_under_way_is_not_taken_twice_when_the_clock_leaps(world: World) -> None:
    def leap(request: CaptureRequest) -> tuple[NodeAnswer, ...]:
        world.clock.now += 3600  # the machine slept
        world.tasks.tick()
        world.tasks.hand_out()
        return ()

    world.capture = leap
    world.tasks.request("llama", "by hand", "me")
    world.work()
    assert len(world.captured) == 1


def test_two_snapshotters_take_a_scheduled_capture_once(make: Make) -> None:
    config = Config(schedules=(ScheduleConfig(job_id="llama", every=Duration(3600)),))
    first, second = make("one", config), make("two", config)
    for world in (first, second):
        world.tasks.tick()
    for world in (first, second):
        world.work()
    assert len(first.captured) + len(second.captured) == 1


def test_a_lost_message_is_sent_again(world: World) -> None:
    (capture_id,) = world.alert()
    world.queue.flush()
    world.tasks.tick()
    world.work()
    assert world.captured == [], "it may still be on its way"
    world.clock.now += 301
    world.tasks.tick()
    world.work()
    assert world.record(capture_id).state == "done"


def test_a_queue_that_is_away_delays_captures_but_loses_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise ConnectionError("no queue")

    with monkeypatch.context() as patch:
        patch.setattr(world.queue.storage, "enqueue", away)
        (capture_id,) = world.alert()
    world.clock.now += 301
    world.tasks.tick()
    world.work()
    assert world.record(capture_id).state == "done"


def test_a_capture_waits_for_an_index_that_cannot_be_written(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    claim, refusals = world.index.claim, iter(range(2))

    def claimed(*given: Any, **named: Any) -> CaptureRecord | None:
        if next(refusals, None) is not None:
            raise CannotStore("the index cannot be used: database or disk is full")
        return claim(*given, **named)

    monkeypatch.setattr(world.index, "claim", claimed)
    monkeypatch.setattr("snapshotter.tasks._CLAIM_AGAIN", 0.01)
    (capture_id,) = world.alert()
    world.work()
    assert world.record(capture_id).state == "done"
    assert "Traceback" not in caplog.text


def test_what_fails_again_and_again_is_told_in_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    seldom = _Seldom(every=60, clock=lambda: now[0])
    logger = logging.getLogger("test.seldom")
    logger.addFilter(seldom)
    for at in range(0, 121, 10):
        now[0] = float(at)
        try:
            raise OSError("disk full")
        except OSError:
            logger.exception("cannot read %s", "it")
    logger.error("else")
    assert [one.getMessage() for one in caplog.records] == ["cannot read it: disk full"] * 3 + ["else"]
    assert not any(one.exc_info for one in caplog.records)


def test_a_repeated_message_is_one_capture(world: World) -> None:
    (capture_id,) = world.alert()
    world.tasks.take(capture_id)
    world.tasks.take(capture_id)
    world.work()
    assert len(world.captured) == 1


def test_a_message_about_a_deleted_capture_is_nothing(world: World) -> None:
    (capture_id,) = world.alert()
    world.tasks.delete(capture_id, "test")
    world.work()
    assert world.captured == []


def test_what_a_dead_snapshotter_ran_is_taken_over_when_its_lease_is_over(make: Make) -> None:
    dead, alive = make("one"), make("two")
    (capture_id,) = dead.alert()
    assert dead.index.claim(capture_id, "one", now=dead.clock.now, lease=LEASE)
    alive.clock.now += LEASE - 1
    alive.tasks.tick()
    alive.work()
    assert alive.captured == []
    alive.clock.now += 2
    alive.tasks.tick()
    alive.work()
    assert alive.record(capture_id).state == "done"
    assert alive.record(capture_id).attempts == 2


def test_one_that_was_only_thought_dead_does_not_overwrite(make: Make) -> None:
    """The first stalls in its capture past its lease; the second takes over; then the first wakes."""
    first, second = make("one"), make("two")
    (capture_id,) = first.alert()

    def stall(request: CaptureRequest) -> tuple[NodeAnswer, ...]:
        first.clock.now += LEASE + 1
        second.tasks.tick()
        second.work()
        return (NodeAnswer("late", "ok", 1.0, 2.0, request.job_id),)

    first.capture = stall
    first.work()
    assert len(first.captured) == len(second.captured) == 1
    assert [one.node for one in reader.open_bundle(first.store, capture_id).answers()] == ["gpu-1"]
    assert first.record(capture_id).outcome == "complete"
    assert [one.state for one in first.records()] == ["done"]


def test_one_whose_bundle_is_stored_first_wins_though_its_lease_was_over(make: Make) -> None:
    first, second = make("one"), make("two")
    (capture_id,) = first.alert()
    assert first.index.claim(capture_id, "one", now=first.clock.now, lease=LEASE)
    first.clock.now += LEASE + 1
    second.tasks.tick()

    def slower(request: CaptureRequest) -> tuple[NodeAnswer, ...]:
        first.tasks._taker.take(first.record(capture_id))  # the first ends meanwhile
        return (NodeAnswer("late", "ok", 1.0, 2.0, request.job_id),)

    second.capture = slower
    second.work()
    assert [one.node for one in reader.open_bundle(first.store, capture_id).answers()] == ["gpu-1"]
    assert second.record(capture_id).outcome == "complete", "the entry is that of the stored bundle"


def test_a_job_is_captured_by_one_at_a_time(make: Make) -> None:
    first, second = make("one"), make("two")

    def capture(request: CaptureRequest) -> tuple[NodeAnswer, ...]:
        if request.trigger == "alert":
            second.clock.now += 1
            second.tasks.request("llama", "again", "test")
            second.work()
            assert second.captured == []
        return ()

    first.alert()
    first.capture = capture
    first.work()
    assert [one.trigger for one in first.captured] == ["alert", "manual"]
    assert {one.state for one in first.records()} == {"done"}


def test_a_capture_that_always_kills_the_snapshotter_is_given_up(world: World) -> None:
    (capture_id,) = world.alert()

    def die(request: CaptureRequest) -> tuple[NodeAnswer, ...]:
        raise KeyboardInterrupt

    world.capture = die
    for _ in range(8):
        with suppress(KeyboardInterrupt):
            world.tasks.take(capture_id)
        world.index.requeue_own("one")  # as at the next start
    record = world.record(capture_id)
    assert (record.state, len(world.captured)) == ("failed", 5)
    assert record.error is not None and "given up" in record.error


# A full disk


def test_a_bundle_waits_until_there_is_room(world: World) -> None:
    (capture_id,) = world.alert()
    world.store.failures = 2
    world.work()
    assert world.record(capture_id).state == "done"
    assert len(world.captured) == 1, "the evidence waited in memory"


def test_a_bundle_for_which_there_is_never_room_fails_with_the_reason(world: World) -> None:
    (capture_id,) = world.alert()
    world.store.failures = 99
    world.work()
    record = world.record(capture_id)
    assert record.state == "failed"
    assert record.error is not None and "No space left on device" in record.error


def test_when_it_stops_meanwhile_the_capture_is_taken_again_at_the_next_start(world: World) -> None:
    (capture_id,) = world.alert()
    world.store.failures = 99
    world.tasks._stop.set()
    with pytest.raises(OSError, match="No space left"):
        world.tasks.take(capture_id)
    assert world.record(capture_id).state == "running"
    world.index.requeue_own("one")
    world.store.failures = 0
    world.tasks.hand_out()
    world.work()
    assert world.record(capture_id).state == "done"


def test_to_make_room_only_what_is_past_the_cap_goes(make: Make) -> None:
    world = make()
    first, second = (one for name in "ab" for one in world.alert(name))
    world.work()
    world.alert("c")
    world.store.failures = 1
    world.work()
    assert {one.job_id for one in world.records()} == {"a", "b", "c"}, "below the cap nothing goes"
    size = world.record(first).bytes
    world.settings[0] = Config(storage=StorageConfig(max_size=Size(2 * size + size // 2)))
    world.alert("d")
    world.store.failures = 1
    world.work()
    assert {one.job_id for one in world.records()} == {"b", "c", "d"}
    assert world.store.exists(second) and not world.store.exists(first)


# Retention


def test_captures_expire_by_age_unless_pinned(world: World) -> None:
    old, pinned = (one for name in ("old", "pinned") for one in world.alert(name))
    world.work()
    world.tasks.pin(pinned, True, "test")
    world.clock.now += 30 * 86_400 - 60
    (new,) = world.alert("new")
    world.work()
    world.tasks.collect_garbage()
    assert len(world.records()) == 3
    world.clock.now += 61
    world.tasks.collect_garbage()
    assert {one.capture_id for one in world.records()} == {pinned, new}
    assert set(world.store.list()) == {pinned, new}
    assert not world.store.exists(old)


def test_past_the_size_cap_the_oldest_go_first_and_pinned_ones_stay(world: World) -> None:
    ids = []
    for name in "abcde":
        ids += world.alert(name)
        world.work()
        world.clock.now += 1
    size = world.record(ids[0]).bytes
    world.tasks.pin(ids[0], True, "test")
    world.settings[0] = Config(storage=StorageConfig(max_size=Size(3 * size + 500)))
    world.tasks.collect_garbage()
    assert {one.capture_id for one in world.records()} == {ids[0], ids[3], ids[4]}
    world.tasks.collect_garbage()
    assert len(world.records()) == 3


def test_failed_captures_expire_too(world: World) -> None:
    def broken(request: CaptureRequest) -> tuple[NodeAnswer, ...]:
        raise RuntimeError("no")

    world.capture = broken
    world.alert()
    world.work()
    world.clock.now += 31 * 86_400
    world.tasks.collect_garbage()
    assert world.records() == ()


def test_gc_by_hand_says_what_it_did(world: World) -> None:
    (capture_id,) = world.alert()
    world.work()
    out = io.StringIO()
    late = world.clock.now + 31 * 86_400
    assert maintenance.gc(Config(), world.folder, now=lambda: late, out=out) == 0
    assert out.getvalue().startswith(f"{capture_id} deleted")
    assert "1 captures deleted, 0 bytes remain" in out.getvalue()
    assert list(world.store.list()) == []


# Reindex


def lose_index(world: World) -> None:
    world.index.close()
    for path in world.folder.glob("index.db*"):
        path.unlink()


def test_the_index_is_rebuilt_from_the_bundles(make: Make) -> None:
    world = make()
    ids = [one for name in "abc" for one in world.alert(name)]
    world.work()
    world.tasks.pin(ids[1], True, "test")
    before = world.records()
    lose_index(world)
    out = io.StringIO()
    assert maintenance.reindex(Config(), world.folder, out=out) == 0
    assert "3 bundles entered" in out.getvalue()
    again = make("two")
    after = again.records()
    assert [(one.request, one.verdict, one.outcome, one.pinned, one.processes) for one in after] == [
        (one.request, one.verdict, one.outcome, one.pinned, one.processes) for one in before
    ]
    assert [one.pinned for one in after] == [False, True, False]


def test_the_cool_down_holds_across_a_lost_index(make: Make) -> None:
    world = make()
    started = world.clock.now
    world.alert()
    world.work()
    lose_index(world)
    maintenance.reindex(Config(), world.folder, out=io.StringIO())
    again = make("two")
    again.clock.now += 300
    assert again.alert(since=started) == ()
    again.clock.now += 301
    again.alert(firing=False)
    assert len(again.alert()) == 1, "a new hang after it"


def test_reindex_names_damaged_bundles_and_drops_entries_without_one(make: Make) -> None:
    world = make()
    damaged, gone, good = (one for name in "abc" for one in world.alert(name))
    world.work()
    (world.folder / "bundles" / damaged / "manifest.json").write_text("{")
    world.store.delete(gone)
    out = io.StringIO()
    assert maintenance.reindex(Config(), world.folder, out=out) == 1
    assert f"left out: {damaged}/manifest.json" in out.getvalue()
    assert "1 bundles entered, 1 entries without a bundle removed" in out.getvalue()
    assert {one.capture_id for one in world.records()} == {damaged, good}


def test_a_bundle_under_another_name_is_not_entered(world: World) -> None:
    (capture_id,) = world.alert()
    world.work()
    folder = world.folder / "bundles"
    (folder / capture_id).rename(folder / "20200101T000000Z-000000000000")
    result = maintenance.rebuild(world.index, world.store)
    assert result.entered == 0 and len(result.damaged) == 1


# With its own threads


def served(world: World, name: str) -> list[tuple[dict[str, str], float]]:
    families = {family.name: family for family in world.metrics.collect()}
    return [(one.labels, one.value) for one in families[name].samples] if name in families else []


def test_the_room_of_each_place_is_measured(world: World) -> None:
    assert served(world, "snapshotter_storage_free_bytes") == []
    world.tasks.measure()
    there = os.statvfs(world.folder)
    size = there.f_blocks * there.f_frsize
    wanted = [({"holds": "bundles"}, size), ({"holds": "index"}, size)]
    assert served(world, "snapshotter_storage_size_bytes") == wanted
    for _, free in served(world, "snapshotter_storage_free_bytes"):
        assert 0 < free <= size


def test_an_object_store_has_no_room_to_tell_of(make: Make) -> None:
    world = make(config=Config(storage=StorageConfig(bundles="memory://bundles")))
    world.tasks.measure()
    assert [labels for labels, _ in served(world, "snapshotter_storage_free_bytes")] == [{"holds": "index"}]


def test_room_that_was_measured_long_ago_is_not_told(world: World) -> None:
    """As where the file system stopped answering."""
    world.tasks.measure()
    world.clock.now += 121
    assert served(world, "snapshotter_storage_free_bytes") == []


def test_a_place_that_fails_leaves_the_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(world.store, "room", fail, raising=False)
    world.tasks.measure()
    assert [labels for labels, _ in served(world, "snapshotter_storage_free_bytes")] == [{"holds": "index"}]


@pytest.mark.parametrize(
    ("headline", "told"),
    [
        ("Rank 3 waits\nfor\tdata.", "Rank 3 waits for data."),
        ("r" * 300, "r" * 300),
        ("r" * 301, "r" * 299 + "…"),
    ],
)
def test_a_headline_fits_a_label(
    world: World, monkeypatch: pytest.MonkeyPatch, headline: str, told: str
) -> None:
    monkeypatch.setitem(VERDICT, "headline", headline)
    (capture_id,) = world.alert()
    world.work()
    world.tasks.publish()
    assert served(world, "snapshotter_verdict_headline_info") == [
        ({"job_id": "llama", "capture_id": capture_id, "headline": told}, 1.0)
    ]


def test_the_periodic_tasks_are_registered_and_run(make: Make) -> None:
    world = make()
    names = {task.name for task in world.queue._registry.periodic_tasks}
    assert names == {"tick", "collect_garbage"}


def test_started_workers_take_captures_of_different_jobs_at_once(tmp_path: Path) -> None:
    together = threading.Barrier(3, timeout=60)

    def capture(request: CaptureRequest, progress: Callable[[str], None]) -> tuple[Gathered, ...]:
        together.wait()
        return ()

    config = Config(incidents=IncidentConfig(), workers=3)
    index, store = app.open_index(config, tmp_path), app.open_bundles(config, tmp_path)
    tasks = Tasks(
        lambda: config,
        index,
        store,
        open_queue(None, tmp_path),
        Metrics(lambda: ""),
        owner="one",
        capture=capture,
        analyse=lambda job_id, trees, at: {"schema_version": 1, "verdict": VERDICT},
    )
    tasks.start()
    try:
        for name in "abc":
            tasks.request(name, "", "test")
        wait_for(lambda: {one.state for one in index.list()} == {"done"})
    finally:
        tasks.stop()
        index.close()


def test_an_index_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "index.db").write_text("this is no database, however long it may be " * 100)
    with pytest.raises(CannotStore, match="not a database: move its file away and run reindex"):
        app.open_index(Config(), tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(CannotStore, match="Not a directory: give another"):
        app.open_index(Config(), tmp_path / "file" / "folder")
    with pytest.raises(CannotStore, match="no address of a database"):
        app.open_index(Config(storage=StorageConfig(index="postgresql://u:hush@[::1/x")), tmp_path)


@pytest.mark.parametrize(
    "storage",
    [
        StorageConfig(index="mysql://x/y"),
        StorageConfig(queue="amqp://x"),
        StorageConfig(bundles="nosuch://x"),
    ],
)
def test_places_of_unknown_kinds_are_refused(tmp_path: Path, storage: StorageConfig) -> None:
    config = Config(storage=storage)
    with pytest.raises(CannotStore):
        app.open_index(config, tmp_path).close()
        app.open_bundles(config, tmp_path)
        open_queue(storage.queue, tmp_path)


def test_a_queue_that_says_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workqueue, "REDIS_SILENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        queue = open_queue(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", tmp_path)
        with pytest.raises(redis.exceptions.TimeoutError):
            queue.storage.enqueue(b"x")
    own = open_queue("redis://127.0.0.1/0?socket_timeout=7", tmp_path)
    assert own.storage.pool.connection_kwargs["socket_timeout"] == 7
