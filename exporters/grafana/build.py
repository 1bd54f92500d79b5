"""Writes the Grafana dashboard of a soak: `python -m exporters.grafana.build` rewrites the JSON.

It turns the table in panels.py into Grafana's classic JSON model and knows nothing of what the
expressions mean. A test compares the JSON with what this file builds, another evaluates every
expression against a real Prometheus that scrapes a real run.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from exporters.grafana.panels import ROWS, SLO_LINE, Panel

FILE = Path(__file__).parent / "dashboards" / "tokenswarm-soak.json"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24


def _steps(limits: Iterable[tuple[str, float]]) -> list[dict[str, Any]]:
    """Grafana wants the first threshold without a value."""
    return [
        {"color": color, "value": value if i else None} for i, (color, value) in enumerate(limits)
    ]


def _defaults(panel: Panel) -> dict[str, Any]:
    """The field settings of a panel: unit, thresholds, line style."""
    limits = panel.limits or (("green", 0.0),)
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": _steps(limits)},
    }
    if panel.kind == "timeseries":
        defaults["min"] = 0
        defaults["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 20 if panel.stack else 0,
            "stacking": {"mode": "normal" if panel.stack else "none", "group": "A"},
            "thresholdsStyle": {"mode": "line" if panel.limits else "off"},
        }
    return defaults


_SLO_STYLE = {
    "matcher": {"id": "byName", "options": SLO_LINE},
    "properties": [
        {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}},
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [10, 10]}},
    ],
}


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    """The SLO is a dashed red line wherever there is one."""
    return [_SLO_STYLE] if any(legend == SLO_LINE for legend, _ in panel.queries) else []


_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["mean", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "auto",
        "colorMode": "value",
        "graphMode": "area",
    },
    "heatmap": {
        "calculate": False,
        "yAxis": {"unit": "s"},
        "color": {"mode": "scheme", "scheme": "Spectral", "steps": 64},
        "cellGap": 0,
        "tooltip": {"mode": "single", "yHistogram": True},
    },
}


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    """The JSON of one panel at its place."""
    options = _OPTIONS[panel.kind]
    if panel.title == "State":
        options = {**options, "textMode": "name", "graphMode": "none"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + i),
                "datasource": DATASOURCE,
                "expr": expression,
                "legendFormat": legend or "__auto",
                "format": "heatmap" if panel.kind == "heatmap" else "time_series",
                "range": panel.kind != "stat" or panel.title != "State",
                "instant": panel.title == "State",
            }
            for i, (legend, expression) in enumerate(panel.queries)
        ],
    }


def _panels() -> Iterator[dict[str, Any]]:
    """Rows and panels from top to bottom, filled up from left to right."""
    numbers = itertools.count(1)
    y = 0
    for title, panels in ROWS.items():
        yield {
            "id": next(numbers),
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1},
        }
        x, y = 0, y + 1
        for panel in panels:
            if x + panel.width > _COLUMNS:
                x, y = 0, y + panels[0].height
            yield _panel(panel, next(numbers), x, y)
            x += panel.width
        y += panels[-1].height


def _choice(name: str, query: str, label: str) -> dict[str, Any]:
    """A variable whose values come from the label of a metric."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _number(name: str, value: str, label: str) -> dict[str, Any]:
    """A variable that is typed in: a limit in seconds."""
    chosen = {"text": value, "value": value}
    return {
        "name": name,
        "label": label,
        "type": "textbox",
        "query": value,
        "current": chosen,
        "options": [{**chosen, "selected": True}],
    }


VARIABLES: tuple[dict[str, Any], ...] = (
    {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
    _choice("workload", "label_values(tokenswarm_run_info, workload)", "Workload"),
    _choice(
        "stage",
        'label_values(tokenswarm_request_duration_seconds_count{workload=~"$workload"}, stage)',
        "Stage",
    ),
    _choice("model", "label_values(vllm:num_requests_running, model_name)", "Model of the engine"),
    _number("slo_ttft", "2", "SLO: TTFT (s)"),
    _number("slo_itl", "0.1", "SLO: ITL (s)"),
    _number("slo_tpot", "0.05", "SLO: TPOT (s)"),
    _number("slo_e2e", "30", "SLO: E2E (s)"),
)


def dashboard() -> dict[str, Any]:
    """The whole dashboard, as Grafana reads it."""
    return {
        "uid": "tokenswarm-soak",
        "id": None,
        "title": "tokenswarm: soak",
        "description": "A tokenswarm run beside the engine that it loads.",
        "tags": ["tokenswarm", "llm", "load-test"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": list(VARIABLES)},
        "annotations": {
            "list": [
                {
                    "name": "Runs start and end",
                    "datasource": DATASOURCE,
                    "enable": True,
                    "iconColor": "blue",
                    "expr": 'changes(tokenswarm_run_state{state="running"}[1m]) > 0',
                    "step": "30s",
                    "titleFormat": "{{instance}} starts or ends",
                }
            ]
        },
        "panels": list(_panels()),
    }


def text() -> str:
    """The dashboard's file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
