"""Jobs simulated for forty minutes (gaps, restarts, clocks, moves), their series put before the shipped rules.

Those that are well page nobody; of the others the alerts come at the given second.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import yaml

RULES = Path(__file__).parents[2] / "rules"
STEP = 15
SCRAPES = 160
GROUPS = ["settings", "training-hang", "training-causes", "training-signals", "nccl", "training"]

Sample = float | str | None  # "stale": the series ended; None: nothing was scraped
Seen = Callable[[int], bool | None]
"""Whether the exporter answers at a second; None: Prometheus itself is away, so that no series ends."""


def always(second: int) -> bool:
    return True


def away(begin: int, end: int, answer: bool | None = False) -> Seen:
    return lambda second: answer if begin <= second < end else True


def one_in_four(second: int) -> bool:
    return second % 60 == 0


class Timelines:
    """Input series for promtool."""

    def __init__(self) -> None:
        self.series: list[dict[str, str]] = []

    def add(self, name: str, seen: Seen, value: Callable[[int], float | None], **labels: str) -> None:
        samples: list[Sample] = []
        alive = False
        for second in range(0, SCRAPES * STEP, STEP):
            there = seen(second)
            sample = value(second) if there else None
            ended = alive and sample is None and there is not None
            samples.append("stale" if ended else sample)
            alive = sample is not None or (alive and there is None)
        text = ", ".join(f'{key}="{one}"' for key, one in {"job": "hangscope-exporter", **labels}.items())
        values = " ".join("_" if one is None else str(one) for one in samples)
        self.series.append({"series": f"{name}{{{text}}}", "values": values})

    def log(
        self,
        job_id: str,
        node: str,
        last: Callable[[int], int | None],
        *,
        seen: Seen = always,
        limit: int = 60,
        grace: int = 1800,
        followed: int = 0,
        finished: Callable[[int], bool] = lambda second: False,
        clock: int = 0,
    ) -> None:
        """A log that showed its last iteration at `last`, None: none yet; by a clock that is `clock` s ahead."""
        labels = {"job_id": job_id, "log": f"{node}.log", "instance": node}

        def starting(second: int) -> bool:
            return last(second) is None

        def age(second: int) -> float:
            at = last(second)
            return second - (followed if at is None else at)

        def timestamp(second: int) -> float | None:
            at = last(second)
            return None if at is None else at + clock

        self.add("training_log_iteration_age_seconds", seen, age, **labels)
        self.add(
            "training_log_hang_limit_seconds", seen, lambda at: grace if starting(at) else limit, **labels
        )
        self.add("training_log_last_iteration_timestamp_seconds", seen, timestamp, **labels)
        self.add("training_log_iterations_total", seen, lambda at: last(at) or 0, **labels)
        self.add("training_log_phase", seen, lambda at: float(starting(at)), **labels, phase="starting")
        self.add("training_log_phase", seen, lambda at: float(finished(at)), **labels, phase="finished")

    def ranks(self, job_id: str, instance: str, running: Callable[[int], int], node: str = "") -> None:
        """The processes of a job on a node that should run eight ranks; none: no series."""
        labels = {"job_id": job_id, "instance": instance}
        who = {"rank": "0", "role": "trainer"}

        def lives(second: int) -> bool:
            return running(second) > 0

        self.add("training_ranks_running", lives, running, **labels)
        self.add("training_ranks_expected", lives, lambda at: 8, **labels)
        self.add("training_process_info", lives, lambda at: 1, **labels, **who, node=node or instance)
        self.add("training_process_cpu_seconds_total", lives, lambda at: at, **labels, **who)
        for kind in ("rchar", "wchar"):
            self.add(f"training_process_{kind}_bytes_total", lives, lambda at: at, **labels, **who)

    def up(self, instance: str, seen: Seen = always) -> None:
        self.add("up", always, lambda at: float(bool(seen(at))), instance=instance)

    def alerts(self, folder: Path, expected: dict[tuple[str, str], int]) -> None:
        """That of these series, and at these seconds, come these alerts (name and job) and no others."""
        test = {
            "rule_files": [str(RULES / name) for name in ("settings.yaml", "training_rules.yaml")]
            + [str(RULES / "training_alerts.yaml")],
            "group_eval_order": [f"hangscope-{name}" for name in GROUPS],
            "evaluation_interval": "15s",
            "tests": [
                {
                    "interval": "15s",
                    "input_series": self.series,
                    "promql_expr_test": [
                        {
                            "expr": "min by (job_id, alertname) (min_over_time(timestamp("
                            'ALERTS{alertstate="firing", severity!="info"})[39m:15s]))',
                            "eval_time": "39m",
                            "exp_samples": [
                                {"labels": f'{{alertname="{name}", job_id="{job_id}"}}', "value": second}
                                for (name, job_id), second in expected.items()
                            ],
                        }
                    ],
                }
            ],
        }
        path = folder / "timelines.yaml"
        path.write_text(yaml.safe_dump(test, width=1_000_000))
        done = subprocess.run(
            ["promtool", "test", "rules", path], capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr


def every(interval: int, *, since: int = 0, until: int = 1_000_000) -> Callable[[int], int | None]:
    """When a log last showed an iteration that shows one every so many seconds."""

    def last(second: int) -> int | None:
        if second < since:
            return None
        return since + (min(second, until) - since) // interval * interval

    return last


def never(second: int) -> None:
    return None


def test_logs_of_jobs_that_are_well_page_nobody(tmp_path: Path) -> None:
    jobs = Timelines()
    jobs.log("scraped once a minute", "n1", every(5), seen=lambda at: True if at % 60 == 0 else None)
    jobs.log("not scraped for ten minutes", "n1", every(5), seen=away(600, 1200))
    jobs.log("answers one scrape in four", "n1", every(5), seen=one_in_four)
    jobs.log("ends", "n1", every(5, until=600), seen=away(630, 9999))
    jobs.log("ends while Prometheus is away", "n1", every(5, until=600), seen=away(630, 9999, None))

    job = "exporter restarts"
    jobs.log(job, "n1", lambda at: every(5)(at) if at < 600 else every(5, since=645)(at), followed=630)
    job = "two exporters, one restarts for ever"
    jobs.log(job, "n1", every(5))
    jobs.log(job, "n1-other", never, seen=lambda at: at % 120 < 60)
    job = "the silent log is back first"
    jobs.log(job, "n1", every(5), seen=away(1500, 1700))
    jobs.log(job, "n2", never, grace=600, seen=away(1500, 1600))
    job = "back first after Prometheus was away"
    jobs.log(job, "n1", every(5), seen=away(900, 1380, None))
    jobs.log(job, "n2", never, grace=600, seen=away(900, 1365, None))
    job = "Prometheus remembers nothing and scrapes the silent log first"
    jobs.log(job, "n1", every(5), seen=away(0, 15, None))
    jobs.log(job, "n2", never, followed=-5000)
    job = "the log that counts is out of sight, others fell silent long ago"
    jobs.log(job, "n1", every(5, until=60))
    jobs.log(job, "n2", every(5), seen=away(900, 2100))
    job = "one node of two is lost"
    jobs.log(job, "n1", every(5))
    jobs.log(job, "n2", every(5), seen=away(600, 9999))
    job = "goes on elsewhere"
    jobs.log(job, "n1", every(5, until=600), seen=away(640, 9999))
    jobs.log(job, "n2", every(5, since=800), seen=away(0, 660), followed=660)

    for clock in (-600, 600):
        job = f"one log says that it finished, by a clock {clock} s ahead"
        jobs.log(job, "n1", every(5, until=600), finished=lambda at: at >= 605, clock=clock)
        jobs.log(job, "n2", every(5, until=598), clock=clock)
    jobs.log("by a clock a day behind", "n1", every(5), clock=-86400)
    jobs.log("by a clock that is set back", "n1", lambda at: at + 3600 if 600 <= at < 750 else at)
    jobs.log("finished, and its launcher lives on", "n1", every(5, until=300), finished=lambda at: at > 300)
    jobs.log("evaluates within its limit", "n1", lambda at: 600 if 600 <= at < 840 else at, limit=300)
    jobs.log("iterates at its limit", "n1", every(60))
    for node in ("n1", "n1-other", "n2"):
        jobs.up(node)
    jobs.alerts(tmp_path, {})


def test_logs_of_jobs_that_hang_page_all_the_same(tmp_path: Path) -> None:
    jobs = Timelines()
    jobs.log("hangs", "n1", every(5, until=600))
    jobs.log("not scraped at its limit", "n1", every(5, until=600), seen=away(660, 720))
    jobs.log("answers one scrape in four", "n1", every(5, until=600), seen=one_in_four)
    jobs.log("by a clock a day behind", "n1", every(5, until=600), clock=-86400)
    jobs.log("on two nodes", "n1", every(5, until=600))
    jobs.log("on two nodes", "n2", every(5, until=600))
    jobs.log("soon after its exporter restarted", "n1", every(5, since=645, until=700), followed=630)
    jobs.log("never starts", "n1", never, grace=600)
    for node in ("n1", "n2"):
        jobs.up(node)
    jobs.alerts(
        tmp_path,
        {
            ("TrainingHang", "hangs"): 675,
            ("TrainingHang", "not scraped at its limit"): 720,
            ("TrainingHang", "answers one scrape in four"): 720,
            ("TrainingHang", "by a clock a day behind"): 675,
            ("TrainingHang", "on two nodes"): 675,
            ("TrainingHang", "soon after its exporter restarted"): 765,
            ("TrainingHang", "never starts"): 615,
            ("TrainingNeverStarted", "never starts"): 615,
        },
    )


def until(end: int, begin: int = 10_000) -> Callable[[int], int]:
    """Eight ranks, but for the time between."""
    return lambda second: 0 if end <= second < begin else 8


def test_ranks_are_missed_where_they_are_gone_and_nowhere_else(tmp_path: Path) -> None:
    jobs = Timelines()
    for node, other in (("n1", "n3"), ("n2", "n4")):
        jobs.ranks("moves under the same id", node, until(600))
        jobs.ranks("moves under the same id", other, until(0, 700))
        jobs.ranks("restarts where it was", node, until(600, 700))
    jobs.ranks("ends node by node", "n1", until(600))
    jobs.ranks("ends node by node", "n2", until(690))
    jobs.ranks("ranks come one after another", "n1", lambda at: min(8, max(0, (at - 300) // 12)))
    for job_id, instance, back in (
        ("an exporter restarts", "restarts", 645),
        ("an exporter is away for ten minutes", "away", 1200),
        ("an exporter stays away", "lost", 9999),
    ):
        jobs.ranks(job_id, instance, until(600, back))
        jobs.ranks(job_id, "n2", until(9999))
        jobs.up(instance, away(600, back))
    jobs.ranks("an exporter gets another address", "old", until(600), node="n5")
    jobs.ranks("an exporter gets another address", "new", until(0, 630), node="n5")
    jobs.ranks("an exporter gets another address", "n2", until(9999))
    jobs.add("up", away(600, 9999), lambda at: 1, instance="old")
    jobs.ranks("two exporters, one misses a rank for a minute", "n1", until(9999))
    jobs.ranks(
        "two exporters, one misses a rank for a minute",
        "n1-other",
        lambda at: 7 if 600 <= at < 660 else 8,
        node="n1",
    )

    jobs.ranks("loses a rank", "n1", lambda at: 8 if at < 600 else 7)
    jobs.ranks("loses the ranks of a node", "n1", until(600))
    jobs.ranks("loses the ranks of a node", "n2", until(9999))
    jobs.ranks("loses a node that starts anew", "reboots", until(600))
    jobs.ranks("loses a node that starts anew", "n2", until(9999))
    jobs.up("reboots", away(600, 800))
    for node in ("n1", "n1-other", "n2", "n3", "n4", "new"):
        jobs.up(node)
    jobs.alerts(
        tmp_path,
        {
            ("TrainingRankMissing", "loses a rank"): 720,
            ("TrainingRankMissing", "loses the ranks of a node"): 720,
            ("TrainingRankMissing", "loses a node that starts anew"): 930,
        },
    )
