"""The pictures of a run's report, one function each: View in, figure out, '' where there is none.

PICTURES is the table: a new picture is one function and one row of a section. It knows nothing
about the page around them. numpy does the counting, so this module is imported only when a
report is built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from markupsafe import Markup

from exporters import report_samples as samples
from exporters import roofline
from exporters.charts import Band, Bars, Chart, Line, Mark, Points, Rule, figure
from exporters.quantities import number, seconds, short_name, whole
from exporters.report_samples import floats
from exporters.report_view import Floats, View, quantile, slos
from exporters.scales import Axis, spread
from tokenswarm import economics

NAMES = {
    "ttft_s": "TTFT",
    "ttft_due_s": "TTFT from due",
    "itl_s": "ITL",
    "tpot_s": "TPOT",
    "e2e_s": "E2E",
    "e2e_due_s": "E2E from due",
    "send_delay_s": "Send delay",
    "longest_gap_s": "Longest gap",
}
_COLORS = {"ttft_s": 0, "ttft_due_s": 4, "itl_s": 1, "tpot_s": 2, "e2e_s": 3, "e2e_due_s": 6,
           "send_delay_s": 5, "longest_gap_s": 4}  # fmt: skip
_TIME = Axis("time since start", "time", low=0)
_COLORS_THERE_ARE = 8


def percentiles(view: View) -> Markup | str:
    """Latency against percentile, both axes so that the tail can be read."""
    marks = []
    for name in ("e2e_s", "ttft_s", *_if_later(view), "itl_s", "tpot_s"):
        q, values = samples.curve(view, name)
        if values:
            marks.append(Line(NAMES[name], q, values, _COLORS[name]))
    if not marks:
        return ""
    return figure(Chart("percentiles", "Latency by percentile", Axis("percentile", "", "percentile",
        low=0, high=0.999), Axis("latency", "s", "log"), marks,
        note="Requests that ended ok in measured stages."))  # fmt: skip


def distribution(name: str) -> Callable[[View], Markup | str]:
    """A histogram of one metric, on a log axis where values differ a lot."""

    def draw(view: View) -> Markup | str:
        values = samples.measured(view, name)
        if not len(values):
            return ""
        kind, edges = samples.bins(values)
        heights = np.histogram(values, edges)[0] * samples.stride(view)
        count = "token gaps" if name == "itl_s" else "requests"
        rules = [
            Rule(at, key, True) for key in ("p50", "p99")
            if (at := samples.figure_of(view, name, key)) is not None
            and edges[0] <= at <= edges[-1]
        ]  # fmt: skip
        axis = Axis(NAMES[name], "s", kind, low=None if kind == "log" else edges[0])
        return figure(Chart(f"histogram-{name}", f"{NAMES[name]} distribution", axis,
            Axis(count, "count"), [Bars(count, edges, floats(heights), _COLORS[name])],
            rules=rules, note=_beyond(values, edges)))  # fmt: skip

    return draw


def over_time(name: str) -> Callable[[View], Markup | str]:
    """Median and tail of one metric in each interval."""

    def draw(view: View) -> Markup | str:
        x, rows = samples.quantiles_over_time(view, name)
        if not any(v is not None for v in rows[0]):
            return ""
        p50, p90, p99 = rows
        color = _COLORS[name]
        marks: list[Mark] = [
            Band("", x, p50, p99, color),
            Band("", x, p50, p90, color),
            Line("p50", x, p50, color),
            Line("p90", x, p90, color, stroke="dotted"),
            Line("p99", x, p99, color, stroke="dashed"),
        ]
        rules, note = _objectives(view, name, max(v for v in p99 if v is not None))
        return figure(Chart(f"time-{name}", f"{NAMES[name]} over time", _TIME,
            Axis(NAMES[name], "s", _kind(p50 + p99)), marks, view.shades, rules, note))  # fmt: skip

    return draw


def throughput(view: View) -> Markup | str:
    """Tokens a second, when they came."""
    if view.requests is None:
        return _timeline_lines(view, "throughput", "Output tokens per second",
            Axis("tokens/s", ""), {"output tokens/s": ("output_tokens_per_s", 2)})  # fmt: skip
    tokens = np.diff(samples.tokens_until(view)) / view.step
    return figure(Chart("throughput", "Output tokens per second", _TIME, Axis("tokens/s", ""),
        [Line("output tokens/s", view.middles, floats(tokens), 2)], view.shades,
        note="A request's tokens are spread evenly from its first to its last."))  # fmt: skip


def requests_per_second(view: View) -> Markup | str:
    """Requests that ended well, a second."""
    if view.requests is None:
        return _timeline_lines(view, "completions", "Completed requests per second",
            Axis("requests/s", "1/s"), {"ok": ("requests_per_s", 2)})  # fmt: skip
    r = view.requests
    done = view.rates(np.where(r.ok, view.since_start("last_token"), np.nan))
    failed = view.rates(np.where(r.ok, np.nan, samples.ended(view)))
    marks = [Line("ok", view.middles, done, 2)]
    if any(failed):
        marks.append(Line("not ok", view.middles, failed, 3))
    return figure(Chart("completions", "Completed requests per second", _TIME,
        Axis("requests/s", "1/s"), marks, view.shades))  # fmt: skip


def in_flight(view: View) -> Markup | str:
    """Requests sent and not ended, at the edges of the intervals."""
    if view.requests is None:
        return _timeline_lines(view, "in-flight", "Requests in flight", Axis("requests", ""),
            {"in flight": ("in_flight", 0)})  # fmt: skip
    sent, ended = np.sort(view.since_start("sent")), np.sort(samples.ended(view))
    sent, ended = sent[~np.isnan(sent)], ended[~np.isnan(ended)]
    begun, over = (np.searchsorted(at, view.edges, "right") for at in (sent, ended))
    flying = np.maximum(begun - over, 0) * samples.stride(view)
    return figure(Chart("in-flight", "Requests in flight", _TIME, Axis("requests", ""),
        [Line("in flight", floats(view.edges), floats(flying), 0)], view.shades))  # fmt: skip


def rates(view: View) -> Markup | str:
    """What the plan wanted and what was sent, a second."""
    if view.requests is None:
        return _timeline_lines(view, "rates", "Planned and sent requests per second",
            Axis("requests/s", "1/s"), {"planned (due)": ("planned_rate", 7),
            "sent": ("achieved_rate", 0)})  # fmt: skip
    due, sent = view.rates(view.since_start("due")), view.rates(view.since_start("sent"))
    return figure(Chart("rates", "Planned and sent requests per second", _TIME,
        Axis("requests/s", "1/s"), [Line("planned (due)", view.middles, due, 7),
        Line("sent", view.middles, sent, 0, stroke="dashed")], view.shades))  # fmt: skip


def send_delay(view: View) -> Markup | str:
    """How late requests were sent: the generator's own lateness."""
    if view.requests is None:
        return over_time("send_delay_s")(view)
    p50, p99, top = view.by_interval(
        view.since_start("due"), view.requests["send_delay_s"],
        [quantile(0.5), quantile(0.99), samples.highest],
    )  # fmt: skip
    return figure(Chart("send-delay", "Send delay over time", _TIME,
        Axis("sent - due", "s", _kind(p50 + top)), [
            Line("max", view.middles, top, 3, stroke="wide"), Line("p50", view.middles, p50, 5),
            Line("p99", view.middles, p99, 4)], view.shades,
        note="Where an interval has fewer than 100 requests, its p99 is its max."))  # fmt: skip


def lengths(name: str, title: str, color: int) -> Callable[[View], Markup | str]:
    """How long prompts, or answers, were."""

    def draw(view: View) -> Markup | str:
        if view.requests is None:
            return ""
        values = view.requests[name][view.requests.measured]
        values = values[~np.isnan(values)]
        if not len(values):
            return ""
        low, high = int(values.min()), int(values.max())
        width = max(1, -(-(high - low + 1) // 40))
        edges = [low - 0.5 + width * k for k in range((high - low) // width + 2)]
        if low == high:  # one bar in the middle rather than a wall
            edges = [low - 1.5, low - 0.5, low + 0.5, low + 1.5]
        heights = np.histogram(values, edges)[0] * samples.stride(view)
        note = f"{whole(low)} to {whole(high)} tokens, mean {number(float(values.mean()))}."
        if low == high:
            note = f"All have {whole(low)} tokens."
        return figure(Chart(f"lengths-{name}", title, Axis("tokens", "", low=edges[0],
            high=edges[-1]), Axis("requests", "count"),
            [Bars("requests", edges, floats(heights), color)], note=note))  # fmt: skip

    return draw


def against(length: str, latency: str, title: str) -> Callable[[View], Markup | str]:
    """Latency against a length: dots, and the median for each stretch of lengths."""

    def draw(view: View) -> Markup | str:
        if view.requests is None:
            return ""
        r = view.requests
        known = r.measured & ~np.isnan(r[length]) & ~np.isnan(r[latency])
        x, y = r[length][known], r[latency][known]
        if len(x) < 2 or x.min() == x.max():
            return ""  # one length only: there is nothing to see
        kind = _kind(floats(np.quantile(y, [0.01, 0.999])))
        chosen = samples.thin(y)
        middles, medians = samples.medians(x, y)
        note = "Line: median."
        if len(chosen) < len(x):
            drawn = f"{whole(len(chosen))} of {whole(len(x))}"
            note += f" {drawn} requests drawn, the slowest included."
        return figure(Chart(f"against-{length}-{latency}", title,
            Axis("tokens", "", low=float(x.min()), high=float(x.max())),
            Axis(NAMES[latency], "s", kind),
            [Points("request", floats(x[chosen]), floats(y[chosen]), _COLORS[latency]),
             Line("median", middles, medians, 7)], note=note))  # fmt: skip

    return draw


def errors(view: View) -> Markup | str:
    """Requests that did not end well, by outcome, when they ended."""
    counts = _failures(view)
    base = np.zeros(len(view.edges) - 1)
    marks = []
    for color, name in zip((3, 1, 4, 6, 5, 0, 2, 7), counts, strict=False):
        label = f"{name} ({whole(counts[name].sum())})"
        marks.append(
            Bars(
                label,
                floats(view.edges),
                floats(counts[name]),
                color,
                floats(base),
            )
        )
        base = base + counts[name]
    if not marks:
        return ""
    note = f"In each {seconds(view.step)}, when they ended."
    if len(counts) > len(marks):
        note += f" {len(counts) - len(marks)} more outcomes are not drawn."
    return figure(Chart("errors", "Requests not ok, by outcome", _TIME, Axis("requests", "count"),
        marks, view.shades, note=note))  # fmt: skip


def _failures(view: View) -> dict[str, Floats]:
    """Requests in each interval for each outcome but ok, the most frequent outcome first."""
    found: dict[str, Floats] = {}
    if view.requests is not None:
        at = samples.ended(view)
        for name in view.requests.texts["outcome"][0]:
            if name != "ok":
                mine = view.requests.is_text("outcome", name)
                found[name] = view.counts(np.where(mine, at, np.nan))
    else:
        names = {n for row in view.timeline for n in row.get("failed_by_outcome") or {}}
        for name in names:
            (sums,) = view.timeline_by_interval("failed_by_outcome", [samples.total], name)
            found[name] = np.array([v or 0.0 for v in sums])
    return dict(sorted(found.items(), key=lambda item: -item[1].sum()))


def stalls_over_time(view: View) -> Markup | str:
    """The longest silence in the middle of an answer, for each interval."""
    if view.requests is None:
        return ""
    gaps = np.where(view.requests.ok, view.requests["longest_gap_s"], np.nan)
    p50, top = view.by_interval(view.since_start("due"), gaps, [quantile(0.5), samples.highest])
    if not any(v is not None for v in top):
        return ""
    return figure(Chart("stalls", "Longest gap in an answer, over time", _TIME,
        Axis("longest gap", "s", _kind(p50 + top)), [Line("median request", view.middles, p50, 4),
        Line("worst request", view.middles, top, 3)], view.shades))  # fmt: skip


def roof(view: View) -> Markup | str:
    """The run between what memory and arithmetic of its hardware allow."""
    inputs = (view.summary.get("utilization") or {}).get("inputs") or {}
    rate = (view.summary.get("throughput") or {}).get("output_tokens_per_s")
    found = economics.roof_of(inputs)
    if found is None or not rate or not inputs.get("batch"):
        return ""
    point = inputs["batch"], rate / found[0].replicas
    return roofline.picture("roofline", "Roofline of decoding", *found, [point])


def worker_cpu(view: View) -> Markup | str:
    """CPU of each worker over time."""
    return _workers_over_time(view, "cpu", "worker-cpu", "CPU of each worker", "share")


def worker_lag(view: View) -> Markup | str:
    """How late each worker's event loop ran, over time."""
    return _workers_over_time(
        view, "loop_lag_p99_s", "worker-lag", "Loop lag p99 of each worker", "s"
    )


PICTURES: dict[str, tuple[Callable[[View], Markup | str], ...]] = {
    "Latency": (
        percentiles, over_time("ttft_s"), distribution("ttft_s"), over_time("itl_s"),
        distribution("itl_s"), over_time("tpot_s"), distribution("tpot_s"), over_time("e2e_s"),
        distribution("e2e_s"),
    ),
    "Load": (
        throughput, requests_per_second, in_flight, rates, send_delay,
        distribution("send_delay_s"),
    ),
    "Errors and stalls": (errors, stalls_over_time, distribution("longest_gap_s")),
    "Lengths": (
        lengths("prompt_tokens", "Prompt lengths", 0),
        lengths("output_tokens", "Answer lengths", 2),
        against("prompt_tokens", "ttft_s", "TTFT against prompt length"),
        against("output_tokens", "e2e_s", "E2E against answer length"),
    ),
    "Hardware": (roof,),
    "Load generator": (worker_cpu, worker_lag),
}  # fmt: skip


def _kind(values: Sequence[float | None]) -> str:
    """A log axis where values differ so much that a linear one would hide most of them."""
    return "log" if spread([v for v in values if v]) > 15 else "linear"


def _if_later(view: View) -> tuple[str, ...]:
    """TTFT from due where it differs from TTFT from sent: late requests, open loop."""
    a, b = (samples.figure_of(view, n, "p99") for n in ("ttft_s", "ttft_due_s"))
    return ("ttft_due_s",) if a and b and b > 1.05 * a else ()


def _beyond(values: Floats, edges: list[float]) -> str:
    above = int((values > edges[-1]).sum())
    below = int((values < edges[0]).sum())
    notes = [f"{whole(above)} above, up to {seconds(float(values.max()))}"] if above else []
    zeros = int((values == 0).sum())
    notes += [f"{whole(below)} below"] if below else []
    notes += [f"{whole(zeros)} of them 0"] if zeros and below else []
    return f"Not shown: {'; '.join(notes)}." if notes else ""


def _objectives(view: View, name: str, highest: float) -> tuple[list[Rule], str]:
    """SLOs on this metric as lines across; one far above everything is said, not drawn."""
    rules, notes = [], []
    for objective in slos(view.summary):
        if objective.metric == name and not objective.per_request:
            if objective.bound <= 2.5 * highest:
                rules.append(Rule(objective.bound, objective.text))
            else:
                notes.append(objective.text)
    note = f"Out of the picture: {'; '.join(notes)}." if notes else ""
    return rules[:3], note


def _timeline_lines(
    view: View, ident: str, title: str, axis: Axis, wanted: dict[str, tuple[str, int]]
) -> Markup | str:
    """Figures of the timeline as lines, for a run that kept no request log."""
    marks = []
    for label, (key, color) in wanted.items():
        (means,) = view.timeline_by_interval(key, [lambda v: float(v.mean())])
        if any(m is not None for m in means):
            marks.append(Line(label, view.middles, means, color))
    return figure(Chart(ident, title, _TIME, axis, marks, view.shades)) if marks else ""


def _workers_over_time(view: View, key: str, ident: str, title: str, unit: str) -> Markup | str:
    at: dict[str, list[float]] = {}
    values: dict[str, list[float]] = {}
    for row in view.timeline:
        for worker in row.get("workers") or []:
            if worker.get(key) is not None and row.get("offset_s") is not None:
                at.setdefault(str(worker["id"]), []).append(row["offset_s"])
                values.setdefault(str(worker["id"]), []).append(worker[key])
    marks = []
    for color, name in enumerate(sorted(at)[:_COLORS_THERE_ARE]):
        figures = view.by_interval(np.array(at[name]), np.array(values[name]), [samples.highest])
        marks.append(Line(short_name(name), view.middles, figures[0], color))
    if not marks:
        return ""
    note = "The highest value in each interval."
    if len(at) > len(marks):
        note += f" {len(marks)} of {len(at)} workers drawn."
    return figure(Chart(ident, title, _TIME, Axis("", unit), marks, view.shades, note=note))
