"""What a person sees in the terminal: a live table while a run goes on, its summary at the end.

On a terminal the table is redrawn at every interval; elsewhere (a log, a pod) a plain line
comes every ten seconds. It reads a Run and a summary and computes nothing that is not shown.

The one subtle rule: output for people goes to stdout and must never end a run: a pipe that was
closed only silences it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console as RichConsole
from rich.live import Live
from rich.table import Table

from exporters.console_summary import WIDTH, render
from exporters.timeline import failures, quantiles, since, stage_at
from exporters.units import number, seconds
from tokenswarm import figures
from tokenswarm.histogram import Histogram
from tokenswarm.measure import METRICS, NS
from tokenswarm.run import Run
from tokenswarm.slo import evaluate
from tokenswarm.snapshot import StageStats

RECENT_S = 10.0
PLAIN_EVERY_S = 10.0
PLAIN_FIRST_S = 2.0
_SO_FAR = ("error_ratio", "attainment")
_LATENCIES = {"TTFT": "ttft_s", "ITL": "itl_s"}


@dataclass(frozen=True, slots=True)
class _Point:
    """What was known at an instant, and is shown as it has grown since: no more is kept."""

    at: float
    started: int
    ok: int
    live_tokens: int
    histograms: dict[str, Histogram]


@dataclass(frozen=True, slots=True)
class Now:
    """The figures of one moment, as the live view and the plain line show them."""

    elapsed_s: float
    remaining_s: float | None
    stage: str
    load: str
    in_flight: int
    requests_per_s: float | None
    tokens_per_s: float | None
    recent: dict[str, dict[str, Any]]
    overall: dict[str, dict[str, Any]]
    errors: dict[str, int]
    workers: str
    slo: str


class Screen(RichConsole):
    """A terminal or a file; rich would end the process when its reader goes away."""

    def on_broken_pipe(self) -> None:
        """Say nothing from now on."""
        self.quiet = True


class Console:
    """Live view and final summary on stdout."""

    def __init__(
        self, screen: Screen | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._screen = screen or Screen(highlight=False)
        if not self._screen.is_terminal and screen is None:
            self._screen.width = WIDTH  # a log has no width of its own
        self._clock = clock
        self._live: Live | None = None
        self._points: deque[_Point] = deque()
        self._next_line = 0.0
        self._silent = False

    def start(self, run: Run) -> None:
        """Say what runs, and open the live view on a terminal."""
        self.close()
        self._points.clear()
        self._points.append(_Point(self._clock(), 0, 0, 0, {}))
        self._next_line = self._clock() + PLAIN_FIRST_S
        where = f" -> {run.out}" if run.out is not None else ""
        self._safely(lambda: self._print(f"{run.workload.name}: {run.host}{where}"))
        if self._screen.is_terminal:
            self._live = Live(console=self._screen, auto_refresh=False, transient=True)
            self._safely(self._live.start)

    def interval(self, run: Run) -> None:
        """Redraw, or print a line when it is time for one."""
        now = self._look(run)
        if self._live is not None:
            live = self._live
            self._safely(lambda: live.update(table(run, now), refresh=True))
        elif self._clock() >= self._next_line:
            self._next_line = self._clock() + PLAIN_EVERY_S
            self._safely(lambda: self._print(plain(run, now)))

    def finish(self, run: Run, summary: dict[str, Any]) -> None:
        """Close the live view and print the summary."""
        self.close()
        for part in render(summary, str(run.out) if run.out is not None else None):
            self._safely(lambda part=part: self._screen.print(part))  # type: ignore[misc]

    def close(self) -> None:
        """Give the terminal back."""
        if self._live is not None:
            live, self._live = self._live, None
            self._safely(live.stop)

    def _print(self, text: str) -> None:
        self._screen.print(text, markup=False, soft_wrap=True)

    def _safely(self, draw: Callable[[], None]) -> None:
        if self._silent:
            return
        try:
            draw()
        except OSError:
            self._silent = True

    def _look(self, run: Run) -> Now:
        """Figures now, with rates and latencies over the last RECENT_S."""
        at, snapshot = self._clock(), run.merged
        stats = run.totals()
        shown = {m: h for m in _LATENCIES.values() if (h := stats.histograms.get(m)) is not None}
        self._points.append(_Point(at, stats.started, stats.ok, snapshot.live_tokens, shown))
        while len(self._points) > 1 and self._points[1].at <= at - RECENT_S:
            self._points.popleft()
        before = self._points[0]
        took = at - before.at

        def rate(grown: int) -> float | None:
            return grown / took if took > 0 else None

        offset = time.time() - run.start_ns / NS if run.start_ns is not None else None
        return Now(
            elapsed_s=max(0.0, offset or 0.0),
            remaining_s=_remaining(run, offset),
            stage=(stage_at(run, offset) if offset is not None else None) or run.state,
            load=_load(run, snapshot.health.users, rate(stats.started - before.started)),
            in_flight=snapshot.health.in_flight,
            requests_per_s=rate(stats.ok - before.ok),
            tokens_per_s=rate(snapshot.live_tokens - before.live_tokens),
            recent={n: _latency(m, shown, before.histograms) for n, m in _LATENCIES.items()},
            overall={n: _latency(m, shown, {}) for n, m in _LATENCIES.items()},
            errors=failures(stats, StageStats()),
            workers=_workers(run),
            slo=_slo(run) if self._live is not None else "",
        )


def _latency(
    metric: str, later: dict[str, Histogram], earlier: dict[str, Histogram]
) -> dict[str, Any]:
    new = since(later.get(metric), earlier.get(metric))
    return quantiles(new, METRICS[metric].scale)


def _remaining(run: Run, offset: float | None) -> float | None:
    end = run.stages[-1].end_s if run.stages else None
    return max(0.0, end - offset) if end is not None and offset is not None else None


def _load(run: Run, users: int, sent_per_s: float | None) -> str:
    if figures.is_open_loop(run):
        return f"{number(sent_per_s)}/s sent, {number(run.planned_rate)}/s planned"
    return f"{users} users"


def _workers(run: Run) -> str:
    """How many workers are in which state, and the busiest one's CPU."""
    states = [w.state for w in run.workers.values()]
    if not states:
        return "none"
    parts = [f"{states.count(s)} {s}" for s in dict.fromkeys(states)]
    cpu = max(w.snapshot.health.cpu for w in run.workers.values())
    return f"{', '.join(parts)}; CPU up to {cpu:.0%}"


def _slo(run: Run) -> str:
    """How many SLOs hold so far, and those that do not; throughput is only known at the end."""
    wanted = [o for o in run.objectives if o.function is not None or o.metric in _SO_FAR]
    checks = evaluate(wanted, figures.of(run))
    failing = [f"{c.text}: {c.detail.split(',')[0]}" for c in checks if c.passed is False]
    known = sum(c.passed is not None for c in checks)
    return f"{known - len(failing)} of {len(checks)} hold so far" + "".join(
        f"\n{text}" for text in failing
    )


def _errors(now: Now) -> str:
    return ", ".join(f"{n} {outcome}" for outcome, n in now.errors.items()) or "none"


def _clock_text(elapsed: float) -> str:
    minutes, rest = divmod(int(elapsed), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _pair(figures: dict[str, Any]) -> str:
    return f"{seconds(figures['p50'])} / {seconds(figures['p99'])}"


def plain(run: Run, now: Now) -> str:
    """The line for logs."""
    latencies = " ".join(f"{name} {_pair(figures)}" for name, figures in now.recent.items())
    return (
        f"{_clock_text(now.elapsed_s)} {now.stage}: {now.load}, {now.in_flight} in flight, "
        f"{number(now.requests_per_s)} req/s, {number(now.tokens_per_s)} tok/s, "
        f"{latencies} (p50 / p99), errors: {_errors(now)}"
    )


def table(run: Run, now: Now) -> Table:
    """The live view."""
    left = f", {_clock_text(now.remaining_s)} left" if now.remaining_s is not None else ""
    grid = Table(
        title=f"{run.workload.name}  {run.state}  {_clock_text(now.elapsed_s)}{left}",
        title_justify="left", show_header=False,
    )  # fmt: skip
    grid.add_column(style="bold")
    grid.add_column(min_width=62)  # so that the table does not jump with every figure
    grid.add_row("stage", now.stage)
    grid.add_row("load", f"{now.load}, {now.in_flight} in flight")
    grid.add_row("speed", f"{number(now.requests_per_s)} req/s, {number(now.tokens_per_s)} tok/s")
    for name, recent in now.recent.items():
        grid.add_row(
            f"{name} p50 / p99", f"{_pair(recent)} last 10 s,  {_pair(now.overall[name])} overall"
        )
    grid.add_row("errors", _errors(now))
    grid.add_row("SLO", now.slo)
    grid.add_row("workers", now.workers)
    return grid
