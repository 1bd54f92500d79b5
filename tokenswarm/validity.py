"""Is this run to be believed? Reasons why not, warnings, SLO checks and the exit code.

It reads a finished Run and knows nothing of files or of how the run was driven. Each reason is
one function in JUDGES that yields details; its name is a code of summary.json's
`invalid_reasons`. Faults that only the master can see (a worker that came late, a run cut
short) arrive in `run.faults` and are passed on.

The one subtle rule: an SLO that failed is an answer, exit code 1; a run that cannot be believed
has no answer, exit code 3, whatever its SLOs say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tokenswarm import figures
from tokenswarm.measure import NS
from tokenswarm.records import Outcome
from tokenswarm.run import Run, Worker
from tokenswarm.slo import Check, evaluate
from tokenswarm.snapshot import StageStats

OK, SLO_FAILED, BAD_INPUT, INVALID, INTERNAL_ERROR = range(5)

CODES = (
    "worker_lost", "worker_late", "reports_missing", "rate_not_reached", "arrivals_dropped",
    "generator_saturated", "reads_coalesced", "cut_short", "prompt_length", "clock_step",
    "insufficient_samples", "internal_error",
)  # fmt: skip

# Below so many reads one worker's share of coalesced ones says nothing.
_ENOUGH_READS = 100
# Loop lag delays stamps only where the kernel does not give them.
_STAMPED_BY_KERNEL = 0.99
# Below so much time that users waited for prompts its share says nothing: a run of a blink.
_ENOUGH_STARVED_NS = 500_000_000
_PAUSED_S = 0.5  # a pause that is worth telling: tokens that came in it were read together
_STOOD_STILL_S = 3.0  # an event loop that was away for longer did not do what was planned
_WORTH_SAYING = 0.01  # shares below are noise and get no warning


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run is worth. reasons are (code, detail); figures is what the checks looked at."""

    valid: bool
    reasons: list[tuple[str, str]]
    warnings: list[str]
    checks: list[Check]
    exit_code: int
    figures: dict[str, Any] = field(default_factory=dict)


def taking_part(run: Run) -> list[Worker]:
    """Workers that have a stripe of the plan."""
    return [w for w in run.workers.values() if w.k is not None]


def share(part: int, whole: int) -> float | None:
    """part / whole, None when there is no whole."""
    return part / whole if whole else None


def kernel_stamp_share(stats: StageStats) -> float | None:
    """Share of reads with tokens whose arrival time the kernel gave; None without reads."""
    missing = share(stats.unstamped_reads, stats.reads)
    return None if missing is None else 1 - missing


def loop_lag_p99_s(worker: Worker) -> float | None:
    """99th percentile of how late a worker's event loop was, seconds."""
    lag = worker.snapshot.health.lag
    return lag.quantile(0.99) / NS if lag.n else None


def starved_share(worker: Worker) -> float | None:
    """Share of its users' time that a worker let them wait for a prompt; None without users."""
    health = worker.snapshot.health
    return share(health.starved_ns, health.starved_ns + health.slots_ns)


def _worker_lost(run: Run, _: StageStats) -> Iterator[str]:
    for w in taking_part(run):
        if w.state == "lost":
            yield f"worker {w.id} ({w.host or 'unknown host'}) died or fell silent during the run"


def _worker_late(run: Run, _: StageStats) -> Iterator[str]:
    for name, worst in _pauses(run):
        if worst > _STOOD_STILL_S:
            yield f"worker {name} stood still for {worst:.1f} s: what was due then was sent late"


def _pauses(run: Run) -> Iterator[tuple[str, float]]:
    """Each worker with the longest time, in seconds, that its event loop did nothing."""
    for w in taking_part(run):
        yield f"{w.id} ({w.host or 'unknown host'})", (w.snapshot.health.lag.max or 0) / NS


def _reports_missing(run: Run, _: StageStats) -> Iterator[str]:
    record = getattr(run.workload, "record", None)
    for w in taking_part(run):
        if w.state == "missing" or (w.state != "lost" and not w.final):
            yield f"worker {w.id} sent no last report: what it did at the end is not counted"
        missing = w.snapshot.records - w.records_received
        if missing > 0 and w.state != "lost" and getattr(record, "requests", True):
            yield f"worker {w.id}: {missing} request records did not arrive"
    open_ends = run.totals().in_flight
    if open_ends:
        yield f"{open_ends} requests were sent but no outcome of them was reported"


def _rate_not_reached(run: Run, stats: StageStats) -> Iterator[str]:
    if not figures.is_open_loop(run):
        return
    tolerance = run.workload.validity.rate_tolerance
    planned, due = run.planned_requests, run.totals().due
    if planned and abs(due - planned) > tolerance * planned and not _has(run, "cut_short"):
        yield f"{due} of {planned} planned requests became due"
    window, delays = run.window(), stats.histograms.get("send_delay_s")
    if window is None or delays is None or not delays.n:
        return
    # A generator that falls behind steadily is twice the median delay late at the end, so it
    # took that much longer to send the same requests. A stall that was caught up does not count.
    seconds = window[1] - window[0]
    behind = 2 * delays.quantile(0.5) / NS
    if behind > tolerance * (seconds + behind):
        achieved, wanted = stats.started / (seconds + behind), stats.due / seconds
        yield f"requests were sent at about {achieved:.3g}/s, planned were {wanted:.3g}/s"


def _arrivals_dropped(run: Run, stats: StageStats) -> Iterator[str]:
    if stats.dropped:
        why = ("the server was slower than the plan and load.max_in_flight was reached"
               if run.workload.load.max_in_flight is not None
               else "the run was cut before they could be sent")  # fmt: skip
        yield f"{stats.dropped} of {stats.due} arrivals were dropped: {why}"


def _generator_saturated(run: Run, _: StageStats) -> Iterator[str]:
    limits = run.workload.validity
    for w in taking_part(run):
        cpu, lag = w.snapshot.health.cpu_max, loop_lag_p99_s(w)
        if cpu > limits.cpu:
            yield f"worker {w.id} used {cpu:.0%} of a core (limit {limits.cpu:.0%}): add workers"
        starved = starved_share(w) or 0.0
        is_enough = w.snapshot.health.starved_ns >= _ENOUGH_STARVED_NS
        if is_enough and starved > limits.starved_share:
            yield (f"worker {w.id}: users waited {starved:.1%} of their time for the next prompt "
                   f"to be prepared (limit {limits.starved_share:.1%}): add workers")  # fmt: skip
        stamped = kernel_stamp_share(w.snapshot.total())
        unstamped = stamped is not None and stamped < _STAMPED_BY_KERNEL
        if unstamped and lag is not None and lag > limits.loop_lag_p99_s:
            yield (f"worker {w.id}: event loop p99 {lag * 1e3:.0f} ms late (limit "
                   f"{limits.loop_lag_p99_s * 1e3:.0f} ms) and arrival times without kernel "
                   "stamps: add workers")  # fmt: skip


def _reads_coalesced(run: Run, _: StageStats) -> Iterator[str]:
    limit = run.workload.validity.coalesced_share
    for w in taking_part(run):
        stats = w.snapshot.total(run.measured)
        found = share(stats.coalesced_reads, stats.reads) or 0.0
        if stats.reads >= _ENOUGH_READS and found > limit:
            yield (f"worker {w.id}: {found:.1%} of reads brought several events because the "
                   f"worker was late (limit {limit:.1%}): add workers")  # fmt: skip


def _cut_short(run: Run, _: StageStats) -> Iterator[str]:
    if run.ended is None:
        yield "the run did not come to its end"


def _prompt_length(run: Run, _: StageStats) -> Iterator[str]:
    stats = run.totals()
    off = stats.compared - stats.exact
    if off:
        worst = max((d for d in stats.differences if d), key=abs, default=0)
        yield (f"the server counted another number of prompt tokens than asked for in {off} of "
               f"{stats.compared} responses (up to {worst:+d}): is the tokenizer the server's?"
               )  # fmt: skip


def _clock_step(run: Run, _: StageStats) -> Iterator[str]:
    limit = run.workload.validity.clock_step_s
    for w in taking_part(run):
        worst = max(w.snapshot.health.steps, key=abs, default=0) / NS
        if abs(worst) > limit:
            yield f"worker {w.id}: the wall clock was set by {worst * 1e3:+.1f} ms during the run"


def _internal_error(run: Run, _: StageStats) -> Iterator[str]:
    stats = run.totals()
    count = stats.outcomes[Outcome.INTERNAL_ERROR.value]
    if count:
        texts = [t for (o, t) in stats.errors if o == Outcome.INTERNAL_ERROR.value]
        yield f"{count} requests failed inside tokenswarm: {texts[0] if texts else 'no text'}"


JUDGES: dict[str, Callable[[Run, StageStats], Iterator[str]]] = {
    "worker_lost": _worker_lost,
    "worker_late": _worker_late,
    "reports_missing": _reports_missing,
    "rate_not_reached": _rate_not_reached,
    "arrivals_dropped": _arrivals_dropped,
    "generator_saturated": _generator_saturated,
    "reads_coalesced": _reads_coalesced,
    "cut_short": _cut_short,
    "prompt_length": _prompt_length,
    "clock_step": _clock_step,
    "internal_error": _internal_error,
}


def _has(run: Run, code: str) -> bool:
    return any(code == known for known, _ in run.faults)


def _reasons(run: Run, checks: list[Check]) -> list[tuple[str, str]]:
    """The master's faults, what the judges find where the master said nothing, null SLOs."""
    stats = run.merged.total(run.measured)
    reasons = list(run.faults)
    for code, judged in JUDGES.items():
        if not _has(run, code):
            reasons += [(code, detail) for detail in judged(run, stats)]
    reasons += [
        ("insufficient_samples", f"{check.text}: {check.detail or 'not enough samples'}")
        for check in checks
        if check.passed is None
    ]
    order = {code: i for i, code in enumerate(CODES)}
    return sorted(reasons, key=lambda reason: order.get(reason[0], len(order)))


def _warnings(run: Run, found: dict[str, Any]) -> Iterator[str]:
    """What does not make the run invalid and still should be known."""
    yield from run.warnings
    stats = run.totals()
    weak = figures.weak_percentiles(found["metrics"])
    if weak:
        yield "weak percentiles, fewer than ten values beyond them: " + "; ".join(weak)
    warmup = [i for i, stage in enumerate(run.stages) if stage.warmup]
    dropped = run.merged.total(warmup).dropped
    if dropped:
        yield f"{dropped} arrivals were dropped during warm-up"
    batched = share(stats.batched_reads, stats.reads) or 0.0
    if batched > _WORTH_SAYING:
        yield (f"{batched:.1%} of reads brought several token events at once while the generator "
               "was on time: the server, or a proxy before it, batches tokens")  # fmt: skip
    unstamped = share(stats.unstamped_reads, stats.reads) or 0.0
    if unstamped > _WORTH_SAYING:
        yield f"{unstamped:.1%} of reads had no kernel time stamp and were timed by the process"
    if stats.source_differs:
        yield (f"{stats.source_differs} answers had another number of output tokens by the "
               "server's usage than by the tokenizer")  # fmt: skip
    if stats.reconnected:
        yield (f"{stats.reconnected} requests were sent a second time, on a new connection, "
               "because the server had closed the kept one")  # fmt: skip
    for name, worst in _pauses(run):
        if _PAUSED_S < worst <= _STOOD_STILL_S:
            yield (f"worker {name} paused for {worst:.1f} s: a first token that came then may be "
                   "stamped that much late, and high percentiles may show it")  # fmt: skip
    if stats.retries:
        yield f"{stats.retries} retries, which waited {stats.retry_wait_ns / NS:.1f} s in all"


def _exit_code(reasons: list[tuple[str, str]], checks: list[Check]) -> int:
    """The highest reason wins."""
    if any(code == "internal_error" for code, _ in reasons):
        return INTERNAL_ERROR
    if reasons:
        return INVALID
    return SLO_FAILED if any(check.passed is False for check in checks) else OK


def judge(run: Run) -> Verdict:
    """The verdict on a run that ended (or was cut short)."""
    found = figures.of(run)
    checks = evaluate(run.objectives, found)
    reasons = _reasons(run, checks)
    return Verdict(
        valid=not reasons,
        reasons=reasons,
        warnings=list(_warnings(run, found)),
        checks=checks,
        exit_code=_exit_code(reasons, checks),
        figures=found,
    )
