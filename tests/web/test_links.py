"""The addresses that alerts and dashboards lead to, followed."""

from __future__ import annotations

import json
import re
import urllib.parse
from pathlib import Path

import pytest
import yaml

from tests.running import wait_for

from .conftest import Service

ROOT = Path(__file__).parents[2]
SETTING = re.compile(r'\{\{ with query "hangscope:settings:info" \}\}.*?label "(\w+)" \}\}\{\{ end \}\}')
JOB_IN_PATH = '{{ $labels.job_id | urlquery | reReplaceAll "[+]" "%20" }}'
JOBS = ("llama", "team a/llama+2", "größe?#%2F")


def report_urls() -> set[str]:
    """The report addresses of all alerts, below the snapshotter's, with the job still to be put in."""
    found = set()
    for path in (ROOT / "rules").glob("*_alerts.yaml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                text = rule.get("annotations", {}).get("report_url", "")
                if (setting := SETTING.match(text)) and setting.group(1) == "snapshotter_url":
                    found.add(text[setting.end() :])
    return found


def test_alerts_lead_to_two_kinds_of_pages() -> None:
    assert report_urls() == {"/", f"/jobs/{JOB_IN_PATH}/latest"}


@pytest.mark.parametrize("job_id", JOBS)
def test_the_report_of_an_alert_is_there(service: Service, job_id: str) -> None:
    capture_id = service.capture(job_id)
    for template in report_urls():
        answer = service.client.get(
            template.replace(JOB_IN_PATH, urllib.parse.quote(job_id, safe="")), follow_redirects=True
        )
        assert answer.status_code == 200, template
        assert capture_id in answer.text


def test_the_verdict_leads_to_its_capture(service: Service) -> None:
    capture_id = service.capture("llama")
    wait_for(lambda: "snapshotter_verdict_info{" in service.client.get("/metrics").text)
    exposition = service.client.get("/metrics").text
    (address,) = set(re.findall(r'snapshotter_verdict_info\{.*report_url="([^"]+)"', exposition))
    answer = service.client.get(urllib.parse.urlsplit(address).path)
    assert answer.status_code == 200
    assert capture_id in answer.text


def test_dashboards_lead_to_pages_and_dashboards_that_are_there(service: Service) -> None:
    service.capture("llama")
    dashboards = {
        path.stem: json.loads(path.read_text()) for path in (ROOT / "dashboards").glob("hangscope-*.json")
    }
    links = set(re.findall(r'"url": "([^"]+)"', "".join(json.dumps(one) for one in dashboards.values())))
    assert len(links) >= 3
    for link in links:
        if link.startswith("${snapshotter_url:raw}"):
            path = link.removeprefix("${snapshotter_url:raw}")
            path = path.replace("${__data.fields.job_id:percentencode}", "llama")
            assert service.client.get(path, follow_redirects=True).status_code == 200, link
        elif link.startswith("/d/"):
            uid, _, query = link.removeprefix("/d/").partition("?")
            variables = {one["name"] for one in dashboards[uid]["templating"]["list"]}
            named = set(re.findall(r"var-(\w+)=", query)) | set(re.findall(r"\$\{(\w+):queryparam\}", query))
            assert named <= variables
        else:  # an address that the snapshotter itself put into the metric
            assert link in ("${__value.raw}", "${__data.fields.report_url:raw}")


def test_alerts_lead_to_dashboards_that_are_there() -> None:
    dashboards = {
        path.stem: json.loads(path.read_text()) for path in (ROOT / "dashboards").glob("hangscope-*.json")
    }
    for path in (ROOT / "rules").glob("*_alerts.yaml"):
        for uid, query in re.findall(r"/d/([\w-]+)(\S*)", path.read_text()):
            variables = {one["name"] for one in dashboards[uid]["templating"]["list"]}
            assert set(re.findall(r"var-(\w+)=", query)) <= variables
