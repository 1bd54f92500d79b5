"""When the stages of a run begin and end: planned beforehand, and as workers come to their ends.

A stage that ends by duration has its window from the start; one that ends by a number of requests
gets it when every worker has sent its share. Knows windows and workers' words, no clock but the
plan's.

The one subtle rule: a stage of requests ends when the first worker's share is used up. From then
on there is less load than was asked for.
"""

from __future__ import annotations

import time

from tokenswarm import arrivals
from tokenswarm.clock import NS
from tokenswarm.distributed.accounts import count_plan
from tokenswarm.distributed.crew import Crew
from tokenswarm.offload import offload
from tokenswarm.run import Run
from tokenswarm.snapshot_series import BUCKET_NS

_STAGE_LEAD_S = 0.02


def plan_windows(run: Run) -> None:
    """When each stage begins and ends, as far as it is known beforehand."""
    load, stages = run.workload.load, run.workload.load.resolved_stages()
    ends: list[float | None]
    if load.mode == "open":
        run.planned_requests = offload(count_plan, run.workload)
    if load.mode == "open" and any(s.duration is None for s in stages):
        ends = [e / NS for e in arrivals.stage_ends(load, run.workload.seed)]
    else:
        ends, at = [], 0.0
        for stage in stages:
            if stage.duration is None:
                ends += [None] * (len(stages) - len(ends))
                break
            at += stage.duration
            ends.append(at)
    start: float | None = 0.0
    for window, end in zip(run.stages, ends, strict=True):
        window.start_s, window.end_s = start, end
        start = end


def stage_at(run: Run, offset_s: float) -> int | None:
    """The stage at an instant of the plan; None when the last one is over."""
    for index, window in enumerate(run.stages):
        if window.end_s is None or offset_s < window.end_s:
            return index
    return None


class Stages:
    """The stages of a run that end by requests, each ended by the workers' words."""

    def __init__(self, run: Run, crew: Crew) -> None:
        self._run, self._crew = run, crew
        self._reports: dict[int, dict[str, int | None]] = {i: {} for i in range(len(run.stages))}

    def done(self, stage: int, worker_id: str, at_ns: int | None) -> None:
        """A worker's share of a stage is sent, since at_ns (None: it had none)."""
        self._reports[stage][worker_id] = at_ns
        self._advance(stage)

    def worker_lost(self) -> None:
        """Nobody waits for a worker's word any more."""
        for stage, reports in self._reports.items():
            if reports:
                self._advance(stage)

    def _advance(self, stage: int) -> None:
        """End a stage of a number of requests when every worker's share is sent; start the next."""
        run = self._run
        assert run.start_ns is not None
        reports = self._reports[stage]
        if any(w.id not in reports for w in run.workers.values() if w.state != "lost"):
            return
        window = run.stages[stage]
        if window.end_s is not None:
            return
        instants = [at for at in reports.values() if at is not None]
        end_ns = min(instants) if instants else time.time_ns()
        window.end_s = (end_ns - run.start_ns) // BUCKET_NS * BUCKET_NS / NS
        if stage + 1 < len(run.stages):
            start_ns = time.time_ns() + round(_STAGE_LEAD_S * NS)
            start_s = (start_ns - run.start_ns) // BUCKET_NS * BUCKET_NS / NS
            run.stages[stage + 1].start_s = start_s
            start_ns = run.start_ns + round(start_s * NS)
            self._chain_windows(stage + 1)
            word = {"run": run.id, "stage": stage + 1, "start_ns": start_ns}
            self._crew.send("stage", word, None)

    def _chain_windows(self, first: int) -> None:
        windows, stages = self._run.stages, self._run.workload.load.resolved_stages()
        at = windows[first].start_s
        for i in range(first, len(stages)):
            windows[i].start_s = at
            duration = stages[i].duration
            if duration is None or at is None:
                break
            at += duration
            windows[i].end_s = at
