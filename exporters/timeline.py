"""timeline.jsonl: one JSON line an interval, so that a run can be seen as it went.

It reads cumulative snapshots and writes what came between two of them; it keeps no history.
Latencies of an interval are those of requests that ended in it.

The one subtle rule: workers report on their own clocks, so a line is written only when each of
them has reported since the line before (or has been silent for some seconds): otherwise a
figure a second would jump between nothing and threefold.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import orjson

from exporters import files
from tokenswarm.histogram import Histogram
from tokenswarm.measure import METRICS, NS
from tokenswarm.records import Outcome
from tokenswarm.run import Run, Worker
from tokenswarm.snapshot import Snapshot, StageStats

FILE = "timeline.jsonl"
SHOWN = ("ttft_s", "ttft_due_s", "itl_s", "tpot_s", "e2e_s", "send_delay_s")
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_SILENT_S = 5.0


def since(later: Histogram | None, earlier: Histogram | None) -> Histogram:
    """What was recorded between two states of a histogram."""
    if later is None:
        return Histogram()
    return later if earlier is None or not earlier.n else later.minus(earlier)


def quantiles(h: Histogram, scale: int) -> dict[str, Any]:
    """count and p50, p90, p99 of the values of an interval; null where there are none."""
    if h.n <= 0:
        return {"count": 0, **dict.fromkeys(_QUANTILES)}
    values = h.quantiles(list(_QUANTILES.values()))
    return {"count": h.n, **{n: v / scale for n, v in zip(_QUANTILES, values, strict=True)}}


def failures(later: StageStats, earlier: StageStats) -> dict[str, int]:
    """Requests that failed between two states, by outcome."""
    grown = later.outcomes - earlier.outcomes
    kept = (Outcome.OK.value, Outcome.CANCELLED.value)
    return {o: n for o, n in sorted(grown.items()) if o not in kept}


def stage_at(run: Run, offset_s: float) -> str | None:
    """Name of the stage of the plan at an instant; None before the first and after the last."""
    name = None
    for stage in run.stages:
        if stage.start_s is not None and stage.start_s <= offset_s:
            name = stage.name if stage.end_s is None or offset_s < stage.end_s else None
    return name


class Sink(Protocol):
    """Where lines go: a file, or the web UI's memory."""

    lost: int

    def append(self, piece: bytes) -> bool:
        """Take a line; False when it could not be kept."""

    def close(self) -> None:
        """No more lines of this run."""


class Timeline:
    """Writes a line an interval, the last and shorter one when the run ends."""

    def __init__(
        self,
        out: Path | None = None,
        clock: Callable[[], float] = time.time,
        sink: Sink | None = None,
    ) -> None:
        self._out = out
        self._clock = clock
        self._sink = sink
        self._file: Sink | None = None
        self._at = 0.0
        self._stats = StageStats()
        self._snapshot = Snapshot()
        self._lags: dict[str, Histogram] = {}
        self._reported: dict[str, float] = {}

    def start(self, run: Run) -> None:
        """Forget the run before."""
        self.close()
        out = run.out or self._out
        if self._sink is not None:
            self._file = self._sink
        elif out is not None:
            self._file = files.Appender(
                out / FILE, lambda path, error: files.report(run, path, error)
            )
        self._at = run.started or self._clock()
        self._stats, self._snapshot = StageStats(), Snapshot()
        self._lags.clear()
        self._reported = {w.id: w.reported_s for w in run.workers.values()}

    def interval(self, run: Run) -> None:
        """Write a line when there is something new from every worker."""
        now = self._clock()
        if self._file is not None and now > self._at and self._is_due(run, now):
            self._write(run, now)

    def finish(self, run: Run, summary: dict[str, Any]) -> None:
        """Write what came since the last line."""
        if self._file is not None:
            self._write(run, max(run.ended or self._clock(), self._at))
            if self._file.lost:
                summary["warnings"].append(f"{self._file.lost} lines of {FILE} were not written")
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _is_due(self, run: Run, now: float) -> bool:
        if now - self._at >= _SILENT_S:
            return True
        at_work = [w for w in run.workers.values() if w.k is not None and w.state == "running"]
        return all(w.reported_s != self._reported.get(w.id) or not w.reported_s for w in at_work)

    def _write(self, run: Run, now: float) -> None:
        assert self._file is not None
        snapshot = run.merged
        stats = run.totals()
        if run.start_ns is not None:
            # what is before the plan's start is waiting, and would make the first rates too low
            self._at = min(max(self._at, run.start_ns / NS), now)
        row = self._row(run, snapshot, stats, now)
        self._file.append(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        self._at, self._stats, self._snapshot = now, stats, snapshot
        self._reported = {w.id: w.reported_s for w in run.workers.values()}

    def _row(self, run: Run, now_: Snapshot, stats: StageStats, now: float) -> dict[str, Any]:
        before = self._stats
        seconds = now - self._at
        offset = now - run.start_ns / NS if run.start_ns is not None else None
        tokens = now_.live_tokens - self._snapshot.live_tokens
        sent = stats.started - before.started
        failed = failures(stats, before)
        row: dict[str, Any] = {
            "t": now,
            "offset_s": offset,
            "seconds": seconds,
            # the interval's middle: its end may already lie in the next stage
            "stage": stage_at(run, offset - seconds / 2) if offset is not None else None,
            "state": run.state,
            "users": now_.health.users,
            "in_flight": now_.health.in_flight,
            "planned_rate": run.planned_rate,
            "achieved_rate": sent / seconds if seconds > 0 else None,
            "sent": sent,
            "ok": stats.ok - before.ok,
            "failed": sum(failed.values()),
            "failed_by_outcome": failed,
            "dropped": stats.dropped - before.dropped,
            "lost": stats.lost - before.lost,
            "prompt_tokens": stats.prompt_tokens - before.prompt_tokens,
            "output_tokens": stats.output_tokens - before.output_tokens,
            "token_events": tokens,
            "output_tokens_per_s": tokens / seconds if seconds > 0 else None,
            "requests_per_s": (stats.ok - before.ok) / seconds if seconds > 0 else None,
        }
        for name in SHOWN:
            new = since(stats.histograms.get(name), before.histograms.get(name))
            row[name] = quantiles(new, METRICS[name].scale)
        row["workers"] = [self._worker(w) for w in run.workers.values()]
        if run.server is not None:
            row["server"] = run.server.get("now")
        return row

    def _worker(self, worker: Worker) -> dict[str, Any]:
        lag = worker.snapshot.health.lag
        new = since(lag, self._lags.get(worker.id))
        self._lags[worker.id] = lag.copy()
        return {
            "id": worker.id,
            "state": worker.state,
            "cpu": worker.snapshot.health.cpu,
            "loop_lag_p99_s": new.quantile(0.99) / NS if new.n > 0 else None,
            "in_flight": worker.snapshot.health.in_flight,
        }
