"""A run's figures: counts and histograms turned into the numbers that people and SLOs read.

It knows a Run and nothing of files, of SLO syntax or of validity. `of(run)` covers what counts,
the measured stages; what a stage did stands beside it in the same form. Seconds, tokens and
rates a second here; integers and nanoseconds end at this edge.

The one subtle rule: a figure that was not measured is None, never 0. A percentile q needs at
least one value beyond it, n(1 - q) >= 1, and is weak while there are fewer than ten.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tokenswarm.histogram import Histogram
from tokenswarm.measure import METRICS, NS
from tokenswarm.records import Outcome
from tokenswarm.run import Run
from tokenswarm.slo import Objective
from tokenswarm.snapshot import Snapshot, StageStats
from tokenswarm.snapshot_series import Series

# In thousandths: 10 * (1 - 0.9) is 0.9999999999999998, and n(1 - q) < 1 must be exact.
PERMILLE = {"p1": 10, "p10": 100, "p50": 500, "p90": 900, "p95": 950, "p99": 990, "p999": 999}
_WEAK_BELOW = 10
RATES = (
    "requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "output_tokens_per_s_per_gpu",
    "output_chars_per_s", "prompt_tokens_per_s",
)  # fmt: skip


def beyond_permille(n: int, name: str) -> int:
    """A thousand times the number of values expected beyond percentile `name` of n values."""
    return n * (1000 - PERMILLE[name])


def is_weak(n: int, name: str) -> bool:
    """True for a percentile that has a value, but fewer than ten values beyond it."""
    return 1000 <= beyond_permille(n, name) < 1000 * _WEAK_BELOW


def distribution(histogram: Histogram | None, scale: int) -> dict[str, Any]:
    """count, mean, min, max and percentiles of a histogram, in units of `scale` inside ones."""
    h = histogram or Histogram()
    if not h.n or h.min is None or h.max is None or h.mean is None:
        return {"count": 0, **dict.fromkeys(("mean", "min", "max", *PERMILLE, "ci95"))}
    out: dict[str, Any] = {
        "count": h.n, "mean": h.mean / scale, "min": h.min / scale, "max": h.max / scale,
    }  # fmt: skip
    values = h.quantiles([p / 1000 for p in PERMILLE.values()])
    for name, value in zip(PERMILLE, values, strict=True):
        out[name] = value / scale if beyond_permille(h.n, name) >= 1000 else None
    return {**out, "ci95": None}


def metrics(stats: StageStats) -> dict[str, dict[str, Any]]:
    """Every metric of measure.METRICS as a distribution."""
    return {name: distribution(stats.histograms.get(name), m.scale) for name, m in METRICS.items()}


def weak_percentiles(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Texts such as `p99 p999 of ttft_s, tpot_s (n = 480)` for weak percentiles.

    Where all values are the same, every percentile is that value, however few there are.
    """
    weak: dict[tuple[str, int], list[str]] = {}
    for metric, figures in found.items():
        count = figures["count"]
        if count and figures["min"] == figures["max"]:
            continue
        names = " ".join(p for p in PERMILLE if is_weak(count, p))
        if names:
            weak.setdefault((names, count), []).append(metric)
    return [f"{names} of {', '.join(of_)} (n = {n})" for (names, n), of_ in weak.items()]


def requests(stats: StageStats) -> dict[str, Any]:
    """What became of the requests: due = sent + dropped + lost, sent = the sum over outcomes."""
    by_outcome = {outcome: n for outcome, n in sorted(stats.outcomes.items()) if n}
    if stats.lost:
        by_outcome["lost"] = stats.lost
    return {
        "due": stats.due, "sent": stats.started, "ok": stats.ok, "failed": stats.failed,
        "dropped": stats.dropped, "lost": stats.lost, "by_outcome": by_outcome,
    }  # fmt: skip


def urls(stats: StageStats) -> dict[str, dict[str, Any]] | None:
    """What each of several servers did, over the whole run; None when there was only one."""
    found: dict[str, dict[str, Any]] = {}
    for url in sorted({url for url, _ in stats.by_url}):
        counts = {name: n for (of, name), n in stats.by_url.items() if of == url}
        by_outcome = {o.value: counts[o.value] for o in Outcome if o.value in counts}
        ok = by_outcome.get(Outcome.OK.value, 0)
        found[url] = {
            "requests": sum(by_outcome.values()),
            "ok": ok,
            "by_outcome": by_outcome,
            "output_tokens": counts.get("output_tokens", 0),
            "ttft_mean_s": counts.get("ttft_ns", 0) / ok / NS if ok else None,
        }
    return found or None


def throughput(
    series: Series, window: tuple[float, float] | None, gpus: int | None
) -> dict[str, Any]:
    """Rates in a window: tokens when their events came, prompts at their first token.

    Requests count when their last token came, ok ones only. None where the window is not known.
    """
    if window is None or window[1] <= window[0]:
        return dict.fromkeys(RATES)
    seconds = window[1] - window[0]
    count = {
        n: series.between(n, *window) for n in ("tokens", "chars", "prompt_tokens", "requests")
    }
    output = count["tokens"] / seconds
    prompt = count["prompt_tokens"] / seconds
    per_gpu = output / gpus if gpus else None
    rates = (count["requests"] / seconds, output, output + prompt, per_gpu,
             count["chars"] / seconds, prompt)  # fmt: skip
    return dict(zip(RATES, rates, strict=True))


def goodput(
    stats: StageStats, seconds: float | None, judged: bool, open_loop: bool
) -> dict[str, Any]:
    """Requests a second that met every per-request SLO, and their share of due.

    None without per-request SLOs (judged: False). A closed loop throttles itself with the server,
    so its rate of good requests says nothing of what was asked: only the share is given there.
    """
    if not judged:
        return {"goodput_per_s": None, "attainment": None}
    rate = stats.good / seconds if open_loop and seconds else None
    return {"goodput_per_s": rate, "attainment": stats.good / stats.due if stats.due else None}


def per_request(
    stats: StageStats, objectives: Iterable[Objective], stages: Collection[str]
) -> list[dict[str, Any]]:
    """How many requests of these stages met each objective that holds for every request.

    A failed request meets none; dropped, lost and cancelled ones are not counted here. `share` is
    None where there were no requests.
    """
    found = []
    for o in objectives:
        if o.per_request and (o.stage is None or o.stage in stages):
            evaluated, met = stats.slo_evaluated[o.key], stats.slo_met[o.key]
            share = met / evaluated if evaluated else None
            found.append({"key": o.key, "text": o.text, "stage": o.stage,
                          "evaluated": evaluated, "met": met, "share": share})  # fmt: skip
    return found


def window_unix(run: Run, window: tuple[float, float] | None) -> dict[str, Any]:
    """A window as Unix seconds and its length; None where it is not known."""
    if window is None or run.start_ns is None:
        return {"start": None, "end": None, "seconds": None}
    start = run.start_ns / NS
    return {"start": start + window[0], "end": start + window[1], "seconds": window[1] - window[0]}


def gpus(run: Run) -> int | None:
    """Number of GPUs that the workload names, None when it says nothing of hardware."""
    hardware = getattr(run.workload, "hardware", None)
    return hardware.count if hardware is not None else None


def is_open_loop(run: Run) -> bool:
    """True when the workload's arrivals do not wait for answers."""
    return str(run.workload.load.mode) == "open"


def _scope(
    run: Run, snapshot: Snapshot, stages: Collection[int], window: tuple[float, float] | None
) -> dict[str, Any]:
    """The figures of some stages over a window."""
    stats = snapshot.total(stages)
    seconds = window[1] - window[0] if window else None
    judged = any(o.per_request for o in run.objectives)
    each = per_request(stats, run.objectives, {run.stages[k].name for k in stages})
    return {
        "window": window_unix(run, window),
        "requests": requests(stats),
        "tokens": {"prompt": stats.prompt_tokens, "output": stats.output_tokens},
        "error_ratio": stats.error_ratio,
        "throughput": throughput(snapshot.series, window, gpus(run)),
        "metrics": metrics(stats),
        "slo": {**goodput(stats, seconds, judged, is_open_loop(run)), "per_request": each},
    }


def of(run: Run) -> dict[str, Any]:
    """Figures of the measured stages, and under `stages` of every stage, warm-up included."""
    snapshot = run.merged
    stages = []
    for index, stage in enumerate(run.stages):
        known = stage.start_s is not None and stage.end_s is not None
        window = (stage.start_s, stage.end_s) if known else None
        stages.append({
            "name": stage.name, "warmup": stage.warmup, "users": stage.users,
            "rate_per_s": stage.rate_per_s,
            **_scope(run, snapshot, [index], window),  # type: ignore[arg-type]
        })  # fmt: skip
    return {**_scope(run, snapshot, run.measured, run.window()), "stages": stages}
