from __future__ import annotations

from pathlib import Path

import pytest

from exporter.yamlconfig import ConfigError
from snapshotter import config


def load(tmp_path: Path, text: str) -> config.Config:
    path = tmp_path / "hangscope.yml"
    path.write_text(text)
    return config.load(path)


def test_it_works_without_a_file() -> None:
    given = config.load(None)
    assert given == config.Config()
    assert given.storage.keep == 30 * 86400
    assert "TrainingHang" in given.incidents.alertnames
    assert "TrainingHangDiagnosed" not in given.incidents.alertnames


def test_a_whole_file(tmp_path: Path) -> None:
    given = load(
        tmp_path,
        """
        workers: 2
        storage:
          index: postgresql://hangscope@db/hangscope
          bundles: s3://captures/prod
          keep: 2w
          max_size: 100GiB
        incidents:
          alertnames: [TrainingHang, "Site*"]
          cool_down: 5m
          recapture_after: 10m
          max_captures: 3
        schedules:
          - job_id: llama-70b
            every: 6h
            reason: comparison
        """,
    )
    assert given.storage.keep == 14 * 86400
    assert given.storage.max_size == 100 * 1024**3
    assert given.incidents.cool_down == 300
    assert given.schedules[0].every == 6 * 3600


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("incident: {}", "did you mean `incidents`"),
        ("incidents: {cooldown: 5m}", "did you mean `cool_down`"),
        ("incidents: {cool_down: soon}", "no duration"),
        ("incidents: {max_captures: 0}", "incidents.max_captures must be at least 1"),
        ("incidents: {recapture_after: 0s}", "incidents.recapture_after"),
        ("incidents: {alertnames: TrainingHang}", "incidents.alertnames"),
        ("storage: {keep: 0}", "storage.keep"),
        ("storage: {max_size: much}", "no size"),
        ("workers: 0", "workers must be at least 1"),
        ("schedules: [{job_id: x}]", "every"),
        ("schedules: [{job_id: x, every: 30s}]", r"schedules\[0\].every must be at least 1m"),
        ("schedules: [{job_id: '', every: 1h}]", r"schedules\[0\].job_id is empty"),
        ("storage: {queue: 'redis://x'}", "storage.queue is shared but storage.index is not"),
        ("storage: {index: 'postgresql://x/y'}", "storage.bundles must be"),
        ("[", "not YAML"),
        ("- x", "hangscope.yml"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        load(tmp_path, text)
    assert "hangscope.yml" in str(refused.value)
    assert "\n" not in str(refused.value)
