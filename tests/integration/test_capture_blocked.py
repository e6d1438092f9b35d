"""A process that hangs in a page fault, C frames, and Prometheus over HTTP: what needs the real thing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from exporter.procfs import ProcFS
from exporter.ranks import Scan
from snapshotter.capture.facts import look, reader
from snapshotter.capture.node import capture_node
from snapshotter.capture.prometheus import Prometheus, PrometheusError, Series
from snapshotter.stacks.model import NodeAnswer
from tests.running import wait_for

PROGRAMS = Path(__file__).parent.parent / "programs"
PROCFS = ProcFS()


def capture(pid: int, *, native_frames: bool = False) -> NodeAnswer:
    return capture_node(
        lambda: Scan(time.time(), "node-a", ()),
        PROCFS,
        reader(PROCFS, timeout=60.0),
        node="node-a",
        pids=[pid],
        interval=0,
        deadline=240.0,
        native_frames=native_frames,
    )


def wait_for_state(pid: int, state: str) -> None:
    def seen() -> str:
        now = look(PROCFS, pid)
        return "" if now is None else now.state

    wait_for(lambda: seen() == state, say=seen)


@pytest.fixture
def in_page_fault(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """The pid of a process that hangs in a page fault, and the file system that it waits for."""
    folder = tmp_path / "fs"
    folder.mkdir()
    server = subprocess.Popen(
        [sys.executable, PROGRAMS / "capture_page_fault.py", folder], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        yield int(server.stdout.readline()), folder
    finally:
        # Ending the server aborts the mount, and with it the wait.
        server.kill()
        server.wait()
        server.stdout.close()
        subprocess.run(["umount", "-l", folder], check=False)


@pytest.mark.skipif(
    os.environ.get("CI") != "true" and (os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK)),
    reason="a mount of our own needs root and FUSE",
)
def test_a_process_in_a_page_fault_is_left_alone_and_told_of(in_page_fault: tuple[int, Path]) -> None:
    pid, folder = in_page_fault
    wait_for_state(pid, "D")

    (found,) = capture(pid).processes

    assert found.outcome == "uninterruptible"
    assert found.error is not None and "page fault" in found.error
    assert found.samples[0].threads == ()
    assert found.samples[0].state == "D"
    assert "handle_mm_fault" in found.samples[0].kernel_stack
    assert found.open_files == (f"{folder}/f (fuse capture-test)",)


def test_c_frames_are_read_where_they_are_asked_for(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "print('ready', flush=True); import time; time.sleep(600)"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        wait_for_state(process.pid, "S")
        (without,) = capture(process.pid).processes
        (found,) = capture(process.pid, native_frames=True).processes
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert without.native_threads == ()
    names = [frame.name for thread in found.native_threads for frame in thread.frames]
    assert any("nanosleep" in name for name in names)
    assert "<module>" in names
    python_alone = {frame.name for one in found.samples for thread in one.threads for frame in thread.frames}
    assert not any("nanosleep" in name for name in python_alone)


def test_prometheus_is_asked_with_what_it_wants(httpserver: HTTPServer) -> None:
    def answer(request: Request) -> Response:
        assert request.form["query"] == 'up{job="x"}'
        assert request.headers["Authorization"] == "Bearer t"
        return Response(
            '{"status":"success","data":{"resultType":"vector","result":'
            '[{"metric":{"node":"n1"},"value":[1.5,"NaN"]},{"metric":{},"value":[1.5,"2"]}]}}'
        )

    httpserver.expect_request("/prom/api/v1/query", method="POST").respond_with_handler(answer)
    first, second = Prometheus(httpserver.url_for("/prom/"), token="t").query('up{job="x"}')
    assert first.labels == {"node": "n1"}
    assert second == Series({}, 2.0)


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (
            400,
            '{"status":"error","errorType":"bad_data","error":"parse error:\\n at 1"}',
            "400: parse error: at 1",
        ),
        (502, "<html>bad gateway</html>", "answered 502 and not as Prometheus does"),
        (200, '{"status":"success"}', "no reason"),
        (200, '{"status":"success","data":{"result":[{"metric":{}}]}}', "not as Prometheus does"),
        (302, "", "answered 302"),
    ],
)
def test_a_prometheus_that_does_not_answer_well_is_named(
    httpserver: HTTPServer, status: int, body: str, problem: str
) -> None:
    httpserver.expect_request("/api/v1/query").respond_with_data(body, status)
    with pytest.raises(PrometheusError, match=problem):
        Prometheus(httpserver.url_for("")).query("up")


def test_a_prometheus_that_is_not_there_is_named() -> None:
    with pytest.raises(PrometheusError, match=r"http://127\.0\.0\.1:9 does not answer: .*refused"):
        Prometheus("http://127.0.0.1:9/").query("up")
