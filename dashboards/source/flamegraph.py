"""The merged stacks of a capture inside Grafana: optional, for it needs the Infinity data source plugin.

The panel knows no rank sets, and draws the odd rank of a thousand too narrow to see: the snapshotter's own
page is the better one.
"""

from __future__ import annotations

from source import panels as p
from source.panels import Json

FIELDS = {"level": "number", "value": "number", "self": "number", "label": "string"}
# The snapshotter answers with Grafana's data frame, which is made of columns; Infinity wants rows.
# The label gets the ranks that are in the frame, and those that are not.
LABEL = "$$.data.values[3][$i] & '@' & $$.data.values[4][$i] & '|' & $$.data.values[5][$i]"
ROWS = (
    "$map($$.data.values[0], function($v, $i) { {'level': $v, 'value': $$.data.values[1][$i],"
    f" 'self': $$.data.values[2][$i], 'label': {LABEL}}} }})"
)


def flamegraph() -> Json:
    source = {"type": "yesoreyeram-infinity-datasource", "uid": "${infinity}"}
    panel: Json = {
        "type": "flamegraph",
        "title": "Merged stacks",
        "description": "All ranks of the capture, merged: width is the number of ranks.",
        "datasource": source,
        "gridPos": {"w": 24, "h": 24, "x": 0, "y": 0},
        "targets": [
            {
                "datasource": source,
                "refId": "A",
                "type": "json",
                "source": "url",
                "parser": "backend",
                "format": "table",
                "url": "${snapshotter_url:raw}/api/v1/captures/${capture_id}/flamegraph.json",
                "url_options": {"method": "GET", "data": ""},
                "root_selector": ROWS,
                "columns": [
                    {"selector": field, "text": field, "type": kind} for field, kind in FIELDS.items()
                ],
                "filters": [],
            }
        ],
        "fieldConfig": {"defaults": {"unit": "short"}, "overrides": []},
        "options": {},
    }
    infinity = p.datasource_variable() | {
        "name": "infinity",
        "label": "Infinity data source",
        "query": "yesoreyeram-infinity-datasource",
    }
    return p.dashboard(
        "hangscope-flamegraph",
        "Flame graph",
        "The merged stacks of the newest capture of a job.",
        variables=[
            infinity,
            p.query_variable("job_id", "Job", "label_values(snapshotter_verdict_info, job_id)"),
            p.query_variable(
                "capture_id", "Capture", f"label_values(snapshotter_verdict_info{{{p.JOB}}}, capture_id)"
            ),
            p.SNAPSHOTTER_URL,
        ],
        panels=[panel],
    )
