"""The server's own view in a run's report: whatever engine and GPU metrics were scraped.

What a server exports differs by engine and version, so this draws what it finds: series as
lines, groups of groups (latencies, tokens) as a table each, single values as one more. It knows
no engine by name; _WORDS are those of server_side.py, and an unknown name is shown as it is.

The one subtle rule: `server` is outside text; a value that is neither a number, a series nor a
group of them is shown as text, never trusted to be more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup

from exporters.charts import Chart, Line, figure
from exporters.quantities import NONE, redact, show
from exporters.report_view import View
from exporters.scales import Axis

_MOST_SERIES = 24
_MOST_POINTS = 300
_MOST_ROWS = 100
Path = tuple[str, ...]

_WORDS = {
    "running": "requests running", "waiting": "requests waiting", "kv_use": "KV cache in use",
    "prompt_tokens_per_s": "prompt tokens per second",
    "output_tokens_per_s": "output tokens per second",
    "prefix_cache_hit_ratio": "share of prompt tokens found in the prefix cache",
    "prefix_cache_hits": "prompt tokens found in the prefix cache",
    "prefix_cache_queries": "prompt tokens looked for in the prefix cache",
    "ttft_mean_s": "mean TTFT by the server's clock",
    "itl_mean_s": "mean ITL by the server's clock",
    "ttft_s": "TTFT", "itl_s": "ITL", "e2e_s": "E2E", "queue_s": "time in the queue",
    "ttft": "mean TTFT", "client_mean_s": "seen by us", "server_mean_s": "by the server's clock",
    "outside_engine_s": "difference: network and HTTP server",
    "counts": "counted by the server", "latencies": "latencies by the server's clock",
    "tokens": "tokens of all requests, counted on both sides",
    "gauges": "state of the server when it was looked at",
    "urls": "read from", "seconds": "watched for", "looks": "times looked at",
    "looks_failed": "times without an answer", "gpus": "GPU", "gpu_use": "GPU use",
    "gpu_power_w": "GPU power", "gpu_memory_bytes": "GPU memory", "gpu_energy_j": "GPU energy",
    "gpu_temperature_c": "GPU temperature", "power_w": "power", "memory_bytes": "memory",
    "memory_total_bytes": "memory in all", "temperature_c": "temperature", "energy_j": "energy",
    "client": "counted by us", "server": "counted by the server",
}  # fmt: skip
_AXES = {
    "running": "requests", "waiting": "requests", "preemptions": "since the look before",
    "prompt_tokens_per_s": "tokens/s", "output_tokens_per_s": "tokens/s",
}  # fmt: skip
_UNITS = (
    (("_ratio", "_share", "_perc", "_use"), "share"), (("tokens_per_s",), ""),
    (("_per_s",), "1/s"), (("power_w",), "W"), (("energy_j",), "J"), (("_bytes",), "bytes"),
    (("temperature_c",), "°C"), (("_s", "_seconds"), "s"),
)  # fmt: skip
_NOTES = {
    "latencies": "The means are exact. The percentiles differ from ours above: they are read off "
    "the buckets of the server's histogram, which are coarse, and its clock starts and stops "
    "inside the server. The warm-up is counted here.",
}


def pictures(view: View) -> list[Markup]:
    """A picture a series, tables for the rest; nothing when nothing was scraped."""
    drawn: list[Markup] = []
    tables: list[Markup] = []
    rows: list[tuple[str, str]] = []
    leaves: list[tuple[Path, Any]] = [
        ((name,), points) for name, points in _now_over_time(view).items()
    ]
    for key, value in _rest(view.summary.get("server")).items():
        if _is_table(value):
            tables.append(_table(key, value))
        else:
            leaves += _flat({key: value}, ())
    for path, value in leaves:
        points = _series(value)
        if points and len(drawn) < _MOST_SERIES:
            drawn.append(_picture(path, points, view, len(drawn)))
        elif not points:
            rows.append((_title(path), _scalar(path, value)))
    if rows:
        cells = Markup("").join(
            Markup("<tr><th scope=row>{}</th><td>{}</td></tr>").format(*row)
            for row in rows[:_MOST_ROWS]
        )
        table = Markup("<div class='scroll wide'><table class=facts>{}</table></div>")
        tables.append(table.format(cells))
    return drawn + tables


def _is_table(value: Any) -> bool:
    """True for a group of groups of single values."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(
            isinstance(row, dict)
            and row
            and not any(isinstance(v, dict | list) for v in row.values())
            for row in value.values()
        )
    )


def _table(name: str, group: Mapping[str, Mapping[str, Any]]) -> Markup:
    """A line a member, a column a figure."""
    columns = list(dict.fromkeys(str(key) for row in group.values() for key in row))
    head = Markup("").join(Markup("<th class=n>{}</th>").format(_word(c)) for c in columns)
    lines = []
    for key, row in list(group.items())[:_MOST_ROWS]:
        texts = {str(c): _scalar((name, str(key), str(c)), v) for c, v in row.items()}
        cells = Markup("").join(
            Markup("<td class=n>{}</td>").format(texts.get(c, NONE)) for c in columns
        )
        lines.append(Markup("<tr><th scope=row>{}</th>{}</tr>").format(_title((str(key),)), cells))
    note = Markup("<p class=note>{}</p>").format(_NOTES[name]) if name in _NOTES else ""
    return Markup(
        "<div class=wide><div class=scroll><table><thead><tr><th>{}</th>{}</tr></thead>"
        "<tbody>{}</tbody></table></div>{}</div>"
    ).format(_title((name,)), head, Markup("").join(lines), note)


def _word(name: str) -> str:
    return _WORDS.get(name, name.replace("_", " "))


def _title(path: Path) -> str:
    """A name in words, its group before it: Counted by the server: prompt tokens."""
    text = ": ".join(_word(part) for part in path)
    return text[:1].upper() + text[1:]


def _now_over_time(view: View) -> dict[str, Any]:
    """Series of what the timeline saw of the server in each interval."""
    found: dict[str, list[list[float]]] = {}
    for row in view.timeline:
        if isinstance(row.get("server"), dict) and row.get("offset_s") is not None:
            for name, value in _flat(row["server"], ()):
                if isinstance(value, int | float) and not isinstance(value, bool):
                    found.setdefault(".".join(name), []).append([row["offset_s"], value])
    return {name: points for name, points in found.items() if len(points) > 1}


def _rest(server: Any) -> dict[str, Any]:
    """What the summary has of the server, but for the last state, which the timeline has."""
    return {k: v for k, v in server.items() if k != "now"} if isinstance(server, dict) else {}


def _flat(value: dict[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    """(path, leaf) of nested groups; a list of pairs or of numbers is a leaf."""
    for key, inner in value.items():
        here = (*path, str(key))
        if isinstance(inner, dict) and not _series(inner):
            yield from _flat(inner, here)
        elif inner is not None:
            yield here, inner


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


def _picture(path: Path, points: list[tuple[float, float]], view: View, number: int) -> Markup:
    every = -(-len(points) // _MOST_POINTS)
    shift = view.start if points[0][0] > 1e8 else 0.0  # Unix times, else since the start
    x = [t - shift for t, _ in points[::every]]
    y = [v for _, v in points[::every]]
    name, title = ".".join(path), _title(path)
    ident = "server-" + re.sub(r"[^a-zA-Z0-9]+", "-", name).strip("-") + f"-{number}"
    axis = Axis(_AXES.get(path[-1], ""), _unit(path))
    return figure(Chart(ident, title, Axis("time since start", "time", low=0), axis,
        [Line(title, x, y, number % 8)], view.shades))  # fmt: skip


def _unit(path: Path) -> str:
    """The unit of a figure from its name, or from the group it is in: latencies, ttft_s, p99."""
    if path[-1] in ("count", "looks", "looks_failed"):
        return "count"
    if path[-1] == "seconds":
        return "s"
    for part in reversed(path):
        for ends, unit in _UNITS:
            if f"_{part}".endswith(ends):
                return unit
    return ""


def _scalar(path: Path, value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, list):
        return "; ".join(_scalar(path, v) for v in value[:20])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return redact(str(value))[:300]
    return show(float(value), _unit(path))
