"""A token's file: what is taken, and what is refused with place and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.yamlconfig import ConfigError
from snapshotter.web.auth import TokenFile


def written(folder: Path, data: bytes, mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_bytes(data)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("data", [b"s3cret", b"s3cret\n", b"s3cret\r\n", b"\n  s3cret \n\n"])
def test_the_token_is_the_one_word(tmp_path: Path, data: bytes) -> None:
    path = written(tmp_path, data, 0o640)  # the group may: the service's own
    assert TokenFile(path).token == "s3cret"
    link = tmp_path / "link"  # as Kubernetes mounts secrets
    link.symlink_to(path)
    assert TokenFile(link).matches("s3cret")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b" \n\t\n",
        b"two words\n",
        b"a\nb\n",
        b"nul\0byte",
        b"\xff\xfe",
        "schl\u00fcssel".encode(),
        b"x" * 5000,
    ],
)
def test_what_is_no_token_is_refused(tmp_path: Path, data: bytes) -> None:
    path = written(tmp_path, data)
    with pytest.raises(ConfigError, match=r"^/.*/token: not a token: one line .* `openssl rand"):
        TokenFile(path)


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602, 0o601, 0o666])
def test_a_token_for_everyone_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path, b"s3cret\n", mode)
    link = tmp_path / "link"
    link.symlink_to(path)
    for one in (path, link):
        with pytest.raises(ConfigError, match=f"^{one}: everyone on this machine .*: chmod o= {one}$"):
            TokenFile(one)


@pytest.mark.parametrize("kind", ["missing", "directory", "dangling", "below a file"])
def test_a_file_that_cannot_be_read_is_named_with_what_to_do(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "token"
    if kind == "directory":
        path.mkdir()
    elif kind == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "below a file":
        path = written(tmp_path, b"s3cret\n") / "token"
    with pytest.raises(ConfigError, match=f"^{path}: the token cannot be read: .* chmod 600 FILE"):
        TokenFile(path)
