"""What a run knows so far: counted on a worker, carried as plain numbers, merged on the master.

A snapshot is cumulative: it holds everything since the run began, never a difference. The
master keeps the latest one of each worker and adds them up, so a report that is lost, repeated
or late changes nothing. Nothing here knows where a snapshot comes from or goes to, and this
module does no I/O.

The one subtle rule: there is no second truth. Summary, Prometheus, SLOs, live table and report
all read a Snapshot; none of them counts for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tokenswarm import slo
from tokenswarm.histogram import Histogram
from tokenswarm.measure import METRICS, values
from tokenswarm.records import Outcome, Record
from tokenswarm.snapshot_series import Series

_KEPT_TEXTS = 20  # error texts kept for each outcome; the rest is counted under OTHER_TEXTS
_KEPT_DIFFERENCES = 50
OTHER_TEXTS = "(other texts)"

_STAGE_COUNTERS = (
    "started", "ended", "dropped", "lost", "prompt_tokens", "output_tokens", "output_chars",
    "events", "reads", "batched_reads", "coalesced_reads", "unstamped_reads",
    "compared", "exact", "good", "source_differs", "retries", "retry_wait_ns",
    "reconnected",
)  # fmt: skip


@dataclass(slots=True)
class StageStats:
    """Counts of one stage of the plan; all of them only ever rise.

    started counts requests sent (every attempt, failed connects included), ended those whose
    outcome is known: started = ended + in flight. dropped arrivals were never sent. lost ones
    are filled in by the master for a worker that died. compared and exact count responses whose
    prompt_tokens the server gave, and those that were as asked. good requests met every
    per-request SLO. Of the reads that carried tokens, batched ones brought several events while
    the loop was on time (the server batches), coalesced ones while it lagged (our doing).
    """

    started: int = 0
    ended: int = 0
    dropped: int = 0
    lost: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    output_chars: int = 0
    events: int = 0
    reads: int = 0
    batched_reads: int = 0
    coalesced_reads: int = 0
    unstamped_reads: int = 0
    compared: int = 0
    exact: int = 0
    good: int = 0
    source_differs: int = 0
    retries: int = 0
    retry_wait_ns: int = 0
    reconnected: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    slo_evaluated: Counter[str] = field(default_factory=Counter)
    slo_met: Counter[str] = field(default_factory=Counter)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    by_url: Counter[tuple[str, str]] = field(default_factory=Counter)
    differences: Counter[int] = field(default_factory=Counter)

    def histogram(self, name: str) -> Histogram:
        """The histogram of a metric of measure.METRICS, made when first asked for."""
        found = self.histograms.get(name)
        if found is None:
            found = self.histograms[name] = Histogram(METRICS[name].bounds)
        return found

    def add(self, record: Record) -> None:
        """Count a request whose outcome is known."""
        self.ended += 1
        self.outcomes[record.outcome.value] += 1
        self.prompt_tokens += record.prompt_tokens
        self.output_tokens += record.output_tokens or 0
        self.output_chars += record.output_chars
        self.events += len(record.event_ns)
        self.reads += record.reads
        self.coalesced_reads += record.coalesced_reads
        self.unstamped_reads += record.unstamped_reads
        self.retries += record.retries
        self.reconnected += record.reconnected
        if record.url is not None:
            self.add_url(record.url, record)
        if record.error is not None:
            self.add_error(record.outcome, record.error)
        if record.prompt_tokens_source == "usage" and record.prompt_tokens_expected is not None:
            self.add_comparison(record.prompt_tokens - record.prompt_tokens_expected)
        is_ok = record.outcome is Outcome.OK
        for name, metric in METRICS.items():
            value = metric.function(record) if is_ok or metric.failed else None
            if type(value) is int and value >= 0:  # nearly all, and once a request for each
                self.histogram(name).record(value)
            elif value is not None and (samples := values(record, metric)):
                self.histogram(name).record_all(samples)

    def judge(self, record: Record, objectives: Iterable[slo.Objective], stage: str) -> None:
        """Count a request of a stage against every objective on a latency that speaks of it.

        That gives exact shares under an SLO. A request that was cancelled with the run is not
        judged. A metric that is not defined for an answer (TPOT of a single token) says nothing
        of it, good or bad.
        """
        if record.outcome is Outcome.CANCELLED:
            return
        good, judged = record.outcome is Outcome.OK, False
        for objective in objectives:
            metric = METRICS.get(objective.metric)
            if metric is None or objective.stage not in (None, stage):
                continue
            met = [slo.met(objective, v / metric.scale) for v in values(record, metric)]
            if met or record.outcome is not Outcome.OK:
                self.slo_evaluated[objective.key] += max(1, len(met))
                self.slo_met[objective.key] += sum(met)
            if objective.per_request:
                judged = True
                good = good and all(met)
        self.good += judged and good

    def add_error(self, outcome: Outcome, text: str) -> None:
        """Count an error text; only the first few different ones of an outcome are kept."""
        key = (outcome.value, text)
        if key not in self.errors and sum(k[0] == outcome for k in self.errors) >= _KEPT_TEXTS:
            key = (outcome.value, OTHER_TEXTS)
        self.errors[key] += 1

    def add_url(self, url: str, record: Record) -> None:
        """Count the request for the one of several servers that answered it."""
        self.by_url[url, record.outcome.value] += 1
        self.by_url[url, "output_tokens"] += record.output_tokens or 0
        for value in values(record, METRICS["ttft_s"]):
            self.by_url[url, "ttft_ns"] += value

    def add_comparison(self, difference: int) -> None:
        """Count what the server's prompt_tokens were, minus what was asked."""
        self.compared += 1
        self.exact += difference == 0
        if difference in self.differences or len(self.differences) < _KEPT_DIFFERENCES:
            self.differences[difference] += 1

    @property
    def due(self) -> int:
        """Requests that the plan wanted by now: sent + dropped + lost."""
        return self.started + self.dropped + self.lost

    @property
    def in_flight(self) -> int:
        """Requests sent whose outcome is not known yet."""
        return self.started - self.ended

    @property
    def ok(self) -> int:
        """Requests with outcome ok."""
        return self.outcomes[Outcome.OK.value]

    @property
    def failed(self) -> int:
        """Requests sent that ended neither ok nor cancelled with the run."""
        return self.ended - self.ok - self.outcomes[Outcome.CANCELLED.value]

    @property
    def error_ratio(self) -> float | None:
        """(failed + dropped) / due, without cancelled; None when nothing was due."""
        due = self.due - self.outcomes[Outcome.CANCELLED.value]
        return (self.failed + self.dropped) / due if due else None

    def merge(self, other: StageStats) -> None:
        """Add another worker's, or another stage's, counts."""
        for name in _STAGE_COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.outcomes.update(other.outcomes)
        self.slo_evaluated.update(other.slo_evaluated)
        self.slo_met.update(other.slo_met)
        self.errors.update(other.errors)
        self.by_url.update(other.by_url)
        self.differences.update(other.differences)
        for name, histogram in other.histograms.items():
            self.histogram(name).merge(histogram)

    def to_wire(self) -> dict[str, Any]:
        """Plain numbers, texts, lists and dicts with text keys."""
        return {
            "n": [getattr(self, name) for name in _STAGE_COUNTERS],
            "outcomes": dict(self.outcomes),
            "evaluated": dict(self.slo_evaluated),
            "met": dict(self.slo_met),
            "errors": [[*key, count] for key, count in self.errors.items()],
            "urls": [[*key, count] for key, count in self.by_url.items()],
            "differences": [list(pair) for pair in self.differences.items()],
            "h": {name: h.to_wire() for name, h in self.histograms.items()},
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> StageStats:
        """The inverse of to_wire. Raises KeyError or ValueError on anything else."""
        return cls(
            **dict(zip(_STAGE_COUNTERS, wire["n"], strict=True)),
            outcomes=Counter(wire["outcomes"]),
            slo_evaluated=Counter(wire["evaluated"]),
            slo_met=Counter(wire["met"]),
            errors=Counter({(outcome, text): n for outcome, text, n in wire["errors"]}),
            by_url=Counter({(url, name): n for url, name, n in wire["urls"]}),
            differences=Counter({int(d): n for d, n in wire["differences"]}),
            histograms={
                name: Histogram.from_wire(h, METRICS[name].bounds) for name, h in wire["h"].items()
            },
        )


@dataclass(slots=True)
class Health:
    """How the generator itself fares on one worker.

    cpu is the process's CPU time over wall time since the last report (1.0 = one core), lag a
    histogram in ns of how late a 10 ms timer fired, steps those of the wall clock against the
    monotonic one, in ns. slots_ns is the time that closed-loop users had a request in flight,
    starved_ns the time that they waited for their next one to be prepared.
    """

    cpu: float = 0.0
    cpu_max: float = 0.0
    rss_bytes: int = 0
    lag: Histogram = field(default_factory=Histogram)
    steps: list[int] = field(default_factory=list)
    users: int = 0
    in_flight: int = 0
    slots_ns: int = 0
    starved_ns: int = 0

    def to_wire(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "cpu": self.cpu, "cpu_max": self.cpu_max, "rss": self.rss_bytes,
            "lag": self.lag.to_wire(), "steps": self.steps,
            "users": self.users, "in_flight": self.in_flight,
            "slots_ns": self.slots_ns, "starved_ns": self.starved_ns,
        }  # fmt: skip

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Health:
        """The inverse of to_wire."""
        return cls(
            wire["cpu"], wire["cpu_max"], wire["rss"], Histogram.from_wire(wire["lag"]),
            list(wire["steps"]), wire["users"], wire["in_flight"],
            wire["slots_ns"], wire["starved_ns"],
        )  # fmt: skip


@dataclass(slots=True)
class Snapshot:
    """Everything one worker, or the whole run, has counted so far.

    live_tokens counts token events as they are read, long before their request ends: for the
    live view only. exhausted_s is when a slot of this worker first found no more requests to
    send (seconds since the plan's start), None before that. records is the number of request
    records written. first_sent_s and last_event_s are when the first request was sent and the
    last one ended, seconds since the plan's start. series travels only with the last snapshot
    of a run.
    """

    stages: list[StageStats] = field(default_factory=list)
    health: Health = field(default_factory=Health)
    series: Series = field(default_factory=Series)
    live_tokens: int = 0
    exhausted_s: float | None = None
    records: int = 0
    first_sent_s: float | None = None
    last_event_s: float | None = None

    def stage(self, index: int) -> StageStats:
        """Counts of stage index, made when first asked for."""
        while len(self.stages) <= index:
            self.stages.append(StageStats())
        return self.stages[index]

    def add(self, record: Record, start_ns: int) -> None:
        """Count a request whose outcome is known. start_ns is the plan's instant 0."""
        self.stage(record.stage).add(record)
        self.series.add(record, start_ns)
        self.records += 1
        if record.sent_ns is not None:
            sent_s = (record.sent_ns - start_ns) / 1e9
            self.first_sent_s = min(
                sent_s, sent_s if self.first_sent_s is None else self.first_sent_s
            )
        if record.end_ns is not None:
            end_s = (record.end_ns - start_ns) / 1e9
            self.last_event_s = max(
                end_s, end_s if self.last_event_s is None else self.last_event_s
            )

    def total(self, indices: Iterable[int] | None = None) -> StageStats:
        """Counts of all stages, or of some, added up into a new StageStats."""
        total = StageStats()
        for index in range(len(self.stages)) if indices is None else indices:
            if index < len(self.stages):
                total.merge(self.stages[index])
        return total

    def mark(self) -> tuple[object, ...]:
        """Something that is another whenever this snapshot has counted anything more."""
        counts = [(s.started, s.ended, s.dropped, s.lost) for s in self.stages]
        health = (self.health.users, self.health.in_flight)
        return id(self), counts, self.live_tokens, self.records, health, self.exhausted_s

    def merge(self, other: Snapshot) -> None:
        """Add another worker's snapshot; health is kept by worker and not merged here."""
        for index, stats in enumerate(other.stages):
            self.stage(index).merge(stats)
        self.series.merge(other.series)
        self.health.users += other.health.users
        self.health.in_flight += other.health.in_flight
        self.live_tokens += other.live_tokens
        self.records += other.records
        for name, choose in (("exhausted_s", min), ("first_sent_s", min), ("last_event_s", max)):
            mine, theirs = getattr(self, name), getattr(other, name)
            known = [v for v in (mine, theirs) if v is not None]
            setattr(self, name, choose(known) if known else None)

    def to_wire(self, with_series: bool = False) -> dict[str, Any]:
        """Plain data for msgpack or JSON."""
        return {
            "stages": [s.to_wire() for s in self.stages],
            "health": self.health.to_wire(),
            "series": self.series.to_wire() if with_series else None,
            "live_tokens": self.live_tokens,
            "exhausted_s": self.exhausted_s,
            "records": self.records,
            "first_sent_s": self.first_sent_s,
            "last_event_s": self.last_event_s,
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Snapshot:
        """The inverse of to_wire. Raises KeyError, TypeError or ValueError on anything else."""
        return cls(
            stages=[StageStats.from_wire(s) for s in wire["stages"]],
            health=Health.from_wire(wire["health"]),
            series=Series.from_wire(wire["series"]) if wire["series"] else Series(),
            live_tokens=wire["live_tokens"],
            exhausted_s=wire["exhausted_s"],
            records=wire["records"],
            first_sent_s=wire["first_sent_s"],
            last_event_s=wire["last_event_s"],
        )


def merged(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The sum of snapshots, as a new one."""
    total = Snapshot()
    for snapshot in snapshots:
        total.merge(snapshot)
    return total
