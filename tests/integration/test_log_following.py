"""Live files: rotation of every kind, cut writes, restarts. Every record counts once, with its number."""

from __future__ import annotations

import csv
import errno
import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.config import Config, LogConfig
from exporter.logs.files import Files
from exporter.logs.model import LogState, Phase
from exporter.logs.watcher import LogWatcher
from exporter.procfs import ProcFS
from exporter.ranks import Scan

TRAINING = Path(__file__).parents[1] / "fixtures" / "logs" / "training"
TRUTH = yaml.load((TRAINING / "expected.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)["files"]
EPOCH = 1_000_000_000.0  # before any machine's own time


class Live:
    """A folder with a log, a watcher that follows it, and a clock that the files' times agree with."""

    def __init__(self, folder: Path, *, files: Files | None = None, pattern: str = "train.log*") -> None:
        self.folder = folder
        self.now = EPOCH
        self._files = files
        self._pattern = pattern
        self.restart()

    def restart(self) -> None:
        """The exporter starts anew."""
        self.watcher = LogWatcher(
            Config(logs=(LogConfig(path=f"{self.folder}/{self._pattern}"),)),
            ProcFS(Path("/proc")),
            lambda: Scan(self.now, "node", ()),
            now=lambda: self.now,
            files=self._files,
            patience=60.0,  # nothing hangs here, however busy the machine is
        )

    def poll(self, seconds: float = 0.5) -> LogState | None:
        self.now += seconds
        for path in self.folder.rglob("*"):
            if path.is_file() and path.stat().st_mtime > EPOCH + 1e8:
                os.utime(path, (self.now, self.now))
        self.watcher.poll()
        states = [one for one in self.watcher.latest.logs if one.path.endswith("/train.log")]
        return states[0] if states else None

    def seen(self) -> LogState:
        state = self.poll()
        assert state is not None
        return state

    def append(self, data: bytes, name: str = "train.log") -> None:
        with (self.folder / name).open("ab") as stream:
            stream.write(data)


@pytest.fixture
def live(tmp_path: Path) -> Live:
    (tmp_path / "train.log").touch()
    one = Live(tmp_path)
    one.poll()
    return one


def _records(first: int, last: int) -> bytes:
    return b"".join(b"iter %d: loss 2.5, time 3.1ms\n" % number for number in range(first, last + 1))


def _scenario(operation: dict, live: Live) -> None:
    source = TRAINING / operation["from"] if "from" in operation else None
    target = live.folder / operation["file"]
    match operation["op"]:
        case "place":
            assert source is not None
            shutil.copy(source, target)
        case "append":
            assert source is not None
            live.append(source.read_bytes(), operation["file"])
        case "rename":
            target.rename(live.folder / operation["to"])
        case "create":
            target.touch()
        case "copy":
            shutil.copy(target, live.folder / operation["to"])
        case "truncate":
            os.truncate(target, operation["size"])
        case "gzip":
            (live.folder / operation["to"]).write_bytes(gzip.compress(target.read_bytes()))
            target.unlink()


@pytest.mark.parametrize("entry", [one for one in TRUTH if "scenario" in one], ids=lambda one: one["file"])
def test_rotation_as_logrotate_does_it(entry: dict, live: Live) -> None:
    state = None
    for operation in entry["scenario"]:
        expected = operation.get("expect")
        if expected is None:
            _scenario(operation, live)
            continue
        before = state.iterations if state else 0
        state = live.seen()
        assert state.last_iteration == expected["iteration"]
        if expected.get("no_new_record"):
            assert state.iterations == before
    assert state is not None
    assert state.iterations == len({n for n in range(state.last_iteration or 0) if not n % 10}) + 1
    assert (
        len(live.watcher.latest.logs) <= 2
    )  # the rotated file may still be followed, the compressed ones never


@pytest.mark.parametrize("entry", [one for one in TRUTH if "timeline" in one], ids=lambda one: one["file"])
def test_timelines(entry: dict, live: Live) -> None:
    """The real process's writes, cut where it cut them: never a number that was not there."""
    data = (TRAINING / entry["file"]).read_bytes()
    expected = entry["iterations"].get("list") or []
    optional = {number for _, number, *_ in entry.get("optional") or ()}
    allowed = {
        one for _, number, _, _, *extra in expected for one in (number, *(e.get("alt") for e in extra))
    }
    written, at, seen = 0, 0.0, []
    with (TRAINING / entry["timeline"]).open() as stream:
        for row in csv.DictReader(stream):
            end = int(row["end_offset"])
            live.append(data[written:end])
            state = live.poll(max(0.001, float(row["seconds"]) - at))
            written, at = end, float(row["seconds"])
            if state is not None:
                seen.append(state.last_iteration)
    assert set(seen) <= allowed | optional | {None}
    numbered = [one for one in expected if one[1] is not None]
    if numbered:
        _, last, _, _, *extra = numbered[-1]
        assert seen[-1] in {last, *(one.get("alt") for one in extra)}


@pytest.mark.parametrize("entry", TRUTH, ids=lambda one: one["file"])
def test_pieces_of_any_size_say_the_same(entry: dict, tmp_path: Path) -> None:
    data = (TRAINING / entry["file"]).read_bytes()
    outcomes = []
    for size in (len(data), 700, 61):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / "train.log").touch()
        live = Live(folder)
        live.poll()
        state = None
        for start in range(0, len(data), max(size, len(data) // 400)):
            live.append(data[start : start + max(size, len(data) // 400)])
            state = live.poll()
        assert state is not None
        outcomes.append((state.last_iteration, state.iterations, state.phase, dict(state.trouble_counts)))
    assert outcomes[0] == outcomes[1] == outcomes[2]


rotations = st.sampled_from(["rename", "copytruncate", "remove", "symlink"])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400), rotations), min_size=1, max_size=4),
    st.integers(0, 3),
    st.booleans(),
)
def test_rotation_at_any_point_loses_and_doubles_nothing(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[int, str]], polls: int, poll_between: bool
) -> None:
    """The writer keeps its file until it is told to open the path again, as under logrotate."""
    folder = tmp_path_factory.mktemp("rotation")
    log = folder / "train.log"
    log.touch()
    live = Live(folder, pattern="train.log")
    live.append(b"header\n")
    live.poll()
    data = _records(1, 60)
    written = 0
    for number, (length, how) in enumerate(cuts):
        live.append(data[written : written + 1])
        live.poll()  # of a file that was never read, what is copied and truncated is lost
        live.append(data[written + 1 : written + length])
        written = min(len(data), written + length)
        for _ in range(polls):
            live.poll()
        aside = folder / f"train.log.{number}"
        if how == "copytruncate":
            shutil.copy(log, aside)
            if poll_between:
                live.poll()
            os.truncate(log, 0)
        elif how == "symlink":
            log.rename(aside)
            fresh = folder / f"run-{number}"
            fresh.touch()
            log.symlink_to(fresh)
        else:
            # What was read already may be removed for good; what was not is kept by its writer alone.
            live.poll()
            if how == "rename":
                log.rename(aside)
            else:
                log.unlink()
            if poll_between:
                live.poll()
            log.touch()
    live.append(data[written:])
    state = live.seen()
    assert (state.last_iteration, state.iterations) == (60, 60)


def test_a_record_counts_once_it_is_whole(live: Live) -> None:
    live.append(b"iter 1: loss 2.5, time 3ms\niter 12")
    assert live.seen().last_iteration == 1
    live.append(b"00: loss 2.5, time 3ms")
    assert live.seen().last_iteration == 1
    live.append(b"\r\n")
    assert live.seen().last_iteration == 1200


def test_what_is_written_to_the_renamed_file_counts(live: Live) -> None:
    live.append(_records(1, 3))
    live.poll()
    (live.folder / "train.log").rename(live.folder / "old")
    (live.folder / "train.log").touch()
    live.poll()
    live.append(_records(4, 4), "old")
    assert live.seen().last_iteration == 4
    live.append(_records(5, 5))
    assert (live.seen().last_iteration, live.seen().iterations) == (5, 5)


def test_a_deleted_log_is_read_to_its_end_and_its_successor_from_the_beginning(live: Live) -> None:
    with (live.folder / "train.log").open("ab") as writer:
        writer.write(_records(1, 3))
        writer.flush()
        live.poll()
        (live.folder / "train.log").unlink()
        writer.write(_records(4, 4))
        writer.flush()
        assert live.seen().last_iteration == 4
    (live.folder / "train.log").write_bytes(_records(5, 9))
    assert (live.seen().last_iteration, live.seen().iterations) == (9, 9)


def test_a_truncated_log_that_has_grown_beyond_is_read_anew(live: Live) -> None:
    live.append(_records(1, 3))
    live.poll()
    (live.folder / "train.log").write_bytes(b"another run with another header\n" + _records(1, 50))
    assert live.seen().last_iteration == 50


def test_a_log_that_appears_later_is_read_from_its_beginning(live: Live) -> None:
    (live.folder / "train.log.rank1").write_bytes(_records(1, 7))
    live.poll(3)
    states = {one.log: one for one in live.watcher.latest.logs}
    assert (states["train.log.rank1"].last_iteration, states["train.log.rank1"].iterations) == (7, 7)


def test_a_restart_neither_counts_again_nor_forgets(live: Live) -> None:
    noise = b"[heartbeat] alive, all is well on this node\n" * 4000
    live.append(_records(1, 500) + noise)
    live.poll()
    live.restart()
    state = live.poll(0.5)
    assert state is not None
    assert (state.last_iteration, state.iterations) == (500, 0)
    live.append(_records(501, 503))
    assert (live.seen().last_iteration, live.seen().iterations) == (503, 3)


def test_a_restart_finds_the_header_of_a_long_table(live: Live) -> None:
    rows = b"".join(b"2026-06-12,%d,2.5,1e-4\n" % number for number in range(1, 9001))
    live.append(b"day,step,loss,lr\n" + rows)
    live.poll()
    live.restart()
    assert live.seen().last_iteration == 9000
    live.append(b"2026-06-12,9001,2.5,1e-4\n")
    assert (live.seen().last_iteration, live.seen().iterations) == (9001, 1)


def test_a_restart_counts_the_age_from_the_last_write(live: Live) -> None:
    live.append(_records(1, 5))
    live.poll()
    written = live.now
    live.now += 400
    live.restart()
    state = live.poll(0.5)
    assert state is not None
    assert state.age(live.now) == pytest.approx(live.now - written, abs=2)


class Stale(Files):
    """A network file system whose handles go stale when told to."""

    def __init__(self) -> None:
        self.stale: set[int] = set()
        self.opened: list[int] = []

    def open(self, path: str) -> int:
        descriptor = super().open(path)
        self.opened.append(descriptor)
        self.stale.discard(descriptor)
        return descriptor

    def _check(self, descriptor: int) -> None:
        if descriptor in self.stale:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def status(self, descriptor: int) -> os.stat_result:
        self._check(descriptor)
        return super().status(descriptor)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        self._check(descriptor)
        return super().read(descriptor, size, offset)


def test_a_stale_handle_is_opened_again_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "train.log").touch()
    files = Stale()
    live = Live(tmp_path, files=files)
    live.poll()
    live.append(_records(1, 5))
    assert live.seen().iterations == 5
    files.stale.update(files.opened)
    live.append(_records(6, 8))
    state = live.seen()
    assert (state.last_iteration, state.iterations, state.problem) == (8, 8, None)


def test_a_redrawn_bar_is_no_progress_until_it_moves(live: Live) -> None:
    live.append(b"\rtrain:  10%|#   | 100/1000 [00:10<01:30,  9.9it/s]\r")
    first = live.seen()
    live.append(b"\rtrain:  10%|#   | 100/1000 [05:10<01:30,  0.3it/s]\r")
    again = live.poll(300)
    assert again is not None
    assert again.last_progress_at == first.last_progress_at
    live.append(b"\rtrain:  10%|#   | 101/1000 [05:11<01:30,  0.3it/s]\r")
    assert live.seen().last_progress_at == live.now


def test_many_logs(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"train.log.{number}").touch()
    live = Live(tmp_path)
    live.poll()
    for number in range(200):
        live.append(_records(1, number + 1), f"train.log.{number}")
    live.poll()
    assert {one.log: one.last_iteration for one in live.watcher.latest.logs} == {
        f"train.log.{number}": number + 1 for number in range(200)
    }


def test_long_records_are_skipped_and_counted(live: Live) -> None:
    live.append(_records(1, 2) + b"step 7 loss 1 " + b"x" * (3 << 20) + b"\n" + _records(3, 3))
    state = live.seen()
    assert (state.last_iteration, state.skipped_records) == (3, 1)


def _unreadable(folder: Path) -> Iterator[tuple[str, Callable[[Path], object], str]]:
    yield "directory", lambda path: path.mkdir(), "is a directory"
    yield "FIFO", lambda path: os.mkfifo(path), "is a FIFO"
    yield "socket", lambda path: _socket(path), "is a socket"


def _socket(path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


@pytest.mark.parametrize(
    ("make", "words"), [(m, w) for _, m, w in _unreadable(Path())], ids=["directory", "FIFO", "socket"]
)
def test_what_is_no_log_gives_one_error_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], object], words: str
) -> None:
    make(tmp_path / "odd")
    (tmp_path / "train.log").touch()
    now = [EPOCH]
    watcher = LogWatcher(
        Config(logs=(LogConfig(path=f"{tmp_path}/odd"), LogConfig(path=f"{tmp_path}/train.log"))),
        ProcFS(Path("/proc")),
        lambda: Scan(now[0], "node", ()),
        now=lambda: now[0],
        patience=60.0,
    )
    watcher.poll()
    (tmp_path / "train.log").write_bytes(_records(1, 3))
    for _ in range(5):
        now[0] += 3
        watcher.poll()
    states = {one.log: one for one in watcher.latest.logs}
    assert states["train.log"].last_iteration == 3
    assert words in (states["odd"].problem or "")
    assert len([record for record in caplog.records if words in record.getMessage()]) == 1


def test_an_unreadable_log_gives_one_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Denied(Files):
        def open(self, path: str) -> int:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    (tmp_path / "train.log").touch()
    live = Live(tmp_path, files=Denied())
    for _ in range(3):
        live.poll()
    assert live.watcher.latest.logs[0].problem == f"{tmp_path}/train.log: Permission denied"
    assert len(caplog.records) == 1


def test_a_vanished_log_ends_alone(live: Live) -> None:
    live.append(_records(1, 3))
    live.append(_records(1, 3), "train.log.rank1")
    live.poll(3)
    (live.folder / "train.log.rank1").unlink()
    live.append(_records(4, 4))
    assert live.seen().last_iteration == 4


def test_finished_and_begun_again(live: Live) -> None:
    live.append(
        b"".join(
            b" iteration %8d/      20 | consumed samples: 5 | lm loss: 2.0 |\n" % n for n in range(1, 21)
        )
    )
    live.append(b"[after training is done] datetime: 2026-06-12 12:46:45\n")
    assert live.seen().phase is Phase.FINISHED
    live.append(b" iteration        5/      20 | consumed samples: 5 | lm loss: 2.0 |\n")
    assert live.seen().phase is Phase.TRAINING


def test_a_number_that_is_the_iteration_by_chance_is_not_taken_for_it(live: Live) -> None:
    """`101-200batch` is one run of digits to the quick reader; the clip of the first record is 100 as well."""
    filler = "x" * 300
    for first in range(1, 6401, 100):
        live.append(
            b"[train] 1epoch:train:%d-%dbatch: loss=2.5, clip=100.000, %s\n"
            % (first, first + 99, filler.encode())
        )
    state = live.seen()
    assert (state.last_iteration, state.iterations) == (6400, 64)


def test_an_evaluation_with_a_bar_like_training_s_is_a_sign_of_life(live: Live) -> None:
    """Between two epochs another bar runs without a word of what it is about: the limit counts from where it moved."""
    for step in range(1, 11):
        live.append(b"\r %d%%|###  | %d/10 [00:01<00:09, 1.0it/s, loss=2.%d]" % (10 * step, step, step))
        live.seen()
    live.append(b"\n")
    for step in range(1, 6):
        live.append(b"\r %d%%|###  | %d/50 [00:01<00:09, 1.0it/s]" % (2 * step, step))
        state = live.poll(600)
    assert state is not None
    assert state.last_iteration == 10
    assert state.phase is Phase.EVALUATING
    assert state.age(live.now) >= 2400
    assert state.limit.seconds > state.age(live.now)
