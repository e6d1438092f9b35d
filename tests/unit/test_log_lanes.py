"""Work that may never come back."""

from __future__ import annotations

import threading

import pytest

from exporter.logs.lanes import Lane


def test_work_that_does_not_come_back_is_waited_for_no_longer_than_told() -> None:
    lane, release = Lane("test"), threading.Event()
    assert not lane.run(release.wait, 0.01)
    assert lane.busy
    assert not lane.wait(0.0)
    release.set()
    assert lane.wait(60)
    assert not lane.busy
    lane.close()


def test_what_work_raises_is_raised_to_who_waits_and_the_lane_goes_on() -> None:
    lane, done = Lane("test"), threading.Event()
    with pytest.raises(ZeroDivisionError):
        lane.run(lambda: 1 // 0, 60)  # type: ignore[arg-type,return-value]
    assert lane.run(done.set, 60)
    assert done.is_set()
    lane.close()
