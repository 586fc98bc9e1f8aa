"""Dashboards as Grafana's JSON, and where the files lie."""

import json
from collections.abc import Iterator
from typing import Any

from pillion.ops.dashboards import executor, queue, scheduler, user
from pillion.ops.dashboards.panels import Dashboard, Panel

DASHBOARDS = (user.DASHBOARD, queue.DASHBOARD, scheduler.DASHBOARD, executor.DASHBOARD)
FOLDER = "ops/observability/grafana/dashboards"
SCHEMA = 41  # of Grafana 12
HEIGHT = 8
SOURCE = {"type": "prometheus", "uid": "${source}"}


def text(dashboard: Dashboard) -> str:
    """The file."""
    return json.dumps(_document(dashboard), indent=1) + "\n"


def _document(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["pillion"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "graphTooltip": 1,  # one cursor in all panels
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_source(), _instances(dashboard.of.name)]},
        "links": [
            {
                "type": "dashboards",
                "tags": ["pillion"],
                "title": "Layers",
                "asDropdown": False,
                "keepTime": True,
            }
        ],
        "panels": list(_placed(dashboard.panels)),
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}


def _instances(metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, instance)"
    return {
        "name": "instance",
        "label": "Process",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": "instances"},
        "definition": query,
        "refresh": 2,  # with the time range
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }


def _placed(panels: tuple[Panel, ...]) -> Iterator[dict[str, Any]]:
    """Panels from left to right, row by row."""
    x = y = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > 24:
            x, y = 0, y + HEIGHT
        yield _panel(panel) | {"id": number, "gridPos": {"x": x, "y": y, "w": panel.width, "h": HEIGHT}}
        x += panel.width


def _panel(panel: Panel) -> dict[str, Any]:
    heat = panel.kind == "heatmap"
    return {
        "title": panel.title,
        "description": panel.advice,
        "type": {"heatmap": "heatmap", "numbers": "stat"}.get(panel.kind, "timeseries"),
        "datasource": SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "format": "heatmap" if heat else "time_series",
            }
            for index, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _options(panel),
    }


def _field(panel: Panel) -> dict[str, Any]:
    if panel.kind in ("heatmap", "numbers"):
        return {"unit": panel.unit}
    stacking = {"stacked": "normal", "shares": "percent"}.get(panel.kind, "none")
    lines = {
        "fillOpacity": 0 if stacking == "none" else 40,
        "stacking": {"mode": stacking},
        "showPoints": "never",
    }
    return {"unit": panel.unit, "min": 0, "custom": lines}


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "heatmap":
        return {
            "calculate": False,
            "yAxis": {"unit": panel.unit},
            "color": {"mode": "scheme", "scheme": "Oranges", "scale": "exponential", "exponent": 0.5},
            "cellGap": 1,
            "tooltip": {"mode": "single", "yHistogram": True},
        }
    if panel.kind == "numbers":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "value_and_name"}
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
