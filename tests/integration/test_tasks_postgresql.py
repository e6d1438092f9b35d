"""Index and queue in a real PostgreSQL: several snapshotters share the work."""

from __future__ import annotations

import re
import time
import urllib.error
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from snapshotter.bundle import reader
from snapshotter.bundle.index import Index
from snapshotter.bundle.schema import CaptureRequest, new_capture_id
from snapshotter.errors import CannotStore
from snapshotter.incidents import Incident
from snapshotter.workqueue import open_queue
from tests.redisserver import Server as Redis
from tests.running import wait_for

if TYPE_CHECKING:
    from conftest import Server, Snapshotter, Start


@pytest.fixture
def server(postgresql: Server) -> Server:
    return postgresql


@pytest.fixture
def url(database_url: str) -> str:
    return database_url


@pytest.fixture
def start(start_snapshotters: Start) -> Start:
    return start_snapshotters


# The index


def request(job_id: str = "llama") -> CaptureRequest:
    return CaptureRequest(new_capture_id(time.time()), job_id, "manual", "", "test", time.time())


def test_many_open_an_empty_database_at_once(tmp_path: Path, url: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        indexes = list(pool.map(Index, [url] * 8))
        queues = list(pool.map(lambda _: open_queue(url, tmp_path), range(8)))
    for index in indexes:
        index.close()
    for queue in queues:
        queue.storage.close()


def test_what_is_stored_comes_back(url: str) -> None:
    index = Index(url)
    asked = request("jöb/1 ' ; --")
    incident = Incident("i1", asked.job_id, 1.0, 2.0, firing={"a": 1.5}, captures=1, last_capture_at=1.0)
    with index.deciding([asked.job_id]) as decisions:
        decisions.save([incident])
        decisions.add([asked], enqueued_at={})
    with index.deciding([asked.job_id]) as decisions:
        decisions.save([incident])
    record = index.get(asked.capture_id)
    assert record is not None and record.request == asked
    assert index.latest(asked.job_id) == record
    assert index.latest("no\0such") is None
    assert index.list(job_id="no\ud800such") == ()
    assert index.open_incidents() == (incident,)
    assert index.hand_out(10, 1.0) == (asked.capture_id,)
    assert index.hand_out(10, 1.0) == ()
    index.close()


def test_one_capture_is_claimed_once_by_many(url: str) -> None:
    index = Index(url)
    asked = [request(f"job-{n}") for n in range(10)]
    with index.deciding([]) as decisions:
        decisions.add(asked, enqueued_at={})
    tries = [(one.capture_id, owner) for one in asked for owner in "abcdef"]
    with ThreadPoolExecutor(16) as pool:
        taken = list(pool.map(lambda one: index.claim(*one, now=1.0, lease=60.0), tries))
    assert sum(one is not None for one in taken) == 10
    index.close()


def test_two_captures_of_a_job_are_never_claimed_together(url: str) -> None:
    index = Index(url)
    asked = [request() for _ in range(6)]
    with index.deciding([]) as decisions:
        decisions.add(asked, enqueued_at={})
    with ThreadPoolExecutor(6) as pool:
        taken = list(pool.map(lambda one: index.claim(one.capture_id, "a", now=1.0, lease=60.0), asked))
    assert sum(one is not None for one in taken) == 1
    index.close()


def test_a_database_that_is_away_is_said_and_found_again(server: Server, url: str) -> None:
    index = Index(url)
    server.stop()
    try:
        with pytest.raises(CannotStore, match="the index cannot be used"):
            index.list()
    finally:
        server.start()
    assert index.list() == ()
    index.close()


# Several snapshotters


def test_two_snapshotters_share_the_work_and_take_each_capture_once(tmp_path: Path, start: Start) -> None:
    # The captures of either last until the other has begun one.
    one, two = start("one", "two", arguments=(f"--until={tmp_path}/captured-*",))
    jobs = [f"job-{n}" for n in range(24)]
    with ThreadPoolExecutor(8) as pool:  # a pair of Alertmanagers: everything twice, to either
        answers = list(pool.map(lambda job: (one.alert(job), two.alert(job)), jobs))
    assert Counter(status for pair in answers for status in pair) == {202: 24, 200: 24}
    wait_for(one.all_done)
    assert Counter(one.jobs() + two.jobs()) == Counter(jobs)
    assert one.jobs() and two.jobs(), "both worked"
    assert one.captures() == two.captures()
    bundles = sorted((tmp_path / "bundles").glob("2*"))
    assert [path.name for path in bundles] == sorted(capture["capture_id"] for capture in one.captures())
    report = two.get(f"/api/v1/captures/{bundles[0].name}/report")
    assert report["verdict"]["culprit_ranks"] == "0"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    """A real Redis."""
    server = Redis(tmp_path)
    yield server
    server.stop()


def test_the_queue_may_be_a_redis(tmp_path: Path, start: Start, redis: Redis) -> None:
    until_both_work = f"--until={tmp_path}/captured-*"
    one, two = start("one", "two", arguments=(until_both_work, f"--queue={redis.url}"))
    jobs = [f"job-{n}" for n in range(12)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda job: (one.alert(job), two.alert(job)), jobs))
    wait_for(one.all_done)
    assert Counter(one.jobs() + two.jobs()) == Counter(jobs)
    assert one.jobs() and two.jobs(), "both worked"


def test_what_a_redis_that_is_away_did_not_take_is_sent_again_soon(start: Start, redis: Redis) -> None:
    (one,) = start("one", arguments=(f"--queue={redis.url}",))
    redis.stop()
    one.alert("job-1")  # accepted: the index has it
    redis.start()
    wait_for(one.all_done)
    assert one.jobs() == ["job-1"]


def test_when_one_is_killed_its_work_is_done_at_its_next_start(tmp_path: Path, start: Start) -> None:
    one, two = start("one", "two", arguments=("--capture-seconds=30",))
    for n in range(12):
        one.alert(f"job-{n}")
    wait_for(lambda: len(one.jobs()) + len(two.jobs()) >= 8)  # all workers of both are at it
    one.end()
    two.end()
    again, also = start("one", "two")
    wait_for(again.all_done)
    assert sorted(capture["job_id"] for capture in also.captures()) == sorted(f"job-{n}" for n in range(12))
    for path in (tmp_path / "bundles").glob("2*"):
        assert reader.open_folder(path).capture().nodes


def test_while_the_database_is_away_requests_are_refused_and_afterwards_taken(
    server: Server, start: Start
) -> None:
    (one,) = start("one")
    server.stop()
    try:
        with pytest.raises(urllib.error.HTTPError) as refused:
            one.alert("llama")
        assert refused.value.code == 503
        refused.value.close()
    finally:
        server.start()
    wait_for(lambda: answered(one, "llama"))
    wait_for(lambda: bool(one.captures()) and one.all_done())
    assert one.jobs() == ["llama"]


def answered(snapshotter: Snapshotter, job_id: str) -> bool:
    try:
        return snapshotter.alert(job_id) in (200, 202)
    except urllib.error.HTTPError as error:
        error.close()
        return False


def test_the_password_is_never_shown(server: Server) -> None:
    hidden = re.compile("s3cret")
    with pytest.raises(CannotStore) as refused:
        Index(f"postgresql://nobody:s3cret@/none?host={server.folder}")
    assert not hidden.search(str(refused.value))
