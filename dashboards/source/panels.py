"""Panels, queries and variables of Grafana dashboards as plain dictionaries, in Grafana 11's schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

JOB = 'job_id="$job_id"'
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
JOB_LINK = "/d/hangscope-job?var-job_id=${__data.fields.job_id:percentencode}&${datasource:queryparam}"
REPORT_LINK = "${snapshotter_url:raw}/jobs/${__data.fields.job_id:percentencode}/latest"
NODE_LINK = "/d/hangscope-node?var-instance=${__data.fields.instance:percentencode}&${datasource:queryparam}"

GREEN, YELLOW, RED, BLUE, GREY = "green", "yellow", "red", "blue", "text"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL query of a panel."""

    expr: str
    legend: str = "__auto"
    instant: bool = False  # one value now, as tables and single figures want it


def thresholds(*steps: tuple[float | None, str]) -> Json:
    """Colours from a value upwards; the first step's value is None."""
    return {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in steps]}


def mapping(values: dict[str, tuple[str, str]]) -> list[Json]:
    """Texts and colours in place of values."""
    return [
        {
            "type": "value",
            "options": {
                value: {"text": text, "color": color, "index": index}
                for index, (value, (text, color)) in enumerate(values.items())
            },
        }
    ]


def link(title: str, url: str) -> Json:
    return {"title": title, "url": url, "targetBlank": False}


def override(field: str, **properties: Any) -> Json:
    """Settings of one field by its name; `__` in a property's name stands for a dot."""
    return {
        "matcher": {"id": "byName", "options": field},
        "properties": [{"id": key.replace("__", "."), "value": value} for key, value in properties.items()],
    }


def _targets(queries: Sequence[Query], *, table: bool) -> list[Json]:
    return [
        {
            "datasource": DATASOURCE,
            "refId": chr(ord("A") + index),
            "expr": query.expr,
            "legendFormat": query.legend,
            "format": "table" if table else "time_series",
            "instant": query.instant or table,
            "range": not (query.instant or table),
            "editorMode": "code",
        }
        for index, query in enumerate(queries)
    ]


def _panel(
    kind: str,
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    size: tuple[int, int],
    options: Json,
    custom: Json | None = None,
    table: bool = False,
    overrides: Sequence[Json] = (),
    transformations: Sequence[Json] = (),
    **defaults: Any,
) -> Json:
    width, height = size
    panel: Json = {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "gridPos": {"w": width, "h": height, "x": 0, "y": 0},
        "targets": _targets(queries, table=table),
        "fieldConfig": {
            "defaults": {"unit": unit} | defaults | ({"custom": custom} if custom is not None else {}),
            "overrides": list(overrides),
        },
        "options": options,
    }
    if transformations:
        panel["transformations"] = list(transformations)
    return panel


def stat(
    title: str, description: str, query: Query, *, unit: str = "short", width: int = 4, **defaults: Any
) -> Json:
    """One figure."""
    return _panel(
        "stat",
        title,
        description,
        [query],
        unit=unit,
        size=(width, 4),
        options={
            "colorMode": "background" if "thresholds" in defaults or "mappings" in defaults else "none",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "percentChangeColorMode": "standard",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "showPercentChange": False,
            "textMode": "value",
            "wideLayout": True,
        },
        **({"thresholds": thresholds((None, GREY))} | defaults),
    )


def text_stat(title: str, description: str, query: Query, *, width: int = 4, **defaults: Any) -> Json:
    """A label's value (the legend) in large letters."""
    panel = stat(title, description, query, unit="none", width=width, **defaults)
    panel["options"]["textMode"] = "name"
    return panel


def timeseries(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    size: tuple[int, int] = (12, 8),
    overrides: Sequence[Json] = (),
    threshold: bool = False,
    stacked: bool = False,
    **defaults: Any,
) -> Json:
    """Lines over time; with `threshold`, the thresholds are drawn."""
    custom: Json = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 30 if stacked else 0,
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "line" if threshold else "off"},
    }
    return _panel(
        "timeseries",
        title,
        description,
        queries,
        unit=unit,
        size=size,
        options={
            "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        custom=custom,
        overrides=overrides,
        **({"min": 0} | defaults),
    )


def heatmap(
    title: str, description: str, query: Query, *, unit: str, size: tuple[int, int] = (24, 8)
) -> Json:
    """One row a series, in the order of their names; colour is the value, from 0 to 1 and above."""
    return _panel(
        "heatmap",
        title,
        description,
        [query],
        unit=unit,
        size=size,
        options={
            "calculate": False,
            "cellGap": 1,
            "cellValues": {"unit": unit},
            "color": {
                "mode": "scheme",
                "scheme": "Oranges",
                "fill": "dark-orange",
                "exponent": 0.5,
                "steps": 64,
                "reverse": False,
                "min": 0,
                "max": 1,
            },
            "exemplars": {"color": "rgba(255,0,255,0.7)"},
            "filterValues": {"le": 1e-9},
            "legend": {"show": True},
            "rowsFrame": {"layout": "auto"},
            "showValue": "never",
            "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": False},
            "yAxis": {"axisPlacement": "left", "reverse": True, "unit": "none"},
        },
        custom={"scaleDistribution": {"type": "linear"}},
    )


def timeline(
    title: str,
    description: str,
    query: Query,
    values: dict[str, tuple[str, str]],
    *,
    size: tuple[int, int] = (24, 6),
) -> Json:
    """States over time, one row a series."""
    return _panel(
        "state-timeline",
        title,
        description,
        [query],
        unit="none",
        size=size,
        options={
            "alignValue": "left",
            "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": False},
            "mergeValues": True,
            "rowHeight": 0.8,
            "showValue": "never",
            "tooltip": {"mode": "single", "sort": "none"},
        },
        custom={"fillOpacity": 80, "lineWidth": 0},
        mappings=mapping(values),
        color={"mode": "thresholds"},
        thresholds=thresholds((None, GREY)),
    )


def table(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    columns: dict[str, str],
    by: str | None = None,
    overrides: Sequence[Json] = (),
    size: tuple[int, int] = (24, 8),
    sort: tuple[str, bool] | None = None,
) -> Json:
    """Series as rows. `columns` names the fields to show, in order, and their headings; with several queries,
    rows are joined by the field `by` and their values are `Value #A`, `Value #B`, …

    `overrides` name fields; Grafana applies them after the renaming, so they are written with the headings.
    """
    for one in overrides:
        field = one["matcher"]["options"]
        one["matcher"]["options"] = columns.get(field, field)
    transformations: list[Json] = []
    if by is not None:
        transformations.append({"id": "joinByField", "options": {"byField": by, "mode": "outer"}})
    transformations += [
        {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}},
        {
            "id": "organize",
            "options": {
                "indexByName": {name: index for index, name in enumerate(columns)},
                "renameByName": {name: heading for name, heading in columns.items() if name != heading},
                "excludeByName": {},
            },
        },
    ]
    return _panel(
        "table",
        title,
        description,
        queries,
        unit="short",
        size=size,
        options={
            "cellHeight": "sm",
            "footer": {"show": False, "reducer": ["sum"], "countRows": False, "fields": []},
            "frameIndex": 0,
            "showHeader": True,
            "sortBy": [{"displayName": sort[0], "desc": sort[1]}] if sort else [],
        },
        custom={"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False, "filterable": True},
        table=True,
        overrides=overrides,
        transformations=transformations,
    )


def row(title: str, *panels: Json, collapsed: bool = False) -> list[Json]:
    """A heading and its panels."""
    head: Json = {
        "type": "row",
        "title": title,
        "collapsed": collapsed,
        "gridPos": {"w": 24, "h": 1, "x": 0, "y": 0},
        "panels": [],
    }
    if collapsed:
        head["panels"] = list(panels)
        return [head]
    return [head, *panels]


def datasource_variable() -> Json:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "hide": 0,
        "refresh": 1,
        "regex": "",
        "multi": False,
        "includeAll": False,
        "options": [],
    }


def query_variable(
    name: str, label: str, query: str, *, multi: bool = False, hidden: bool = False, sort: int = 7
) -> Json:
    """A variable filled by a query; with `multi`, several values and "All"."""
    variable: Json = {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "hide": 2 if hidden else 0,
        "refresh": 2,
        "regex": "",
        "sort": sort,
        "multi": multi,
        "includeAll": multi,
        "options": [],
    }
    if multi:
        variable["allValue"] = ".+"
        variable["current"] = {"text": "All", "value": "$__all"}
    return variable


SNAPSHOTTER_URL = query_variable(
    "snapshotter_url",
    "Snapshotter",
    "label_values(hangscope:settings:info, snapshotter_url)",
    hidden=True,
)


def _annotation(name: str, color: str, expr: str, title: str, text: str, *, at_value: bool = False) -> Json:
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": color,
        "expr": expr,
        "step": "15s",
        "titleFormat": title,
        "textFormat": text,
        "tagKeys": "alertname,severity",
        "useValueForTime": "on" if at_value else False,
    }


def alert_annotation(selector: str, names: str = "Training.+") -> Json:
    return _annotation(
        "Alerts",
        "red",
        f'ALERTS{{alertstate="firing", alertname=~"{names}"{selector}}}',
        "{{alertname}}",
        "{{job_id}} {{rank}} {{instance}}",
    )


def capture_annotation(selector: str) -> Json:
    return _annotation(
        "Captures",
        "blue",
        f"snapshotter_verdict_timestamp_seconds{{{selector}}} * 1000",
        "Verdict",
        "{{job_id}}",
        at_value=True,
    )


def _placed(panels: Sequence[Json], *, first_id: int) -> list[Json]:
    """The panels from left to right and top to bottom, numbered."""
    x = y = tallest = 0
    placed = []
    for number, panel in enumerate(panels):
        position = panel["gridPos"]
        if x + position["w"] > 24:
            x, y, tallest = 0, y + tallest, 0
        panel = panel | {"id": first_id + number, "gridPos": position | {"x": x, "y": y}}
        if panel.get("panels"):
            panel["panels"] = _placed(panel["panels"], first_id=1000 * (first_id + number))
        placed.append(panel)
        x, tallest = x + position["w"], max(tallest, position["h"])
    return placed


def dashboard(
    uid: str,
    title: str,
    description: str,
    *,
    variables: Sequence[Json],
    panels: Sequence[Json],
    annotations: Sequence[Json] = (),
) -> Json:
    return {
        "uid": uid,
        "title": f"Hangscope / {title}",
        "description": description,
        "tags": ["hangscope"],
        "id": None,
        "version": 1,
        "schemaVersion": 39,
        "editable": False,
        "graphTooltip": 1,
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "timepicker": {},
        "weekStart": "",
        "links": [
            {
                "type": "dashboards",
                "title": "Hangscope",
                "tags": ["hangscope"],
                "asDropdown": False,
                "icon": "external link",
                "includeVars": False,
                "keepTime": True,
                "targetBlank": False,
                "tooltip": "",
                "url": "",
            }
        ],
        "annotations": {"list": list(annotations)},
        "templating": {"list": [datasource_variable(), *variables]},
        "panels": _placed(panels, first_id=1),
    }
