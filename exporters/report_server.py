"""The server's own view in a run's report: whatever engine and GPU metrics were scraped.

What a server exports differs by engine and version, so this draws what it finds: series as
lines, single values as a table. It knows no engine by name.

The one subtle rule: `server` is outside text; a value that is neither a number, a series nor a
group of them is shown as text, never trusted to be more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from exporters.charts import Chart, Line, figure
from exporters.quantities import redact, show
from exporters.report_view import View
from exporters.scales import Axis

_MOST_SERIES = 24
_MOST_POINTS = 300


def pictures(view: View) -> list[Markup]:
    """A picture a series and one table for the rest; nothing when nothing was scraped."""
    server = {**_now_over_time(view), **_rest(view.summary.get("server"))}
    drawn: list[Markup] = []
    rows: list[tuple[str, str]] = []
    for name, value in _flat(server, ()):
        points = _series(value)
        if points and len(drawn) < _MOST_SERIES:
            drawn.append(_picture(name, points, view, len(drawn)))
        elif not points:
            rows.append((name, _scalar(name, value)))
    if rows:
        cells = Markup("").join(
            Markup("<tr><th scope=row>{}</th><td>{}</td></tr>").format(*row) for row in rows[:100]
        )
        table = Markup("<div class='scroll wide'><table class=facts>{}</table></div>")
        drawn.append(table.format(cells))
    return drawn


def _now_over_time(view: View) -> dict[str, Any]:
    """Series of what the timeline saw of the server in each interval."""
    found: dict[str, list[list[float]]] = {}
    for row in view.timeline:
        if isinstance(row.get("server"), dict) and row.get("offset_s") is not None:
            for name, value in _flat(row["server"], ()):
                if isinstance(value, int | float) and not isinstance(value, bool):
                    found.setdefault(name, []).append([row["offset_s"], value])
    return {name: points for name, points in found.items() if len(points) > 1}


def _rest(server: Any) -> dict[str, Any]:
    """What the summary has of the server, but for the last state, which the timeline has."""
    return {k: v for k, v in server.items() if k != "now"} if isinstance(server, dict) else {}


def _flat(value: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """(dotted name, leaf) of nested groups; a list of pairs or of numbers is a leaf."""
    for key, inner in value.items():
        here = (*path, str(key))
        if isinstance(inner, dict) and not _series(inner):
            yield from _flat(inner, here)
        elif inner is not None:
            yield ".".join(here), inner


def _series(value: Any) -> list[tuple[float, float]]:
    """Points of a series: [[t, v], ...] or {"t": [...], "v": [...]}; empty for anything else."""
    if isinstance(value, dict):
        times, values = value.get("t"), value.get("v") or value.get("values")
        if not (isinstance(times, list) and isinstance(values, list)):
            return []
        value = [list(p) for p in zip(times, values, strict=False)]
    if not isinstance(value, list) or len(value) < 2:
        return []
    pairs = [p for p in value if isinstance(p, list | tuple) and len(p) == 2]
    return [
        (float(t), float(v)) for t, v in pairs
        if isinstance(t, int | float) and isinstance(v, int | float)
    ]  # fmt: skip


def _picture(name: str, points: list[tuple[float, float]], view: View, number: int) -> Markup:
    every = -(-len(points) // _MOST_POINTS)
    shift = view.start if points[0][0] > 1e8 else 0.0  # Unix times, else since the start
    x = [t - shift for t, _ in points[::every]]
    y = [v for _, v in points[::every]]
    ident = "server-" + re.sub(r"[^a-zA-Z0-9]+", "-", name).strip("-") + f"-{number}"
    axis = Axis("", _unit(name))
    return figure(Chart(ident, name, Axis("time since start", "time", low=0), axis,
        [Line(name, x, y, number % 8)], view.shades))  # fmt: skip


def _unit(name: str) -> str:
    """The unit of a figure from its name, or from the group it is in: latencies.ttft_s.p99."""
    *groups, last = name.split(".")
    if last in ("count", "looks", "looks_failed"):
        return "count"
    if last.endswith(("_ratio", "_share", "_perc")):
        return "share"
    if last.endswith("_per_s"):
        return "1/s"
    timed = last == "seconds" or any(part.endswith(("_s", "_seconds")) for part in (last, *groups))
    return "s" if timed else ""


def _scalar(name: str, value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(_scalar(name, v) for v in value[:20])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return redact(str(value))[:300]
    return show(float(value), _unit(name))
