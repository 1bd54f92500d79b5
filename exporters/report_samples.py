"""The numbers behind the pictures of a run's report: samples, curves, bins, values over time.

View in, arrays out; nothing here draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from exporters.report_view import Floats, View, quantile
from exporters.scales import log_edges
from tokenswarm.run_files import Requests

_SUMMARY_QUANTILES = (("p1", 0.01), ("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("p95", 0.95),
                      ("p99", 0.99), ("p999", 0.999))  # fmt: skip
_DRAWN = 1500  # dots of a scatter plot: more are a blot and make the page heavy


def floats(values: Any) -> list[float]:
    """Plain numbers, for JSON."""
    return [float(v) for v in values]


def stride(view: View) -> int:
    """How many requests one that was read stands for."""
    return view.requests.stride if view.requests else 1


def measured(view: View, name: str) -> Floats:
    """All values of a metric over measured requests."""
    r = view.requests
    if r is None:
        return np.array([])
    if name == "itl_s":
        return pooled(r)
    values = r[name][r.measured]
    return values[~np.isnan(values)]


def pooled(r: Requests) -> Floats:
    """ITL samples of measured requests, where the run recorded them."""
    if r.itl is None or r.itl_ends is None:
        return np.array([])
    sizes = np.diff(r.itl_ends, prepend=0)
    return r.itl[np.repeat(r.measured, sizes)]


def curve(view: View, name: str) -> tuple[list[float], list[float]]:
    """Percentile curve: from the samples, else from the summary's percentiles."""
    values = measured(view, name)
    if len(values):
        top = min(0.999, 1 - 1 / len(values))  # beyond that there is no such percentile
        q = 1 - np.logspace(0, np.log10(1 - top), 120)
        return floats(q), [quantile(share)(values) for share in q]
    known = [(q, v) for k, q in _SUMMARY_QUANTILES if (v := figure_of(view, name, k)) is not None]
    return [q for q, _ in known], [v for _, v in known]


def figure_of(view: View, name: str, key: str) -> float | None:
    """A figure of the summary."""
    value = ((view.summary.get("metrics") or {}).get(name) or {}).get(key)
    return None if value is None else float(value)


def bins(values: Floats) -> tuple[str, list[float]]:
    """Kind of axis and edges of 48 bins over all values but those beyond p99.9."""
    low, high = float(values.min()), float(np.quantile(values, 0.999))
    positive = values[values > 0]
    if len(positive) and high / float(positive.min()) > 20:
        low = float(np.quantile(positive, 0.001))
        return "log", log_edges(low, max(high, low * 1.0001), 48)
    if high - low < 0.1 * high or high == 0:  # all but equal: a spike, not an enlarged noise
        middle = (low + high) / 2
        low, high = 0.9 * middle, 1.1 * middle or 1.0
    return "linear", floats(np.linspace(low, high, 49))


def quantiles_over_time(view: View, name: str) -> tuple[list[float], list[list[float | None]]]:
    """p50, p90, p99 in each interval: from the requests, for ITL from the timeline."""
    if view.requests is not None and name != "itl_s":
        values = np.where(view.requests.ok, view.requests[name], np.nan)
        rows = view.by_interval(
            view.since_start("due"), values, [quantile(0.5), quantile(0.9), quantile(0.99)]
        )
        return view.middles, rows
    rows = []
    for key, choose in (("p50", np.median), ("p90", np.median), ("p99", np.max)):
        rows += view.timeline_by_interval(name, [lambda v, c=choose: float(c(v))], key)  # type: ignore[misc]
    return view.middles, rows


def highest(values: Floats) -> float:
    """The largest value of an interval."""
    return float(values.max())


def total(values: Floats) -> float:
    """The sum over an interval."""
    return float(values.sum())


def tokens_until(view: View) -> Floats:
    """Output tokens that had come by each edge of the intervals."""
    assert view.requests is not None
    first, last = view.since_start("first_token"), view.since_start("last_token")
    tokens = view.requests["output_tokens"]
    known = ~np.isnan(first) & ~np.isnan(last) & ~np.isnan(tokens)
    first, last, tokens = first[known], last[known], tokens[known]
    took = np.maximum(last - first, 1e-9)
    until = [float((tokens * np.clip((e - first) / took, 0, 1)).sum()) for e in view.edges]
    return np.array(until) * stride(view)


def ended(view: View) -> Floats:
    """When each request ended, however it did; when it was due where it was never sent."""
    assert view.requests is not None
    at = view.since_start("end")
    for column in ("last_token", "sent", "due"):
        at = np.where(np.isnan(at), view.since_start(column), at)
    return at


def thin(values: Floats) -> NDArray[np.int64]:
    """Which requests to draw: some evenly chosen, and the slowest."""
    if len(values) <= _DRAWN:
        return np.arange(len(values))
    some = np.linspace(0, len(values) - 1, _DRAWN - 20).astype(np.int64)
    slowest = np.argsort(values)[-20:]
    return np.unique(np.concatenate([some, slowest]))


def medians(x: Floats, y: Floats) -> tuple[list[float], list[float]]:
    """Median x and median y of 24 groups of equal size, in the order of x."""
    edges = np.unique(np.quantile(x, np.linspace(0, 1, 25)))
    slots = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, max(0, len(edges) - 2))
    found = [(x[slots == k], y[slots == k]) for k in range(len(edges) - 1)]
    found = [(a, b) for a, b in found if len(a) >= 3]
    return [float(np.median(a)) for a, _ in found], [float(np.median(b)) for _, b in found]
