"""`analyze` on folders and bundles, good and bad."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import signal
import struct
import zipfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pytest

from snapshotter import analyze, cli, dumps
from snapshotter.bundle.schema import CaptureRequest, Manifest, NodeEntry
from snapshotter.dumps import digest_dumps, load_dumps
from snapshotter.stacks.model import NodeAnswer
from tests.programs import make_dumps
from tests.programs.dump_stacks import STACKS


def run(path: Path, **options: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    status = analyze.run(path, out=out, err=err, now=lambda: 0.0, **options)  # type: ignore[arg-type]
    return status, out.getvalue(), err.getvalue()


def report(path: Path) -> dict[str, object]:
    status, out, _ = run(path, format="json")
    assert status == 0
    found: dict[str, object] = json.loads(out)
    return found


def dump(name: str, **fields: object) -> dict[str, object]:
    frames = [dict(frame) for frame in reversed(STACKS[name])]
    return {"pid": 1, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": 1, "active": True,
            "owns_gil": False, "frames": frames, "process_info": None} | fields  # fmt: skip


def test_every_format(tmp_path: Path) -> None:
    make_dumps.write(tmp_path, "local-loader", 8, workers=1)
    assert run(tmp_path)[1].startswith("Rank 2 waits for its DataLoader worker 0")
    assert json.loads(run(tmp_path, format="json")[1])["verdict"]["culprit_ranks"] == "2"
    assert json.loads(run(tmp_path, format="speedscope")[1])["profiles"]
    assert "<html" in run(tmp_path, format="html")[1]
    assert "|" in run(tmp_path, format="folded")[1]


def test_writes_to_a_file(tmp_path: Path) -> None:
    make_dumps.write(tmp_path / "dumps", "local-lock", 8)
    status, out, err = run(tmp_path / "dumps", format="json", output=tmp_path / "report.json")
    assert (status, out, err) == (0, "", "")
    assert json.loads((tmp_path / "report.json").read_text())["schema_version"] == 1


def test_cannot_write(tmp_path: Path) -> None:
    make_dumps.write(tmp_path, "local-lock", 8)
    status, _, err = run(tmp_path, output=tmp_path / "no" / "file")
    assert status == 2
    assert err.count("\n") == 1


def test_names_may_carry_a_node_with_dashes(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"gpu-node-{rank // 2}-rank-{rank}.json").write_text(
            json.dumps([dump("lock" if rank == 3 else "all_reduce")])
        )
    verdict = report(tmp_path)["verdict"]
    assert isinstance(verdict, dict)
    assert (verdict["culprit_ranks"], verdict["culprit_nodes"]) == ("3", ["gpu-node-1"])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"  \n",
        b'[{"pid": 1, "frames": [{"name": "f"',
        b"not json",
        b"\xff\xfe\x00",
        b'{"a": 1}',
        b"[]",
        b"[1, 2]",
        b'[{"pid": "x", "frames": []}]',
        b'[{"frames": 7}]',
        b'[{"thread_id": 1}]',
        b'[{"frames": [{"name": 5, "filename": "x", "line": 1}]}]',
        b"[" * 100_000,
        b'[{"frames": ' + b"[" * 100_000,
        b'[{"frames": [], "frames": "twice"}]',
    ],
)
def test_a_bad_file_is_named_and_left_out(tmp_path: Path, content: bytes) -> None:
    make_dumps.write(tmp_path, "local-lock", 8)
    (tmp_path / "rank-00005.json").write_bytes(content)
    status, out, err = run(tmp_path, format="json")
    assert status == 0
    verdict = json.loads(out)["verdict"]
    assert verdict["culprit_ranks"] == "2"
    assert verdict["not_captured"] == "5"
    assert "rank-00005.json" in err
    assert err.count("\n") == 1


def test_null_fields_of_py_spy_are_fine(tmp_path: Path) -> None:
    make_dumps.write(tmp_path, "local-lock", 8)
    odd = dump("all_reduce", thread_name=None, os_thread_id=None, extra={"a": [1]})
    (tmp_path / "rank-00005.json").write_text(json.dumps([odd]))
    verdict = report(tmp_path)["verdict"]
    assert isinstance(verdict, dict)
    assert verdict["not_captured"] == ""


def test_hostile_file_names(tmp_path: Path) -> None:
    make_dumps.write(tmp_path, "local-lock", 8)
    good = json.dumps([dump("all_reduce")])
    for name in ("rank-99999999999999999999.json", "rank-1.dataloader-99999999.json", "rank-05.json"):
        (tmp_path / name).write_text(good)
    (tmp_path / "rank-.json").write_text("ignored")
    (tmp_path / "expected.json").write_text("ignored")
    (tmp_path / "rank-00006.json").unlink()
    (tmp_path / "rank-00006.json").mkdir()
    os.mkfifo(tmp_path / "rank-00009.json")
    (tmp_path / "rank-00010.json").symlink_to(tmp_path / "nowhere")
    status, out, err = run(tmp_path, format="json")
    assert status == 0
    assert json.loads(out)["verdict"]["culprit_ranks"] == "2"
    assert {line.split(":")[1].rsplit("/", 1)[-1] for line in err.splitlines()} == {
        "rank-99999999999999999999.json",
        "rank-1.dataloader-99999999.json",
        "rank-05.json",
        "rank-00006.json",
        "rank-00009.json",
        "rank-00010.json",
    }


def test_hostile_function_names(tmp_path: Path) -> None:
    make_dumps.write(tmp_path, "training", 8)
    name = "a;b@c|d\n<script>alert(1)</script>\x1b[31m\u202e\ud800"
    bad = dump("lock", thread_name=name)
    frames = bad["frames"]
    assert isinstance(frames, list)
    frames[0] |= {"name": name, "filename": f"/x/{name}.py"}
    (tmp_path / "rank-00000.json").write_text(json.dumps([bad]).replace("\\ud800", "?"))
    for format_ in ("json", "text", "folded", "speedscope", "html"):
        status, out, _ = run(tmp_path, format=format_)
        assert status == 0
        assert out
        if format_ == "text":
            assert "\x1b" not in out
        if format_ == "html":
            assert "<script>alert" not in out
        if format_ == "folded":
            assert all(line.rsplit(" ", 1)[1].isdecimal() for line in out.splitlines())


def test_deep_recursion_and_many_threads(tmp_path: Path) -> None:
    make_dumps.write(tmp_path, "local-recursion", 8)
    frame = {"name": "wait", "filename": "/t.py", "line": 1}
    threads = [
        {"pid": 1, "thread_id": n, "thread_name": f"T-{n}", "os_thread_id": n, "frames": [frame]}
        for n in range(20_000)
    ]
    (tmp_path / "rank-00000.json").write_text(json.dumps([dump("all_reduce"), *threads]))
    capture, problems = load_dumps(tmp_path)
    assert not problems
    assert len(capture.processes[0].samples[0].threads) == 20_001
    status, out, _ = run(tmp_path, format="json")
    assert status == 0
    assert json.loads(out)["verdict"]["culprit_ranks"] == "2"
    assert len(run(tmp_path, format="folded")[1].splitlines()) > 20_000


def shared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The report on a folder whose files two processes share."""
    monkeypatch.setattr(dumps, "_WORTH_SHARING", 2)
    monkeypatch.setattr(dumps, "_may_fork", lambda: True)
    return report(folder)


@pytest.mark.parametrize("name", ["local-loader", "slow-save", "missing-rank"])
def test_two_processes_read_the_same_as_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dumps.write(tmp_path, name, 8, workers=1)
    (tmp_path / "rank-00001.json").write_text("broken")
    (tmp_path / "rank-00007.json").write_text("")
    assert report(tmp_path) == shared(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "sent", [b"", struct.pack("!i", 1000) + b"the first of 1000 bytes"], ids=["before", "half way"]
)
def test_a_reader_that_is_killed_leaves_its_half_to_the_other(
    sent: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(folder: Path, middle: str, answer: Connection) -> None:
        os.write(answer.fileno(), sent)
        os.kill(os.getpid(), signal.SIGKILL)

    make_dumps.write(tmp_path, "local-lock", 8)
    alone = report(tmp_path)
    monkeypatch.setattr(dumps, "_read_half", killed)
    assert shared(tmp_path, monkeypatch) == alone


@pytest.mark.parametrize("content", ["", "as rank 7"])
def test_names_that_are_no_text(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / os.fsdecode(b"job-\xfe")
    make_dumps.write(folder, "local-lock", 8)
    file = folder / os.fsdecode(b"z\xff-rank-8.json")
    file.write_bytes((folder / "rank-00007.json").read_bytes() if content else b"")
    alone = report(folder)
    assert "job-\ufffd" in json.dumps(alone, ensure_ascii=False)
    assert shared(folder, monkeypatch) == alone


def test_nothing_to_analyse(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "rank-0.json").write_text("")
    (tmp_path / "file.txt").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for path in ("empty", "bad", "file.txt", "missing", "pipe", "endless"):
        status, out, err = run(tmp_path / path)
        assert (status, out) == (2, "")
        assert err.count("\n") == 1
        assert path in err


def test_what_cannot_be_analysed_is_said_with_the_remedy(tmp_path: Path) -> None:
    dump = tmp_path / "text" / "rank-0.json"
    dump.parent.mkdir()
    dump.write_text('Process 7: python train.py\n\nThread 7 (idle): "MainThread"\n')  # without --json
    assert "not JSON; take it with `py-spy dump --json`" in run(dump.parent)[2]
    manifest = tmp_path / "cut" / "manifest.json"
    manifest.parent.mkdir()
    manifest.write_text('{"capture_id": ')
    assert run(manifest.parent)[2].endswith("; copy the bundle again, whole\n")


def test_second_sample_and_compare(tmp_path: Path) -> None:
    make_dumps.write(tmp_path / "a", "local-lock", 8)
    make_dumps.write(tmp_path / "b", "slow-save", 8)
    digest, _ = digest_dumps(tmp_path / "b")
    assert digest.processes[0].later_stack is not None
    status, out, _ = run(tmp_path / "a", compare=tmp_path / "b")
    assert status == 0
    assert "culprits no more: 2" in out
    assert "reached by 1-7" in out
    same = run(tmp_path / "a", compare=tmp_path / "a")[1]
    assert "All threads are where they were." in same


def test_two_captures_are_compared_in_the_order_in_which_they_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_dumps.write(tmp_path / "a", "local-lock", 8)
    make_dumps.write(tmp_path / "b", "slow-save", 8)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    for words in ([a, "--compare", b], ["--compare", a, b]):
        assert cli.main(["analyze", *words]) == 0
        assert "culprits no more: 2" in capsys.readouterr().out
    for words in ([], ["--compare", a], [a, "--compare", b, b]):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["analyze", *words])
        assert "give one PATH, or two to compare" in capsys.readouterr().err


def bundle(folder: Path) -> Path:
    """A bundle as the service writes it, of two nodes."""
    (folder / "nodes").mkdir(parents=True)
    make_dumps.write(folder.parent / "dumps", "local-lock", 8)
    capture, _ = load_dumps(folder.parent / "dumps")
    entries = []
    for number in range(2):
        processes = tuple(p for p in capture.processes if p.rank is not None and p.rank % 2 == number)
        name = f"nodes/node-{number}.json.gz"
        answer = NodeAnswer(f"node-{number}", "ok", 0.0, 1.0, job_id="llm", processes=processes)
        (folder / name).write_bytes(gzip.compress(msgspec.json.encode(answer)))
        entries.append(NodeEntry(f"node-{number}", "ok", name, 0.0, 1.0))
    request = CaptureRequest("20261130T000000Z-0123456789ab", "llm", "manual", "test", "me", 0.0)
    manifest = Manifest(request, 0.0, 1.0, "complete", nodes=tuple(entries))
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    return folder


def test_bundles_and_zipped_bundles(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "bundle")
    archive = tmp_path / "bundle.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in folder.rglob("*"):
            if path.is_file():
                file.write(path, f"some-capture/{path.relative_to(folder)}")
    for path in (folder, archive):
        found = report(path)
        assert isinstance(found["verdict"], dict)
        assert isinstance(found["summary"], dict)
        assert found["verdict"]["culprit_ranks"] == "2"
        assert found["summary"]["job_id"] == "llm"


def scrambled(packed: bytes) -> bytes:
    """The archive with what its members hold destroyed."""
    for start in (found.start() for found in re.finditer(rb"PK\x03\x04", packed)):
        name, extra = struct.unpack_from("<HH", packed, start + 26)
        content = start + 30 + name + extra + 9
        packed = packed[:content] + b"\xff" * 40 + packed[content + 40 :]
    return packed


@pytest.mark.parametrize(
    "spoil",
    [
        scrambled,
        lambda packed: b"x" * 100 + packed[packed.rindex(b"PK\x05\x06") :],
        lambda packed: re.sub(
            rb"(PK\x01\x02.{4})..", b"\\g<1>\x01\x00", packed, flags=re.DOTALL
        ),  # a password
        lambda packed: re.sub(
            rb"(PK\x01\x02.{6})..", b"\\g<1>\x63\x00", packed, flags=re.DOTALL
        ),  # the method
    ],
)
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zipped_bundle_that_cannot_be_unpacked_is_told(
    spoil: Callable[[bytes], bytes], method: int, tmp_path: Path
) -> None:
    archive = tmp_path / "bundle.zip"
    with zipfile.ZipFile(archive, "w", method) as file:
        file.writestr("manifest.json", random.Random(1).randbytes(1000))
    archive.write_bytes(spoil(archive.read_bytes()))
    status, out, err = run(archive)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert str(archive) in err


def test_a_broken_node_of_a_bundle_is_named_and_left_out(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "bundle")
    (folder / "nodes" / "node-1.json.gz").write_bytes(b"not gzip")
    status, out, err = run(folder, format="json")
    assert status == 0
    assert "node-1.json.gz" in err
    assert json.loads(out)["verdict"]["not_captured"] == "1/3/5"
    (folder / "nodes" / "node-1.json.gz").unlink()
    os.mkfifo(folder / "nodes" / "node-1.json.gz")
    status, _, err = run(folder)
    assert (status, "not a file" in err) == (0, True)
    (folder / "nodes" / "node-0.json.gz").unlink()
    status, _, err = run(folder)
    assert status == 2
    assert err.count("\n") == 1
