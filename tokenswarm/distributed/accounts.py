"""What an open-loop plan holds, and what of it workers that are gone left undone.

Counts arrivals of the plan; knows nothing of messages. The one subtle rule: the plan is the same
for everybody, so what a worker had to do is known without asking it.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from typing import Any

from tokenswarm import arrivals
from tokenswarm.offload import offload
from tokenswarm.run import Run, Worker
from tokenswarm.snapshot_series import NS_BUCKETS, share_out

_MOST_COUNTED = 500_000  # arrivals of a plan that are counted beforehand


def account_for_the_lost(run: Run, until_ns: int | None) -> None:
    """Fill in what workers that never came to their end had to do and did not report.

    In open loop that is known exactly: the arrivals of their stripe of the plan (up to until_ns,
    where the run was stopped early) less those that they reported as ended or dropped. In closed
    loop it is what they had in flight at their last report.
    """
    gone = [w for w in run.workers.values() if w.k is not None and not w.final]
    n = sum(w.k is not None for w in run.workers.values())
    for worker in gone:
        worker.state = "lost"
        _tell_of_late_records(run, worker)
        _spread_over_time(run, worker)
        shares: Counter[int] | None = None
        if run.workload.load.mode == "open":
            shares = offload(count_stripe, run.workload, worker.k, n, until_ns)
        for index in range(len(run.stages)):
            stats = worker.snapshot.stage(index)
            lost = stats.in_flight
            stats.started -= lost
            if shares is not None:
                lost = max(0, shares[index] - stats.ended - stats.dropped)
            stats.lost += lost
            if lost:
                stats.outcomes["lost"] += lost


def _spread_over_time(run: Run, worker: Worker) -> None:
    """When its tokens came went with the worker; how many of each stage, it had reported.

    They are spread evenly over the stage, until it fell silent, so that throughput holds them.
    """
    series, stages = worker.snapshot.series, worker.snapshot.stages
    if series.tokens or run.start_ns is None or not any(stats.events for stats in stages):
        return
    silent_s = time.time() - run.start_ns / 1e9 - (time.monotonic() - worker.reported_s)
    for window, stats in zip(run.stages, stages, strict=False):
        if window.start_s is None:
            continue
        end_s = silent_s if window.end_s is None else min(window.end_s, silent_s)
        seconds = list(range(math.ceil(window.start_s), math.ceil(end_s)))
        seconds = seconds or [math.ceil(window.start_s)]
        buckets = [second * NS_BUCKETS for second in seconds]
        share_out(series.tokens, buckets, stats.output_tokens)
        share_out(series.prompt_tokens, buckets, stats.prompt_tokens)
        share_out(series.requests, buckets, stats.ok)
        share_out(series.chars, seconds, stats.output_chars)
    run.warnings.append(
        f"worker {worker.id}: when its tokens came is not known; throughput has them spread "
        "evenly over the time until it was lost"
    )


def _tell_of_late_records(run: Run, worker: Worker) -> None:
    """Records leave just before the report that counts them, which may be the one that is lost."""
    more = worker.records_received - worker.snapshot.records
    if more > 0:
        run.warnings.append(
            f"worker {worker.id}: {more} of its requests that count as lost have a record in "
            "requests.jsonl: they had ended, but it fell silent before it reported them"
        )


def count_stripe(work: Any, k: int, n: int, until_ns: int | None) -> Counter[int]:
    """Arrivals of worker k of n by stage, up to an instant of the plan (None: all of them)."""
    mine = arrivals.stripe(arrivals.schedule(work.load, work.seed), k, n)
    if until_ns is not None:
        mine = itertools.takewhile(lambda arrival: arrival.due_ns <= until_ns, mine)
    return Counter(arrival.stage for arrival in mine)


def count_plan(work: Any) -> int | None:
    """Arrivals of an open-loop plan; None for a soak too long to count beforehand."""
    plan = arrivals.schedule(work.load, work.seed)
    counted = sum(1 for _ in itertools.islice(plan, _MOST_COUNTED + 1))
    return counted if counted <= _MOST_COUNTED else None
