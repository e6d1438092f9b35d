"""What can be set for logs, and what is refused with a word on how to write it."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from exporter import yamlconfig
from exporter.config import Config
from exporter.logs.frameworks import NAMES, PRESETS, reader
from exporter.logs.userpattern import UserPattern
from exporter.logs.wrappers import plain
from exporter.yamlconfig import ConfigError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("logs: [{path: /a, pattern: 'step (\\d+)'}]", "has no group `iteration`"),
        ("logs: [{path: /a, pattern: '(?P<iteration>\\d+'}]", "is no regular expression"),
        ("logs: [{path: /a, pattern: '(?P<iteration>.)(?P<step>.)'}]", "there are iteration, total, epoch"),
        ("logs: [{path: /a, framework: megatron}]", "did you mean megatron-lm?"),
        ("jobs: [{job_id: a, framework: nonsense}]", "there are megatron-lm"),
        ("logs: [{path: /a, framework: tqdm, pattern: '(?P<iteration>.)'}]", "both set"),
        ("logs: [{path: ''}]", "path is empty"),
        ("logs: [{paht: /a}]", "did you mean `path`?"),
        ("limits: {factor: 0.5}", "not between 1 and 1000"),
        ("limits: {floor: 1h, ceiling: 1m}", "above the ceiling"),
        ("limits: {minimum_intervals: 0}", "must be 1 to 512"),
    ],
)
def test_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        yamlconfig.parse(text, Config, "exporter.yaml")
    assert words in str(error.value)
    assert str(error.value).startswith("exporter.yaml: ")


def test_accepted() -> None:
    text = "logs: [{path: '/x/**/*.log', pattern: 'step (?P<iteration>\\d+)', hang_limit: 5m}]"
    assert yamlconfig.parse(text, Config, "f").logs[0].hang_limit == 300


def test_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_presets_have_an_iteration(preset: object) -> None:
    groups = preset.pattern.groupindex  # type: ignore[attr-defined]
    assert "iteration" in groups
    assert {name.removesuffix("_") for name in groups} <= {"iteration", "total", "epoch"}


def test_a_pinned_preset_takes_its_own_records_alone() -> None:
    read = reader("detectron2")
    taken = read(plain("eta: 8:31:22  iter: 19  total_loss: 2.794"))
    assert taken is not None
    assert (taken.iteration, taken.topic) == (19, None)
    other = read(plain("step 20 loss 2.3"))
    assert other is not None
    assert other.topic is not None


def test_a_pattern_takes_its_own_records_alone() -> None:
    pattern = UserPattern(r"tick (?P<iteration>[\d,]+) of (?P<total>\d+) in round (?P<epoch>\d+)")
    try:
        taken = pattern.read(plain("tick 1,200 of 5000 in round 3"))
        assert taken is not None
        assert (taken.iteration, taken.total, taken.epoch) == (1200, 5000, 3.0)
        other = pattern.read(plain("step 20 loss 2.3"))
        assert other is not None
        assert other.topic is not None
        assert pattern.read(plain("tick")) is None
        assert pattern.problem is None
    finally:
        pattern.close()


def test_a_pattern_is_kept_whose_process_gets_no_processor_for_a_while() -> None:
    pattern = UserPattern(r"tick (?P<iteration>\d+)", seconds=0.05)
    try:
        assert pattern.read(plain("tick 1")) is not None
        assert pattern._worker is not None
        worker = pattern._worker.pid
        os.kill(worker, signal.SIGSTOP)
        turn = threading.Timer(0.2, os.kill, (worker, signal.SIGCONT))
        turn.start()
        taken = pattern.read(plain("tick 2"))
        turn.join()
        assert taken is not None
        assert (taken.iteration, pattern.problem) == (2, None)
    finally:
        pattern.close()


def test_a_pattern_that_backtracks_for_ever_is_given_up() -> None:
    pattern = UserPattern(r"(?P<iteration>(?:\d+)+)+!", seconds=0.2)
    try:
        assert pattern.read(plain("7!")) is not None
        taken = pattern.read(plain("step 20 loss 2.3 " + "1" * 60))
        assert taken is not None
        assert taken.iteration == 20
        assert pattern.problem is not None
        assert "avoid repetitions within repetitions" in pattern.problem
    finally:
        pattern.close()
