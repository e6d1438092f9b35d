"""Every query of the dashboards on a real Prometheus, with the shipped rules, over what a demo run served.

The expositions were recorded while rank 2 of the demo job hung in uninterruptible sleep and had been
diagnosed. Families that the run did not have (it had no NCCL, and a kernel without delay accounting) get one
sample each, with the labels of the metrics table.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from exporter import metrics as exporter_metrics
from tests.running import port_of_log, wait_for

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "fixtures" / "expositions"
JOB = "demo-disk-sleep"
Run = Callable[[str, str], list[dict[str, Any]]]
# The scenario has none of these: every collector is well, and no process is stopped.
EMPTY = {
    "hangscope-self: Collectors that fail",
    "hangscope-job: Longest time stopped",
}


class Exposition:
    """A recorded exposition that goes on as if the moment of its recording were the start of the test."""

    def __init__(self, path: Path, recorded_at: float, extra: str = "") -> None:
        self._lines = path.read_text().splitlines() + extra.splitlines()
        self._started = time.time()
        self._shift = self._started - recorded_at

    def text(self) -> str:
        elapsed = time.time() - self._started
        return "".join(self._later(line, elapsed) + "\n" for line in self._lines)

    def _later(self, line: str, elapsed: float) -> str:
        if line.startswith("#"):
            return line
        series, _, value = line.rpartition(" ")
        name = series.partition("{")[0]
        if name.endswith("_timestamp_seconds"):
            return f"{series} {float(value) + self._shift}"
        if name == "training_log_iteration_age_seconds":
            return f"{series} {float(value) + elapsed}"
        if name.endswith(("_total", "_count", "_sum", "_bucket")) and float(value) > 0:
            return f"{series} {float(value) + elapsed}"
        return line


def _missing(recorded: str) -> str:
    """One sample of every family of the table that the recording lacks."""
    lines = []
    for spec in exporter_metrics.TABLE:
        if f"\n{spec.name}" not in recorded:
            values = {"job_id": JOB, "rank": "2", "role": "trainer", "log": "x.log", "quantile": "0.5"}
            labels = ",".join(f'{label}="{values.get(label, "x")}"' for label in spec.labels)
            lines += [f"# TYPE {spec.name} {spec.kind}", f"{spec.name}{{{labels}}} 1.0"]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that has seen the hang and its verdict."""
    recorded = (RECORDED / "exporter.prom").read_text()
    recorded_at = max(float(one) for one in re.findall(r"^\w+_timestamp_seconds\S* (\S+)$", recorded, re.M))
    served = {
        "/exporter": Exposition(RECORDED / "exporter.prom", recorded_at, _missing(recorded)),
        "/snapshotter": Exposition(RECORDED / "snapshotter.prom", recorded_at),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(served[self.path].text().encode())

        def log_message(self, *args: object) -> None:
            pass

    program = shutil.which("prometheus")
    assert program is not None, "prometheus is missing: apt-get install prometheus"
    folder = tmp_path_factory.mktemp("prometheus")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        target = f"127.0.0.1:{server.server_port}"
        jobs = [
            {
                "job_name": f"hangscope-{name}",
                "metrics_path": f"/{name}",
                "static_configs": [{"targets": [target]}],
            }
            for name in ("exporter", "snapshotter")
        ]
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [
                str(ROOT / "rules" / pattern)
                for pattern in ("settings.yaml", "*_alerts.yaml", "*_rules.yaml")
            ],
            "scrape_configs": jobs,
        }
        (folder / "prometheus.yaml").write_text(json.dumps(config))
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [
                    program,
                    f"--config.file={folder / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            address = f"http://127.0.0.1:{port_of_log(folder / 'log')}"
            _wait(address, folder / "log")
            yield address
        finally:
            process.terminate()
            process.wait(timeout=60)
            server.shutdown()


def _wait(address: str, log: Path) -> None:
    """Until rates have samples enough and the last alert of the chain fires."""
    expression = (
        'ALERTS{alertname="TrainingHangDiagnosed", alertstate="firing"}'
        " and on () count_over_time(snapshotter_index_up[1m]) > 4"
        " and on () count_over_time(job_id:training_log_iterations:rate30m[1m]) > 2"
    )

    def ready() -> bool:
        try:
            return bool(_query(address, expression))
        except OSError:
            return False

    wait_for(ready, say=log.read_text)


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)["data"]


def _query(address: str, expression: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _get(
        f"{address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    )["result"]
    return found


def _query_range(address: str, expression: str) -> list[dict[str, Any]]:
    now = time.time()
    parameters = {"query": expression, "start": now - 20, "end": now, "step": 1}
    found: list[dict[str, Any]] = _get(f"{address}/api/v1/query_range?{urllib.parse.urlencode(parameters)}")[
        "result"
    ]
    return found


def _wanted(run: Run, address: str, expression: str) -> list[dict[str, Any]]:
    """Waits for series: on a busy machine a scrape may fail, and they are gone until the next one."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        found[:] = run(address, expression)
        return bool(found)

    with contextlib.suppress(AssertionError):
        wait_for(there)
    return found


def _instance(address: str) -> str:
    return str(_wanted(_query, address, "hangscope:exporter_up")[0]["metric"]["instance"])


def _put_in(text: str, instance: str) -> str:
    """Grafana's variables, as a person who looks at this job and node has them."""
    values = {"job_id": JOB, "instance": instance, "rank": ".+", "__rate_interval": "8s"}
    return re.sub(r"\$([a-z_]\w*)", lambda match: values[match.group(1)], text)


def test_every_panel_gets_what_the_scenario_has(prometheus: str) -> None:
    instance = _instance(prometheus)
    empty, unused_legends = set(), []
    for path in sorted((ROOT / "dashboards").glob("hangscope-*.json")):
        dashboard = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                title = f"{path.stem}: {panel['title']}"
                run = _query if target["instant"] else _query_range
                expression = _put_in(target["expr"], instance)
                series = run(prometheus, expression)
                if not series and title not in EMPTY:
                    series = _wanted(run, prometheus, expression)
                if not series:
                    empty.add(title)
                labels = {label for one in series for label in one["metric"]}
                named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
                if series and not named <= labels:
                    unused_legends.append((title, named - labels))
                if panel["type"] == "table" and series:
                    _check_columns(panel, title, labels)
    assert not unused_legends
    assert empty == EMPTY


def _check_columns(panel: dict[str, Any], title: str, labels: set[str]) -> None:
    """A table of one query shows only labels that the query keeps (empty ones Prometheus leaves out)."""
    if len(panel["targets"]) > 1:
        return
    shown = next(one for one in panel["transformations"] if one["id"] == "filterFieldsByName")
    assert set(shown["options"]["include"]["names"]) - {"Value"} <= labels | {"gpu", "pod", "rank", "role"}, (
        title
    )


def test_every_variable_has_values(prometheus: str) -> None:
    instance = _instance(prometheus)
    for path in (ROOT / "dashboards").glob("hangscope-*.json"):
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] != "query":
                continue
            wanted = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert wanted is not None
            match = urllib.parse.urlencode({"match[]": _put_in(wanted.group(1), instance)})
            values = _get(f"{prometheus}/api/v1/label/{wanted.group(2)}/values?{match}")
            assert values, (path.stem, variable["name"])


def test_every_annotation_has_events(prometheus: str) -> None:
    instance = _instance(prometheus)
    # Alerts of the node and of Hangscope itself do not fire in this run.
    expected = {"hangscope-fleet: Alerts", "hangscope-job: Alerts", "hangscope-job: Captures"}
    found = set()
    for path in (ROOT / "dashboards").glob("hangscope-*.json"):
        for annotation in json.loads(path.read_text())["annotations"]["list"]:
            name = f"{path.stem}: {annotation['name']}"
            events = _query_range(prometheus, _put_in(annotation["expr"], instance))  # of the last 20 s
            if not events and name in expected:
                events = _wanted(_query_range, prometheus, _put_in(annotation["expr"], instance))
            if events:
                found.add(name)
            if events and annotation["useValueForTime"]:
                assert abs(float(events[0]["values"][-1][1]) / 1000 - time.time()) < 3600
    assert found == expected


def test_every_rule_was_evaluated_without_error(prometheus: str) -> None:
    rules: list[dict[str, Any]] = []

    def evaluated() -> bool:
        groups = _get(f"{prometheus}/api/v1/rules")["groups"]
        rules[:] = [rule for group in groups for rule in group["rules"]]
        return bool(rules) and all(rule["health"] != "unknown" for rule in rules)

    wait_for(evaluated)  # each group has its own moment within the interval
    assert [rule for rule in rules if rule["health"] != "ok"] == []
    for alert in _get(f"{prometheus}/api/v1/alerts")["alerts"]:
        for text in alert["annotations"].values():
            assert "error" not in text and "<no value>" not in text, alert


def test_the_alert_says_what_the_verdict_says(prometheus: str) -> None:
    alerts: dict[str, Any] = {}

    def both() -> bool:
        alerts.update(
            (one["labels"]["alertname"], one) for one in _get(f"{prometheus}/api/v1/alerts")["alerts"]
        )
        return {"TrainingHang", "TrainingHangDiagnosed"} <= alerts.keys()

    wait_for(both)
    diagnosed = alerts["TrainingHangDiagnosed"]["annotations"]
    (recorded,) = re.findall(r'headline="([^"]+)"', (RECORDED / "snapshotter.prom").read_text())
    assert recorded.startswith("Rank 2 (on vm) ")
    assert diagnosed["headline"] == recorded
    assert diagnosed["description"] == (
        f"Job {JOB} hangs. {recorded} Cause: storage_io, scope: local. Culprits: rank 2 on vm."
    )
    assert re.fullmatch(r"http://\S+/captures/\w+-\w+", diagnosed["report_url"])
    assert f"/jobs/{JOB}/latest" in alerts["TrainingHang"]["annotations"]["report_url"]
