"""When a job is asked, what is published, and what a scrape shows of it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric

from exporter.collectors.nccl import NcclCollector
from exporter.config import NcclConfig
from exporter.metrics import TABLE
from exporter.nccl import watcher as watching
from exporter.nccl.find import SKIPS, Skip, Target
from exporter.nccl.model import Version
from exporter.nccl.parse import parse
from exporter.nccl.question import Asked
from exporter.nccl.ras import Address, Reason, Reply, understand
from exporter.nccl.watcher import JobStatus, NcclWatcher
from exporter.procfs import ProcFS
from exporter.ranks import ProcessId, Scan, TrainingProcess
from exporter.yamlconfig import ConfigError, Duration
from exporter.yamlconfig import parse as parse_yaml

FOLDER = Path(__file__).parent.parent / "fixtures" / "nccl" / "transcripts"
STARTED = 1_000_000.0


def answered(name: str, reason: Reason | None = None) -> Asked:
    raw = (FOLDER / f"{name}.reply").read_bytes()
    address = Address("127.0.0.1", 28028)
    return Asked(answer=understand(Reply(raw, address, 0.25, reason, reason or "")))


class Node:
    """A watcher with a clock, a job list, a fixed target and answers that are handed in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.time = STARTED + 3600
        self.jobs = ["job"]
        self.found: Target | Skip = Target(
            job_id="job",
            addresses=(Address("127.0.0.1", 28028),),
            version=None,
            pids=frozenset({10}),
            listeners=(10,),
            own_pids=frozenset({10}),
            shared=False,
            started=STARTED,
        )
        self.next: Asked = answered("healthy-json-2.30.7")
        self.questions: list[tuple[float, str, bool]] = []
        monkeypatch.setattr(watching, "find", self._find)
        self.watcher = NcclWatcher(
            NcclConfig(**settings), ProcFS(Path("/nowhere")), self._scan, now=lambda: self.time, ask=self._ask
        )

    def _scan(self) -> Scan:
        processes = tuple(
            TrainingProcess(
                ProcessId(10 + number, 1), 1, job, "trainer", 0, 0, 8, "python", ("python",), "torchrun"
            )
            for number, job in enumerate(self.jobs)
        )
        return Scan(self.time, "node", processes)

    def _find(
        self, procfs: ProcFS, processes: Iterable[TrainingProcess], config: NcclConfig
    ) -> Target | Skip:
        job_id = next(iter(processes)).job_id
        return replace(self.found, job_id=job_id) if isinstance(self.found, Target) else self.found

    def _ask(self, procfs: ProcFS, target: Target, *, json: bool, hashes: Collection[str]) -> Asked:
        self.hashes = set(hashes)
        self.questions.append((self.time, target.job_id, json))
        return self.next

    def poll(self, after: float = 0.0) -> JobStatus:
        """Let `after` seconds pass, poll, and give the state of the first job."""
        self.time += after
        self.watcher.poll()
        return self.watcher.latest[0]

    def series(self) -> dict[str, float]:
        return series(NcclCollector(lambda: self.watcher.latest).collect())


def series(families: Iterable[Metric]) -> dict[str, float]:
    """Samples as `name{label=value,…}`; skips alone where they are 1."""
    found = {}
    for family in families:
        for sample in family.samples:
            if sample.name == "nccl_ras_skipped" and not sample.value:
                continue
            labels = ",".join(f"{key}={value}" for key, value in sample.labels.items() if key != "job_id")
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


def test_a_job_is_asked_once_an_interval_however_often_it_is_polled(node: Node) -> None:
    for _ in range(100):
        node.poll(after=3)
    assert len(node.questions) == 5
    times = [at for at, _, _ in node.questions]
    assert all(60 <= later - earlier < 66 for earlier, later in itertools.pairwise(times))


def test_a_clock_that_is_set_back_keeps_nothing_from_being_asked(node: Node) -> None:
    target, node.found = node.found, "not_listening"
    node.poll()
    node.found = target
    node.poll(after=16)  # its service was seen to appear
    assert node.poll(after=616).up
    node.poll(after=-86_400)
    assert isinstance(node.found, Target)
    node.found = replace(
        node.found, started=STARTED - 86_400
    )  # by the kernel's time of boot, which is set as well
    asked = len(node.questions)
    for _ in range(21):
        node.poll(after=3)
    assert len(node.questions) == asked  # not sooner than an interval
    for _ in range(200):
        node.poll(after=3)
    assert len(node.questions) > asked
    assert node.watcher.latest[0].up


def test_an_interval_below_a_minute_is_refused() -> None:
    with pytest.raises(ConfigError, match="60s or slower"):
        parse_yaml("interval: 10s", NcclConfig, "exporter.yml")


def test_not_in_the_first_minutes_of_a_job(node: Node) -> None:
    node.time = STARTED + 10
    assert node.poll().skip == "quiet_start"
    assert node.poll(after=580).skip == "quiet_start"
    assert node.poll(after=20).up


def test_not_in_the_first_minutes_of_a_service_that_was_seen_to_appear(node: Node) -> None:
    target, node.found = node.found, "not_listening"
    assert node.poll().skip == "not_listening"
    node.found = target
    assert node.poll(after=16).skip == "quiet_start"
    assert node.poll(after=599).skip == "quiet_start"
    assert node.poll(after=16).up


def test_without_start_times_the_first_minutes_count_from_the_first_look(node: Node) -> None:
    assert isinstance(node.found, Target)
    node.found = replace(node.found, started=None)
    assert node.poll().skip == "quiet_start"
    assert node.poll(after=601).up


def test_failures_make_the_wait_longer(node: Node) -> None:
    node.next = answered("stoplocal-silent-2.30.7", "silent")
    for _ in range(800):
        node.poll(after=15)
    times = [at for at, _, _ in node.questions]
    waits = [round((later - earlier) / 60) for earlier, later in itertools.pairwise(times)]
    assert waits[:6] == [2, 4, 8, 16, 16, 16]
    status = node.watcher.latest[0]
    assert (status.skip, status.up, status.report) == ("back_off", False, None)
    seen = node.series()
    assert seen["nccl_ras_up"] == 0
    assert seen["nccl_ras_skipped{reason=back_off}"] == 1
    assert seen["nccl_ras_scrape_errors_total{reason=silent}"] == len(times)
    assert "nccl_ras_nodes" not in seen
    node.next = answered("healthy-json-2.30.7")
    assert node.poll(after=16 * 60).up
    assert node.poll(after=60).skip is None
    assert len(node.questions) == len(times) + 2


def test_an_answer_of_another_job_is_refused_with_its_reason(node: Node) -> None:
    node.poll()
    node.next = Asked(skip="ambiguous")
    assert node.poll(after=60).skip == "ambiguous"
    assert node.poll(after=20).skip == "ambiguous"
    assert node.series() == {"nccl_ras_skipped{reason=ambiguous}": 1}
    node.next = answered("healthy-json-2.30.7")
    assert node.poll(after=60).skip is None


def test_what_was_said_is_withheld_once_it_can_no_longer_be_asked(node: Node) -> None:
    assert node.poll().report is not None
    node.found = "not_listening"
    status = node.poll(after=61)
    assert (status.report, status.up, status.skip) == (None, None, "not_listening")


def test_a_job_that_is_gone_leaves_nothing(node: Node) -> None:
    node.poll()
    node.jobs = []
    node.watcher.poll()
    assert node.watcher.latest == ()
    assert node.series() == {}


def test_each_job_has_its_own_interval(node: Node) -> None:
    node.jobs = ["job", "other"]
    node.poll()
    assert [job for _, job, _ in node.questions] == ["job", "other"]
    assert {status.job_id for status in node.watcher.latest} == {"job", "other"}


def test_a_mismatch_whose_counters_stand_still(node: Node) -> None:
    node.next = answered("lag-one-json-2.30.7")
    stalled = [next(iter(node.poll(after=60).stalled.values())) for _ in range(4)]
    assert stalled == [0, 60, 120, 180]
    seen = node.series()
    (name,) = [name for name in seen if name.startswith("nccl_ras_communicator_stalled_seconds")]
    assert seen[name] == 180
    (lag,) = [value for name, value in seen.items() if name.startswith("nccl_ras_communicator_launch_lag")]
    assert lag == 1


def test_a_failed_question_does_not_end_a_stall(node: Node) -> None:
    node.next = answered("lag-one-json-2.30.7")
    node.poll()
    good, node.next = node.next, answered("stoplocal-silent-2.30.7", "silent")
    assert node.poll(after=60).stalled == {}
    node.next = good
    assert list(node.poll(after=120).stalled.values()) == [180]


def test_mismatches_that_move_are_no_stall(node: Node) -> None:
    for name in ("live-poll0-2.30.7", "live-poll1-2.30.7", "live-poll2-2.30.7"):
        node.next = answered(name)
        assert set(node.poll(after=60).stalled.values()) == {0}


def test_a_stall_ends_with_its_mismatch(node: Node) -> None:
    node.next = answered("lag-one-json-2.30.7")
    node.poll()
    node.poll(after=60)
    node.next = answered("healthy-json-2.30.7")
    assert node.poll(after=60).stalled == {}
    node.next = answered("lag-one-json-2.30.7")
    assert list(node.poll(after=60).stalled.values()) == [0]


def test_a_corrupt_answer_is_counted_and_its_table_not_shown(node: Node) -> None:
    node.next = answered("killed-t0-2.28.3")
    node.poll()
    seen = node.series()
    assert seen["nccl_ras_up"] == 1
    assert seen["nccl_ras_scrape_errors_total{reason=corrupt}"] == 1
    assert seen["nccl_ras_processes_missing"] == 1
    assert not [name for name in seen if name.startswith("nccl_ras_communicator")]


def test_json_is_asked_for_until_it_costs_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, version="2.30.7")
    assert isinstance(node.found, Target)
    node.found = replace(node.found, version=Version(2, 30, 7))
    node.poll()
    answer = node.next.answer
    assert answer is not None
    node.next = Asked(answer=replace(answer, report=replace(answer.report, rank_entries=50_000)))
    node.poll(after=60)
    node.poll(after=60)
    assert [json for _, _, json in node.questions] == [True, True, False]


def test_what_a_scrape_shows_of_a_healthy_job(node: Node) -> None:
    node.poll()
    assert node.series() == {
        "nccl_ras_up": 1,
        "nccl_ras_last_answer_timestamp_seconds": node.time,
        "nccl_ras_scrape_duration_seconds": 0.25,
        "nccl_ras_info{nccl_version=2.30.7,cuda_runtime=12.9,cuda_driver=13.1,format=json}": 1,
        "nccl_ras_nodes": 2,
        "nccl_ras_processes": 8,
        "nccl_ras_gpus": 8,
        "nccl_ras_processes_dead": 0,
        "nccl_ras_processes_missing": 0,
        "nccl_ras_communicators{status=RUNNING,error=OK}": 1,
        "nccl_ras_communicators_unlisted": 0,
    }


def test_what_a_scrape_shows_of_a_dead_process(node: Node) -> None:
    node.next = answered("killed-t75-2.30.7")
    node.poll()
    seen = node.series()
    assert seen["nccl_ras_processes_dead"] == 1
    assert seen["nccl_ras_communicators{status=RUNNING,error=INCOMPLETE}"] == 3
    assert seen["nccl_ras_communicators{status=RUNNING,error=OK}"] == 6
    assert seen["nccl_ras_communicator_missing_ranks{communicator=34b579d93758e4d4}"] == 1


def test_the_worst_communicators_are_named_and_the_rest_counted() -> None:
    report = parse((FOLDER / "killed-t75-json-2.30.7.reply").read_bytes())
    status = JobStatus("job", None, up=True, asked_at=1.0, seconds=0.1, report=report)
    seen = series(NcclCollector(lambda: (status,), shown=2).collect())
    assert seen["nccl_ras_communicators_unlisted"] == 1
    assert len([name for name in seen if name.startswith("nccl_ras_communicator_missing")]) == 2


def test_every_reason_has_a_series_and_a_sentence() -> None:
    status = JobStatus("job", "unsafe_version")
    (family,) = NcclCollector(lambda: (status,)).collect()
    assert {sample.labels["reason"]: sample.value for sample in family.samples} == {
        reason: float(reason == "unsafe_version") for reason in SKIPS
    }
    assert all(SKIPS.values())


def test_every_metric_of_the_table_is_made(node: Node) -> None:
    node.next = answered("error-init-one-json-2.30.7")
    node.poll()
    node.next = answered("stoplocal-silent-2.30.7", "silent")
    made = {name.split("{")[0] for name in node.series()}
    node.poll(after=60)
    node.poll(after=5)
    made |= {name.split("{")[0] for name in node.series()}
    assert made == {spec.name for spec in TABLE if spec.name.startswith("nccl_ras_")}


def test_the_switch_acts_at_once_and_the_interval_outlasts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch)
    node.poll()
    node.watcher.configure(NcclConfig(enabled=False))
    target, node.found = node.found, "switched_off"
    assert node.poll(after=5).skip == "switched_off"
    node.watcher.configure(NcclConfig())
    node.found = target
    node.poll(after=20)
    assert len(node.questions) == 1
    assert node.poll(after=40).up
    assert len(node.questions) == 2


@pytest.mark.parametrize(("skip", "times"), [("not_listening", 8), ("no_nccl", 2)])
def test_a_job_that_is_not_asked_is_looked_at_seldom(node: Node, skip: Skip, times: int) -> None:
    looks: list[float] = []
    find = node._find

    def counting(*arguments: Any) -> Any:
        looks.append(node.time)
        return find(*arguments)

    node.found = skip
    watching.find = counting  # type: ignore[assignment,attr-defined]
    for _ in range(120):
        node.poll(after=1)
    assert len(looks) == times


def test_a_configuration_can_be_exchanged(node: Node) -> None:
    node.watcher.configure(NcclConfig(interval=Duration(600)))
    node.poll()
    node.poll(after=300)
    assert len(node.questions) == 1


def test_a_question_says_which_communicators_the_job_has(node: Node) -> None:
    node.next = answered("lag-one-json-2.30.7")
    node.poll()
    assert node.hashes == set()
    node.poll(after=60)
    assert node.next.answer is not None
    assert node.hashes == {one.hash for one in node.next.answer.report.communicators} != set()
