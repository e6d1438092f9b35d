from __future__ import annotations

import logging
from pathlib import Path

import pytest

from exporter.yamlconfig import ConfigError
from snapshotter import audit, config


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
        ("workers: 0", "workers must be 1 to 256"),
        ("workers: 100000", "workers must be 1 to 256"),
        ("incidents: {forget_after: 0}", "incidents.forget_after must be at least 1m"),
        ("capture: {job_id: ''}", "capture.job_id must be a name"),
        ("capture: {process_timeout: 0}", "capture.process_timeout must be 100ms to 10m"),
        ("capture: {node_timeout: 3m}", "agents.total_timeout must be at least capture.node_timeout, 180s"),
        ("agents: {nodes: [n=a, n=b]}", r"agents.nodes\[1\]: 'n=b' is there already, as agents.nodes\[0\]"),
        ("agents: {nodes: ['a', 'a:11030']}", r"agents.nodes\[1\]"),
        ("agents: {ca_file: ca.pem}", "add agents.tls: true"),
        ("agents: {tls: true, key_file: key.pem}", "without agents.cert_file"),
        ("agents: {address_label: a b}", "agents.address_label must be the name of a label"),
        ("prometheus: {url: 'prometheus:9090'}", "write it like http://prometheus:9090"),
        ("prometheus: {url: 'http://x:9a'}", "write it like http://prometheus:9090"),
        ("prometheus: {url: 'http://'}", "write it like http://prometheus:9090"),
        ("analysis: {tensor_parallel_size: 0}", "analysis.tensor_parallel_size must be at least 1"),
        ("schedules: [{job_id: x}]", "every"),
        ("schedules: [{job_id: x, every: 30s}]", r"schedules\[0\].every must be at least 1m"),
        ("schedules: [{job_id: '', every: 1h}]", r"schedules\[0\].job_id is empty"),
        (
            "schedules: [{job_id: x, every: 1h}, {job_id: x, every: 2h}]",
            r"schedules\[1\].job_id has a schedule",
        ),
        (f"schedules: [{{job_id: {'x' * 2000}, every: 1h}}]", "job_id has at most 1024 characters"),
        ("storage: {max_size: 0}", "storage.max_size must be at least 1 byte"),
        ("storage: {index: /var/lib/index.db}", "storage.index must be one of sqlite://"),
        ("storage: {index: 'mysql://x/y'}", "storage.index must be one of sqlite://"),
        ("storage: {queue: 'amqp://x'}", "storage.queue must be one of sqlite://"),
        ("storage: {bundles: ''}", "storage.bundles must be a folder"),
        ("storage: {bundles: ~/bundles}", "storage.bundles must be a folder, written in full"),
        ("storage: {bundles: 'foo://x'}", "nothing is known of foo://"),
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


def test_audit_lines_are_written_whatever_else_is_logged() -> None:
    assert logging.getLogger(audit.__name__).isEnabledFor(logging.INFO)
    assert not logging.getLogger("snapshotter.other").isEnabledFor(logging.INFO)
