"""A run laid out for looking at: its requests on one clock, cut into intervals, with its stages.

Everything that the pictures of html_report share is worked out here, once. It knows nothing
about pictures. Times are seconds since the start of the plan.

The one subtle rule: figures come from the summary, pictures from the request log; of a huge log
only every k-th request was read (Requests.stride), so counts here are already multiplied by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exporters.charts import Shade
from tokenswarm.run_files import Requests, read_requests, read_timeline
from tokenswarm.slo import Mode, Objective, parse_one

Floats = NDArray[np.float64]
Masks = NDArray[np.bool_]

_STEPS = (0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_MOST_INTERVALS = 100
_WANTED_EACH = 20  # requests an interval, where the run is long enough for that


@dataclass(frozen=True, slots=True)
class View:
    """A run for looking at; requests is None when it kept no log, edges are the intervals'."""

    summary: dict[str, Any]
    requests: Requests | None
    timeline: list[dict[str, Any]]
    start: float
    edges: Floats
    shades: Sequence[Shade]

    @property
    def middles(self) -> list[float]:
        """The middle of each interval."""
        return [float(m) for m in (self.edges[:-1] + self.edges[1:]) / 2]

    @property
    def step(self) -> float:
        """Length of an interval in seconds."""
        return float(self.edges[1] - self.edges[0])

    def since_start(self, column: str) -> Floats:
        """A column of instants as seconds since the start of the plan."""
        assert self.requests is not None
        return self.requests[column] - self.start

    def counts(self, at: Floats) -> Floats:
        """How many instants lie in each interval (NaN lies in none)."""
        stride = self.requests.stride if self.requests else 1
        return np.histogram(at[~np.isnan(at)], self.edges)[0] * float(stride)

    def rates(self, at: Floats) -> list[float]:
        """The same a second."""
        return [float(v) for v in self.counts(at) / self.step]

    def by_interval(
        self, at: Floats, values: Floats, figures: Sequence[Callable[[Floats], float]]
    ) -> list[list[float | None]]:
        """Figures of the values in each interval; None where there are none."""
        known = ~np.isnan(at) & ~np.isnan(values)
        at, values = at[known], values[known]
        slots = np.searchsorted(self.edges, at, side="right") - 1
        order = np.argsort(slots, kind="stable")
        slots, values = slots[order], values[order]
        cuts = np.searchsorted(slots, np.arange(len(self.edges)))
        pieces = [values[a:b] for a, b in pairwise(cuts)]
        return [[f(piece) if len(piece) else None for piece in pieces] for f in figures]

    def timeline_by_interval(
        self, key: str, figures: Sequence[Callable[[Floats], float]], inner: str | None = None
    ) -> list[list[float | None]]:
        """The same for a figure of the timeline, or for one inside a group of figures."""
        at, values = [], []
        for row in self.timeline:
            value = row.get(key)
            if inner is not None:
                value = value.get(inner) if isinstance(value, dict) else None
            if value is not None and row.get("offset_s") is not None:
                at.append(float(row["offset_s"]) - float(row.get("seconds") or 0.0) / 2)
                values.append(float(value))
        return self.by_interval(np.array(at), np.array(values), figures)


def look(summary: dict[str, Any], requests: Path | None, timeline: Path | None) -> View:
    """Read what there is and lay it out."""
    rows = read_timeline(timeline)
    found = read_requests(requests) if requests is not None and requests.is_file() else None
    if found is not None and not len(found):
        found = None
    start = _start(found, rows)
    edges = _edges(found, rows, start)
    window_end = (summary.get("window") or {}).get("end")
    over = float(window_end) - start if window_end is not None else math.inf
    shades = _shades(summary, found, rows, float(edges[-1]), over)
    return View(summary, found, rows, start, edges, shades)


def slos(summary: dict[str, Any]) -> list[Objective]:
    """The objectives behind the checks of a summary, as far as they can be read."""
    mode: Mode = "open" if (summary.get("run") or {}).get("load") == "open" else "closed"
    found = []
    for check in (summary.get("slo") or {}).get("checks") or []:
        key, text = str(check.get("key")), str(check.get("text") or "")
        with suppress(ValueError):
            found.append(parse_one(key, text.removeprefix(key).strip(), mode))
    return found


def quantile(q: float) -> Callable[[Floats], float]:
    """The q-quantile of some values, as a function: that at rank ceil(q n), as in histogram.py."""
    return lambda values: float(np.quantile(values, q, method="inverted_cdf"))


def _start(requests: Requests | None, rows: list[dict[str, Any]]) -> float:
    """When the plan began, as Unix time."""
    if requests is not None:
        starts = requests["due"] - requests["due_offset_s"]
        if not np.isnan(starts).all():
            return float(np.nanmedian(starts))
        return float(np.nanmin(requests["due"]))
    if rows and rows[0].get("t") is not None:
        return float(rows[0]["t"]) - float(rows[0].get("offset_s") or 0.0)
    return 0.0


def _edges(requests: Requests | None, rows: list[dict[str, Any]], start: float) -> Floats:
    end, count = 1.0, 0
    if requests is not None:
        ends = np.concatenate([requests[n] for n in ("end", "last_token", "sent", "due")])
        end, count = float(np.nanmax(ends)) - start, len(requests)
    elif rows:
        end = float(rows[-1].get("offset_s") or len(rows))
        count = _WANTED_EACH * len(rows)
    end = max(end, 1.0)
    intervals = min(_MOST_INTERVALS, max(12, count / _WANTED_EACH))
    step = next((s for s in _STEPS if end / s <= intervals), _STEPS[-1])
    return np.array([k * step for k in range(math.ceil(end / step) + 1)], dtype=np.float64)


def _shades(
    summary: dict[str, Any], requests: Requests | None, rows: list[dict[str, Any]], end: float,
    over: float,
) -> list[Shade]:  # fmt: skip
    """Stages where requests, or intervals, say they were; each lasts until the next begins.

    over: when the last stage was; what comes after it until the end is the drain.
    """
    warm = {str(s.get("name")): bool(s.get("warmup")) for s in _stages(summary)}
    begins: list[tuple[float, str]] = []
    if requests is not None:
        names, codes = requests.texts["stage"]
        offsets = requests["due_offset_s"]
        for code, name in enumerate(names):
            mine = offsets[codes == code]
            if len(mine) and not np.isnan(mine).all():
                begins.append((float(np.nanmin(mine)), name))
                is_warm = bool(requests.warmup[codes == code].all())
                warm.setdefault(name, is_warm)
    else:
        seen: set[str] = set()
        for row in rows:
            name = str(row.get("stage") or "")
            if name and name not in seen:
                seen.add(name)
                begins.append((float(row.get("offset_s") or 0.0), name))
    begins.sort()
    if not begins:
        return []
    over = min(max(over, begins[-1][0]), end)
    ends = [*[b for b, _ in begins[1:]], over]
    found = [Shade(b, e, n, warm.get(n, False)) for (b, n), e in zip(begins, ends, strict=True)]
    return [*found, Shade(over, end, "drain", True)] if over < end else found


def _stages(summary: dict[str, Any]) -> list[dict[str, Any]]:
    stages = summary.get("stages") or []
    if isinstance(stages, dict):
        return [{"name": name, **figures} for name, figures in stages.items()]
    return list(stages)
