from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshotter import incidents
from snapshotter.incidents import AlertEvent, Incident, Policy

POLICY = Policy(cool_down=600, recapture_after=900, max_captures=3, forget_after=86400)
START = 1_000_000.0


def firing(fingerprint: str = "a", since: float | None = START) -> AlertEvent:
    return AlertEvent(fingerprint, True, since)


def resolved(fingerprint: str = "a", at: float | None = START + 100, since: float = START) -> AlertEvent:
    return AlertEvent(fingerprint, False, since, at)


class Job:
    """One job as the service sees it: stores what the state machine says, counts captures."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.policy = policy
        self.last: Incident | None = None
        self.captured_at: list[float] = []
        self._ids = count()

    def hear(self, at: float, *events: AlertEvent) -> incidents.Step:
        step = incidents.observe(
            self.last, "job", events, self.policy, now=at, new_id=lambda: f"incident-{next(self._ids)}"
        )
        if step.incident is not None:
            self.last = step.incident
        if step.capture:
            self.captured_at.append(at)
        return step

    @property
    def incident(self) -> Incident:
        assert self.last is not None
        return self.last


def test_the_first_alert_opens_an_incident_and_asks_for_a_capture() -> None:
    job = Job()
    step = job.hear(START, firing())
    assert step.capture
    assert job.incident.is_open
    assert (job.incident.captures, job.incident.last_capture_at) == (1, START)


def test_a_repetition_changes_nothing_worth_a_write() -> None:
    job = Job()
    job.hear(START, firing())
    assert job.hear(START + 1, firing()) == incidents.Step(None)
    later = job.hear(START + 61, firing())
    assert not later.capture
    assert later.incident is not None and later.incident.last_seen_at == START + 61


def test_regrouped_alerts_of_the_job_belong_to_the_incident() -> None:
    job = Job()
    job.hear(START, firing("a"))
    job.hear(START + 5, firing("b"), firing("a"))
    job.hear(START + 10, firing("c"))
    assert job.captured_at == [START]
    assert set(job.incident.firing) == {"a", "b", "c"}


def test_it_is_over_when_its_last_alert_is() -> None:
    job = Job()
    job.hear(START, firing("a"), firing("b"))
    job.hear(START + 100, resolved("a"))
    assert job.incident.is_open
    job.hear(START + 101, resolved("b"))
    assert job.incident.closed_at == START + 101


def test_both_alertmanagers_of_a_pair_send_everything() -> None:
    job = Job()
    for at in (0, 1):
        job.hear(START + at, firing())
    for at in (100, 101):
        job.hear(START + at, resolved())
    assert job.captured_at == [START]
    assert not job.incident.is_open


def test_a_late_copy_of_an_ended_alert_is_no_new_hang_even_after_the_cool_down() -> None:
    job = Job()
    job.hear(START, firing())
    job.hear(START + 100, resolved())
    assert job.hear(START + 10_000, firing()) == incidents.Step(None)
    assert not job.incident.is_open
    assert job.captured_at == [START]


def test_a_late_end_of_an_earlier_alert_does_not_end_its_successor() -> None:
    job = Job()
    job.hear(START, firing())
    job.hear(START + 100, resolved())
    job.hear(START + 2000, firing(since=START + 2000))
    job.hear(START + 2001, resolved(at=START + 100))
    assert job.incident.is_open
    assert job.captured_at == [START, START + 2000]


def test_a_hang_that_comes_back_within_the_cool_down_is_the_same_incident() -> None:
    job = Job()
    job.hear(START, firing())
    first = job.incident.id
    job.hear(START + 100, resolved())
    job.hear(START + 300, firing(since=START + 300))
    assert job.incident.id == first and job.incident.is_open
    assert job.captured_at == [START]


def test_after_the_cool_down_it_is_a_new_one() -> None:
    job = Job()
    job.hear(START, firing())
    first = job.incident.id
    job.hear(START + 100, resolved())
    job.hear(START + 600, firing(since=START + 600))
    assert job.incident.id != first
    assert job.captured_at == [START, START + 600]
    assert job.hear(START + 601, firing()) == incidents.Step(None), "the first alert's late copy"


def test_the_end_of_an_alert_that_we_never_heard_of_is_nothing() -> None:
    assert Job().hear(START, resolved()) == incidents.Step(None)


def test_a_group_that_holds_end_and_beginning_of_one_alert() -> None:
    job = Job()
    job.hear(START, firing())
    job.hear(START + 700, firing(since=START + 650), resolved())
    assert job.incident.is_open
    assert job.incident.firing == {"a": START + 650}


def test_captures_while_it_lasts_come_at_growing_intervals_up_to_a_bound() -> None:
    job = Job()
    job.hear(START, firing())
    due = []
    for _ in range(5):
        at = incidents.next_capture_at(job.incident, POLICY)
        if at is None:
            break
        due.append(at - START)
        job.last = incidents.captured(job.incident, at)
    assert due == [900, 900 + 1800]
    assert job.incident.captures == POLICY.max_captures


@pytest.mark.parametrize("leap", [-30 * 86400, -86400, -3600, 3600, 30 * 86400])
def test_a_clock_that_is_set_costs_no_hang_its_capture(leap: float) -> None:
    job = Job()
    job.hear(START, firing())
    job.hear(START + 60, resolved(at=START + 50))
    now = START + leap
    job.hear(now, firing(since=now))  # another hang
    for repeated in range(60, 600, 60):
        job.hear(now + repeated, firing(since=now))
    assert job.captured_at == [START, now]


def test_captures_of_a_lasting_hang_go_on_though_the_clock_is_set_back() -> None:
    job = Job()
    job.hear(START, firing())
    assert not incidents.is_due(job.incident, POLICY, START - 800)  # as after a small correction
    assert incidents.is_due(job.incident, POLICY, START - 86400)
    assert not incidents.is_due(incidents.captured(job.incident, START - 86400), POLICY, START - 86399)
    assert incidents.forgotten(job.incident, POLICY, START - 86400)


def test_a_closed_incident_is_not_captured_again() -> None:
    job = Job()
    job.hear(START, firing())
    job.hear(START + 100, resolved())
    assert incidents.next_capture_at(job.incident, POLICY) is None


def test_the_cool_down_holds_for_captures_while_it_lasts_too() -> None:
    policy = replace(POLICY, cool_down=5000)
    job = Job(policy)
    job.hear(START, firing())
    assert incidents.next_capture_at(job.incident, policy) == START + 5000


def test_an_incident_whose_end_got_lost_is_forgotten() -> None:
    job = Job()
    job.hear(START, firing())
    assert not incidents.forgotten(job.incident, POLICY, START + 86399)
    assert incidents.forgotten(job.incident, POLICY, START + 86400)
    closed = incidents.close(job.incident, START + 86400)
    assert not closed.is_open and not incidents.forgotten(closed, POLICY, START + 99999999)


def test_alerts_without_times_are_taken_by_our_clock() -> None:
    job = Job()
    job.hear(START, firing(since=None))
    assert job.hear(START + 1, firing(since=None)) == incidents.Step(None)
    job.hear(START + 100, resolved(at=None))
    assert not job.incident.is_open
    job.hear(START + 700, firing(since=None))
    assert job.captured_at == [START, START + 700]


def test_ten_thousand_alerts_of_one_job_are_one_incident_of_bounded_size() -> None:
    job = Job()
    job.hear(START, *(firing(f"{n:x}") for n in range(10_000)))
    assert len(job.incident.firing) == 1000
    job.hear(START + 1, *(resolved(f"{n:x}") for n in range(10_000)))
    assert not job.incident.is_open
    assert len(job.incident.ended) <= 1000
    assert job.captured_at == [START]


_events = st.lists(
    st.tuples(
        st.floats(0, 599),  # when it arrives
        st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=30,
)


@given(_events)
def test_whatever_arrives_within_the_cool_down_there_is_one_capture(
    arrivals: list[tuple[float, list[tuple[str, bool]]]],
) -> None:
    job = Job()
    for at, group in sorted(arrivals, key=lambda one: one[0]):
        job.hear(START + at, *(AlertEvent(name, up, START + at, START + at) for name, up in group))
    assert len(job.captured_at) == any(up for _, group in arrivals for _, up in group)


@given(_events, st.floats(0.1, 50))
def test_captures_asked_for_are_never_closer_than_the_cool_down(
    arrivals: list[tuple[float, list[tuple[str, bool]]]], stretch: float
) -> None:
    job = Job()
    for at, group in sorted(arrivals, key=lambda one: one[0]):
        now = START + at * stretch
        job.hear(now, *(AlertEvent(name, up, now, now) for name, up in group))
        due = incidents.next_capture_at(job.incident, POLICY) if job.last else None
        if due is not None and due <= now:
            job.last = incidents.captured(job.incident, now)
            job.captured_at.append(now)
    gaps = [b - a for a, b in zip(job.captured_at, job.captured_at[1:], strict=False)]
    assert all(gap >= POLICY.cool_down - 1e-6 for gap in gaps)


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_order_of_the_copies_of_a_pair_does_not_matter(copies: int) -> None:
    job = Job()
    for copy in range(copies):
        job.hear(START + copy, firing("a"), firing("b"))
        job.hear(START + 50 + copy, resolved("a", START + 40))
        job.hear(START + 52 + copy, resolved("b", START + 45))
    assert not job.incident.is_open
    assert job.captured_at == [START]
