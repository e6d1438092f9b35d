"""The strict YAML loader that both programs' configuration goes through."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter import config, yamlconfig
from exporter.yamlconfig import ConfigError, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15s", 15), ("1m30s", 90), ("2h", 7200), ("500ms", 0.5), ("1.5h", 5400), ("1d", 86400)],
)
def test_durations_are_written_as_in_prometheus(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "15", "s", "1x", "-5s", "5 s", "1m "])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("500MB", 500_000_000), ("20GiB", 20 * 1024**3), ("1k", None), ("7", 7), ("1.5K", 1500)],
)
def test_sizes(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(ValueError, match="is no size"):
            parse_size(text)
    else:
        assert parse_size(text) == size


def test_no_file_gives_the_defaults() -> None:
    assert config.load(None) == config.Config()


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "exporter.yml"
    path.write_text("# nothing set\n")
    assert config.load(path) == config.Config()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lgos: []", ("unknown field `lgos`", "did you mean `logs`?")),
        ("limits: {hang_limt: 5m}", ("unknown field `hang_limt`", "$.limits", "did you mean `hang_limit`?")),
        ("logs: [{path: /a}, {path: /b, patern: x}]", ("$.logs[1]", "did you mean `pattern`?")),
        ("hang_limit: 5m", ("unknown field", "`limits.hang_limit`", "`logs[].hang_limit`")),
        ("logs: [{path: /a, floor: 1m}]", ("$.logs[0]", "did you mean `limits.floor`?")),
        ("agents: {}", ("unknown field `agents`; there are `node_name`, ", "`nccl`")),
        ("logs: [{path: /a, zzz: 1}]", ("$.logs[0]", "there are `path`, `job_id`, ")),
        ("limits: {hang_limit: soon}", ("$.limits.hang_limit", "'soon' is no duration", "write it like")),
        ("limits: {hang_limit: [1]}", ("$.limits.hang_limit", "expected a duration, got list")),
        ("limits: {hang_limit: -3}", ("$.limits.hang_limit", "-3 is negative")),
        ("logs: 5", ("$.logs", "Expected `array`")),
        ("limits: {hang_limit: .inf}", ("$.limits.hang_limit", "a finite number is expected")),
        ("limits: {hang_limit: .nan}", ("$.limits.hang_limit", "a finite number is expected")),
        ("limits: {hang_limit: 99999999999999d}", ("$.limits.hang_limit", "too large to be meant")),
        ("limits: {hang_limit: 0s}", ("$.limits", "hang_limit must be longer than 0s")),
        ("jobs: [{job_id: a, hang_limit: 0}]", ("$.jobs[0]", "hang_limit must be longer than 0s")),
        ("logs: [{path: /a, hang_limit: 0}]", ("$.logs[0]", "hang_limit must be longer than 0s")),
        ("limits: {factor: .nan}", ("$.limits", "factor nan is not between 1 and 1000")),
        ("limits: {factor: .inf}", ("$.limits", "factor inf is not between")),
        ("limits: {minimum_intervals: 100000}", ("$.limits", "minimum_intervals must be 1 to 512")),
        ("limits: {hang_limit: 1m}\nlimits: {hang_limit: 2m}", ("the key 'limits' is given twice", "line 2")),
        ("logs: [{path: /a, path: /b}]", ("the key 'path' is given twice",)),
        ("[" * 5000, ("nested too deeply",)),
        ("{unclosed", ("not YAML",)),
        ("- a list", ("Expected `object`",)),
    ],
)
def test_a_mistake_names_file_place_and_remedy(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "exporter.yml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yml: cannot be read: No such file or directory$"):
        yamlconfig.load(tmp_path / "absent.yml", config.Config)
    binary = tmp_path / "binary.yml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"binary\.yml: cannot be read"):
        yamlconfig.load(binary, config.Config)
