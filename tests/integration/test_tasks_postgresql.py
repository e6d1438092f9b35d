"""Index and queue in a real PostgreSQL, started here: several snapshotters share the work."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from snapshotter.bundle import reader
from snapshotter.bundle.index import Index
from snapshotter.bundle.schema import CaptureRequest, new_capture_id
from snapshotter.errors import CannotStore
from snapshotter.incidents import Incident
from snapshotter.workqueue import open_queue

PROGRAM = Path(__file__).parent.parent / "programs" / "snapshotter_service.py"
_databases = count()


def binaries() -> Path:
    """Where Debian puts initdb and pg_ctl: not on the PATH, by version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    path = found[-1] if found else shutil.which("initdb")
    assert path, "PostgreSQL's server is not installed (Debian: postgresql)"
    return Path(path).parent


class Server:
    """A PostgreSQL of this test run, reached by a socket in its own folder."""

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
        self._start = ("pg_ctl", "-D", data, "-l", str(folder / "log"), "-o", settings, "-w", "start")
        self.start()

    def start(self) -> None:
        self._run(*self._start)

    def stop(self, mode: str = "immediate") -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", mode, "-w", "stop")

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


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(
        prefix="hangscope-pg-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        one = Server(Path(folder))
        yield one
        one.stop()


@pytest.fixture
def url(server: Server) -> str:
    return server.database()


def wait_for(condition: Callable[[], bool], seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


class Snapshotter:
    """A snapshotter process with a data folder of its own, sharing index, queue and bundles."""

    def __init__(self, folder: Path, name: str, url: str, *arguments: str) -> None:
        self.captured = folder / f"captured-{name}"
        self.captured.touch()
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(PROGRAM),
                str(folder / name),
                str(self.captured),
                f"--index={url}",
                f"--bundles={folder / 'bundles'}",
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )

    def port(self) -> int:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it did not start"
        self.address = f"http://127.0.0.1:{int(line)}"
        return int(line)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path, timeout=20) as answer:
            return json.load(answer)

    def alert(self, job_id: str) -> int:
        labels = {"alertname": "TrainingHang", "job_id": job_id}
        alert = {"status": "firing", "labels": labels, "startsAt": "2026-11-30T01:00:00Z"}
        body = json.dumps({"version": "4", "alerts": [alert]}).encode()
        with urllib.request.urlopen(f"{self.address}/api/v1/alerts", body, timeout=20) as answer:
            return int(answer.status)

    def captures(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/api/v1/captures?limit=500")["captures"]
        return found

    def all_done(self) -> bool:
        return {one["state"] for one in self.captures()} == {"done"}

    def jobs(self) -> list[str]:
        return [line.split()[1] for line in self.captured.read_text().splitlines()]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


Start = Callable[..., Snapshotter]


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Start]:
    started: list[Snapshotter] = []

    def make(*names: str, arguments: tuple[str, ...] = ()) -> list[Snapshotter]:
        new = [Snapshotter(tmp_path, name, url, *arguments) for name in names]
        started.extend(new)
        for one in new:
            one.port()
        return new

    yield make
    for one in started:
        one.end()


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
    assert index.open_incidents() == (incident,)
    assert index.unqueued(10) == (asked.capture_id,)
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
    one, two = start("one", "two", arguments=("--capture-seconds=0.2",))
    jobs = [f"job-{n}" for n in range(24)]
    with ThreadPoolExecutor(8) as pool:  # a pair of Alertmanagers: everything twice, to either
        answers = list(pool.map(lambda job: (one.alert(job), two.alert(job)), jobs))
    assert Counter(status for pair in answers for status in pair) == {202: 24, 200: 24}
    wait_for(one.all_done)
    assert Counter(one.jobs() + two.jobs()) == Counter(jobs)
    assert one.jobs() and two.jobs(), "both worked"
    assert one.captures() == two.captures()
    bundles = sorted((tmp_path / "bundles").iterdir())
    assert [path.name for path in bundles] == sorted(capture["capture_id"] for capture in one.captures())
    report = two.get(f"/api/v1/captures/{bundles[0].name}/report")
    assert report["verdict"]["culprit_ranks"] == "0"


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
    for path in (tmp_path / "bundles").iterdir():
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
