from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from snapshotter.bundle.records import CaptureRecord
from snapshotter.bundle.retention import expired
from snapshotter.bundle.schema import CaptureRequest


def record(number: int, *, ended: float = 0.0, size: int = 10, pinned: bool = False) -> CaptureRecord:
    request = CaptureRequest(f"c{number}", "llama", "alert", "", "", ended)
    return CaptureRecord(request, "done", "llama", finished_at=ended, bytes=size, pinned=pinned)


def gone(*records: CaptureRecord, now: float = 100.0, keep: float = 1000.0, cap: int = 10**9) -> list[str]:
    return [one.capture_id for one in expired(records, now=now, keep_seconds=keep, max_bytes=cap)]


def test_nothing_goes_without_need() -> None:
    assert gone(record(1), record(2)) == []
    assert gone() == []


def test_what_is_too_old_goes() -> None:
    assert gone(record(1, ended=10), record(2, ended=50), keep=80) == ["c1"]
    assert gone(record(1, ended=20), keep=80) == [], "to the second"


def test_past_the_cap_the_oldest_go_until_the_rest_fits() -> None:
    assert gone(record(1), record(2), record(3), cap=20) == ["c1"]
    assert gone(record(1), record(2), record(3), cap=19) == ["c1", "c2"]
    assert gone(record(1), record(2), record(3), cap=30) == []


def test_pinned_ones_stay_but_count() -> None:
    assert gone(record(1, pinned=True), record(2), record(3), cap=20) == ["c2"]
    assert gone(record(1, pinned=True, ended=0), keep=1) == []
    assert gone(record(1, pinned=True, size=100), record(2), record(3), cap=50) == ["c2", "c3"]


def test_a_capture_that_left_no_bundle_goes_by_age_alone() -> None:
    assert gone(record(1, size=0), record(2, size=30), cap=20) == ["c2"]
    assert gone(record(1, size=0), keep=50) == ["c1"]


_records = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50), st.booleans()), max_size=12).map(
    lambda drawn: [record(n, ended=e, size=s, pinned=p) for n, (e, s, p) in enumerate(sorted(drawn))]
)


@given(_records, st.integers(0, 200), st.floats(1, 200))
def test_what_remains_fits_unless_pins_forbid(records: list[CaptureRecord], cap: int, keep: float) -> None:
    out = {one.capture_id for one in expired(records, now=100.0, keep_seconds=keep, max_bytes=cap)}
    rest = [one for one in records if one.capture_id not in out]
    assert not any(one.pinned for one in records if one.capture_id in out)
    assert all(100.0 - (one.finished_at or 0) <= keep for one in rest if not one.pinned)
    if sum(one.bytes for one in rest) > cap:
        assert all(one.pinned or one.bytes == 0 for one in rest)
