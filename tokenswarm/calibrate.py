"""`tokenswarm calibrate`: how much load one worker of this machine can drive and still measure.

Runs one worker against the embedded engine (preset `bench`: first token after 100 ms, then one
every 20 ms, in a process of its own) at growing numbers of streams, and compares what the worker
reports with what the engine logged. It knows nothing of how a run works inside.

The one subtle rule: both ends share this machine, so the engine may give in first. The truth is
therefore its log (kernel stamps of arrival, clock at sending), never the preset; and where it
sent fewer events than the streams ask for, the answer is "at least", not a limit of the worker.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenswarm import workload
from tokenswarm.launch import data_folder
from tokenswarm.study_point import Point, Result, run
from tokenswarm.study_server import Unfit

ITL_S, TTFT_S = 0.02, 0.1  # of the engine preset `bench`
_TOKENS = 75
_LEVELS = (64, 128, 256, 512, 1024, 2048, 4096)
_LOAD_S = 4.0
_OVERHEAD_S = 4.0  # of a run, guessed until one was seen
_ENGINE_KEEPS_UP = 0.93  # of the events that the streams ask for, while all of them run
_CPU, _COALESCED = 0.9, 0.05  # as in a workload's `validity:`
HEADROOM = 0.8


@dataclass(frozen=True, slots=True)
class Level:
    """One number of streams: what was driven and how far off the figures were."""

    streams: int
    events_per_s: float
    asked_per_s: float
    cpu: float
    ttft_p99_s: float | None
    true_ttft_p99_s: float | None
    error_s: float | None
    coalesced_share: float
    fine: bool
    why: str = ""
    engine_kept_up: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """What one worker can drive; limited_by: worker, engine, time, or levels (all were fine)."""

    levels: Sequence[Level]
    streams: int
    events_per_s: float
    us_per_event: float | None
    limited_by: str
    bound_s: float
    seconds: float

    def workers_for(self, streams: float, tokens_per_s: float) -> int:
        """Workers for a load, each at HEADROOM of what was measured."""
        if not self.streams:
            return 0
        need = max(streams / self.streams, tokens_per_s / self.events_per_s)
        return max(1, math.ceil(need / HEADROOM))

    def to_json(self, streams: float | None, tokens_per_s: float | None) -> str:
        """Everything as JSON."""
        found: dict[str, Any] = {**asdict(self), "headroom": HEADROOM}
        if streams or tokens_per_s:
            need = self.workers_for(streams or 0.0, tokens_per_s or 0.0)
            found |= {"wanted": {"streams": streams, "tokens_per_s": tokens_per_s},
                      "workers": need}  # fmt: skip
        return json.dumps(found, indent=2)


def calibrate(bound_s: float, budget_s: float, say: Callable[[str], None]) -> Answer:
    """Measure, for about budget_s at most. Raises BadInput or Unfit when nothing can be run."""
    from tokenswarm.simulator.process import EngineProcess

    began = time.monotonic()
    levels: list[Level] = []
    limited_by, run_s = "levels", _LOAD_S + _OVERHEAD_S
    with (
        tempfile.TemporaryDirectory(prefix="tokenswarm-calibrate-") as folder,
        EngineProcess("--engine", "bench") as engine,
    ):
        while (streams := next_streams(levels)) is not None:
            if levels and time.monotonic() - began + run_s > budget_s:
                limited_by = "time"
                break
            started = time.monotonic()
            tried = sum(x.streams == streams for x in levels)
            levels.append(_measure(streams, tried, engine, Path(folder), bound_s, say))
            run_s = time.monotonic() - started
            say(_line(levels[-1]))
            if not levels[-1].engine_kept_up:
                limited_by = "engine"
                break
            if not levels[-1].fine:
                limited_by = "worker"
    return answered(levels, limited_by, bound_s, time.monotonic() - began)


def next_streams(levels: Sequence[Level]) -> int | None:
    """Twice as many until it is too much, then once in between.

    What was too much is tried once more: another process may have taken the core away.
    """
    good = max((x.streams for x in levels if x.fine), default=0)
    failed = Counter(x.streams for x in levels if not x.fine and x.streams > good)
    once = [n for n, times in failed.items() if times == 1]
    if once:
        return once[0]
    bad = min(failed, default=None)
    if bad is None:
        return next((n for n in _LEVELS if n > good), None)
    if not good or bad < 1.9 * good:
        return None
    return round(math.sqrt(bad * good))


def answered(levels: Sequence[Level], limited_by: str, bound_s: float, seconds: float) -> Answer:
    """The answer from what was measured."""
    fine = [x for x in levels if x.fine]
    best = max(fine, key=lambda x: x.streams) if fine else None
    cost = best.cpu / best.events_per_s * 1e6 if best and best.events_per_s else None
    return Answer(
        tuple(levels), best.streams if best else 0, best.events_per_s if best else 0.0, cost,
        limited_by, bound_s, seconds,
    )  # fmt: skip


def _measure(
    streams: int,
    tried: int,
    engine: Any,
    folder: Path,
    bound_s: float,
    say: Callable[[str], None],
) -> Level:
    point = Point(
        folder, f"{streams}-streams", _workload(streams), engine.url, "bench", repeat=tried
    )
    found = run(point, say)
    if found.state != "done":
        raise Unfit(f"the calibration run failed: {found.error}")
    window = found.summary["window"]
    served = [
        line
        for line in engine.log()
        if line["outcome"] == "ok" and window["start"] <= line["received"] < window["end"]
    ]
    return judged(streams, found, served, bound_s)


def judged(streams: int, found: Result, served: Sequence[dict[str, Any]], bound_s: float) -> Level:
    """One level: the worker's figures beside the engine's log."""
    worker = found.summary["generator"]["workers"][0]
    true = quantile([x["first_sent"] - x["received"] for x in served], 0.99)
    reported = found.figure("ttft_p99_s")
    error = abs(reported - true) if reported is not None and true is not None else None
    events = found.figure("output_tokens_per_s") or 0.0
    asked = streams * _TOKENS / (TTFT_S + (_TOKENS - 1) * ITL_S)
    coalesced = float(worker["coalesced_share"] or 0.0)
    why = []
    if error is None or error > bound_s:
        shown = "unknown" if error is None else f"{error * 1e3:.1f} ms"
        why.append(f"TTFT p99 is off by {shown}")
    if coalesced > _COALESCED:
        why.append(f"{coalesced:.0%} of reads coalesced")
    if worker["cpu"] > _CPU:
        why.append(f"{worker['cpu']:.0%} CPU")
    return Level(
        streams, events, asked, worker["cpu"], reported, true, error, coalesced,
        not why, ", ".join(why), events >= _ENGINE_KEEPS_UP * asked or bool(why),
    )  # fmt: skip


def quantile(values: Sequence[float], q: float) -> float | None:
    """The value at rank ceil(q n); None without values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def _workload(streams: int) -> Any:
    corpus = data_folder("workloads") / "sample_sharegpt.json"
    return workload.parse(
        f"""
name: calibrate
backend: {{model: demo}}
tokenizer: {{source: tiktoken, path: cl100k_base}}
prompts:
  {{path: {json.dumps(str(corpus))}, input_tokens: 32, output_tokens: {_TOKENS}, probe: false}}
load:
  stages:
    - {{name: start, duration: {TTFT_S + _TOKENS * ITL_S:g}s, users: {streams}, warmup: true}}
    - {{name: main, duration: {_LOAD_S:g}s, users: {streams}}}
slo: {{error_ratio: <100%}}
""",
        "calibrate.yaml",
    )


HEAD = f"{'streams':>8} {'events/s':>10} {'CPU':>6} {'TTFT p99':>10} {'true':>10} {'error':>9}"


def _line(level: Level) -> str:
    """A row of the table that is printed while it goes on."""

    def ms(value: float | None) -> str:
        return "-" if value is None else f"{value * 1e3:.2f} ms"

    state = "fine" if level.fine else level.why
    if not level.engine_kept_up:
        state = f"the engine sent only {level.events_per_s / level.asked_per_s:.0%} of the tokens"
    return (f"{level.streams:>8} {level.events_per_s:>10,.0f} {level.cpu:>6.0%} "
            f"{ms(level.ttft_p99_s):>10} {ms(level.true_ttft_p99_s):>10} "
            f"{ms(level.error_s):>9}  {state}")  # fmt: skip


_WHY = {
    "worker": "more was too much for it",
    "engine": "then the embedded engine on this machine was the limit: at least",
    "time": "then the time was over: at least",
    "levels": "the most that is tried: at least",
}


def conclusion(answer: Answer, streams: float | None, tokens_per_s: float | None) -> list[str]:
    """The answer in words."""
    bound = f"{answer.bound_s * 1e3:g} ms"
    if not answer.streams:
        return [f"not even {_LEVELS[0]} streams within {bound}: this machine is too busy"]
    cost = f", {answer.us_per_event:.0f} us of CPU an event" if answer.us_per_event else ""
    lines = [
        f"one worker: {answer.streams} streams, {answer.events_per_s:,.0f} token events/s with an "
        f"error of at most {bound} ({_WHY[answer.limited_by]}){cost}"
    ]
    if streams or tokens_per_s:
        need = answer.workers_for(streams or 0.0, tokens_per_s or 0.0)
        wanted = [f"{streams:g} streams" if streams else "",
                  f"{tokens_per_s:,.0f} tokens/s" if tokens_per_s else ""]  # fmt: skip
        lines.append(f"{' and '.join(filter(None, wanted))}: {need} worker"
                     f"{'s' if need > 1 else ''}, each at {HEADROOM:.0%} of that")  # fmt: skip
    return lines
