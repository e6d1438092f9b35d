"""How long a log may be silent: learned, configured, and in each phase."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exporter.logs.model import Phase
from exporter.logs.progress import Progress, Rules

RULES = Rules(
    configured=None,
    where="",
    factor=5,
    floor=60,
    ceiling=1800,
    minimum_intervals=5,
    startup_grace=900,
    pause_grace=300,
)
SET = replace(RULES, configured=120, where="job a")


def _regular(interval: float, count: int = 50) -> Progress:
    progress = Progress(0.0)
    for number in range(count + 1):
        progress.moved(number * interval)
    return progress


def test_before_the_first_iteration_there_is_grace() -> None:
    limit = Progress(0.0).limit(RULES, Phase.STARTING)
    assert limit.seconds == 900
    assert "first iteration" in limit.reason


def test_what_moves_while_starting_puts_the_grace_off() -> None:
    progress = Progress(1000.0)
    progress.alive(1500.0)
    assert progress.limit(RULES, Phase.STARTING).seconds == 500 + 900


def test_until_it_has_learned_the_ceiling_holds() -> None:
    limit = _regular(10, count=4).limit(RULES, Phase.TRAINING)
    assert limit.seconds == 1800
    assert "4 of 5" in limit.reason


def test_it_learns_from_the_intervals() -> None:
    limit = _regular(40).limit(RULES, Phase.TRAINING)
    assert limit.seconds == pytest.approx(200)
    assert limit.reason.startswith("learned: 5 times 40 s")


def test_logging_seldom_is_normal() -> None:
    assert _regular(430).limit(RULES, Phase.TRAINING).seconds == 1800
    assert "ceiling" in _regular(430).limit(RULES, Phase.TRAINING).reason


def test_floor() -> None:
    assert _regular(0.5).limit(RULES, Phase.TRAINING).seconds == 60


def test_a_few_long_pauses_do_not_move_the_limit() -> None:
    progress = Progress(0.0)
    at = 0.0
    for number in range(200):
        at += 600 if number % 50 == 49 else 20
        progress.moved(at)
    assert progress.limit(RULES, Phase.TRAINING).seconds == pytest.approx(100)


def test_it_forgets_how_fast_it_once_was() -> None:
    progress = _regular(1, count=1000)
    for number in range(600):
        progress.moved(1000 + 40.0 * (number + 1))
    assert progress.limit(RULES, Phase.TRAINING).seconds == pytest.approx(200)
    assert progress.intervals().count == 1600


def test_a_configured_limit_is_what_is_set() -> None:
    limit = _regular(40).limit(SET, Phase.TRAINING)
    assert (limit.seconds, limit.reason) == (120, "set for job a")


@pytest.mark.parametrize("phase", [Phase.EVALUATING, Phase.CHECKPOINTING, Phase.COMPILING])
def test_pauses_are_allowed_longer_but_not_for_ever(phase: Phase) -> None:
    progress = _regular(40)
    last = progress.last_at or 0.0
    progress.enter(phase, last + 10)
    limit = progress.limit(RULES, phase)
    assert limit.seconds == pytest.approx(10 + 600)
    assert limit.seconds < 10 + RULES.ceiling
    progress.enter(phase, last + 500)  # said again: no sign of life
    assert progress.limit(RULES, phase).seconds == limit.seconds


@pytest.mark.parametrize("phase", [Phase.EVALUATING, Phase.CHECKPOINTING, Phase.COMPILING])
def test_the_first_pause_of_its_kind_has_grace(phase: Phase) -> None:
    rules = replace(RULES, configured=6.0)
    progress = _regular(1)
    at = progress.last_at or 0.0
    progress.enter(phase, at)
    assert progress.limit(rules, phase).seconds == pytest.approx(300)
    progress.moved(at + 20)
    progress.enter(phase, at + 30)
    assert progress.limit(rules, phase).seconds == pytest.approx(10 + 60)  # three times what it took


def test_an_evaluation_that_moves_may_go_on() -> None:
    progress = _regular(40)
    last = progress.last_at or 0.0
    progress.enter(Phase.EVALUATING, last + 10)
    progress.alive(last + 4000)
    assert progress.limit(RULES, Phase.EVALUATING).seconds == pytest.approx(4000 + 600)


def test_a_pause_is_learned_for_the_next_time() -> None:
    progress = _regular(40)
    at = progress.last_at or 0.0
    progress.enter(Phase.CHECKPOINTING, at + 1)
    progress.moved(at + 401)
    progress.enter(Phase.CHECKPOINTING, at + 441)
    assert progress.limit(RULES, Phase.CHECKPOINTING).seconds == pytest.approx(40 + 1200)
    assert progress.limit(RULES, Phase.TRAINING).seconds == pytest.approx(200)


def test_the_first_iteration_after_a_pause_has_as_long_as_any_other() -> None:
    progress = _regular(10)  # until 500
    progress.enter(Phase.CHECKPOINTING, 505)
    progress.enter(Phase.TRAINING, 705)  # saved; the next iteration is on its way
    limit = progress.limit(RULES, Phase.TRAINING)
    assert limit.seconds == 205 + 60
    assert "from the end of a pause" in limit.reason
    progress.moved(712)
    assert progress.limit(RULES, Phase.TRAINING).seconds == 60


def test_a_pause_that_was_said_to_be_over_is_no_part_of_an_interval() -> None:
    progress = Progress(0.0)
    at = 0.0
    for _ in range(20):
        at += 20
        progress.moved(at)
        progress.enter(Phase.EVALUATING, at + 5)
        progress.enter(Phase.TRAINING, at + 305)
        at += 300
    assert progress.quantile(0.99) == pytest.approx(20)


def test_a_new_run_has_its_own_grace() -> None:
    progress = _regular(40)
    progress.restart(10_000.0)
    assert progress.last_at is None
    assert progress.limit(RULES, Phase.STARTING).seconds == 900
    progress.moved(10_100.0)
    assert progress.limit(RULES, Phase.TRAINING).seconds == pytest.approx(200)


def test_times_that_are_not_known_well_teach_nothing() -> None:
    progress = Progress(0.0)
    for number in range(20):
        progress.moved(float(number), timed=False)
    assert progress.intervals().count == 0


def test_a_clock_that_goes_back_does_no_harm() -> None:
    progress = _regular(40)
    progress.moved(5.0)
    assert progress.last_at == 2000.0
