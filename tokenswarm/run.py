"""A run as its exporters see it: who takes part, what was planned, what is known so far.

The master (or the single process) fills a Run in and hands it to exporters and to the verdict;
they only read it. It knows nothing of Locust, of files or of how its numbers travelled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tokenswarm.snapshot import Snapshot, StageStats, merged

STATES = ("idle", "waiting", "warmup", "running", "draining", "done")
WORKER_STATES = ("ready", "running", "missing", "lost")


@dataclass(slots=True)
class Worker:
    """One worker of a run; k is its stripe of the plan, None for one that has no part in it."""

    id: str
    index: int
    pid: int | None = None
    host: str = ""
    state: str = "ready"
    k: int | None = None
    snapshot: Snapshot = field(default_factory=Snapshot)
    reported_s: float = 0.0
    final: bool = False
    records_received: int = 0
    prepared: bool = False
    faults: list[str] = field(default_factory=list)


@dataclass(slots=True)
class StageWindow:
    """One stage of the plan and when it took place, in seconds since the plan's start.

    end_s is planned for a stage that ends by duration, and known only afterwards for one that
    ends by a number of requests (None until then).
    """

    name: str
    warmup: bool
    start_s: float | None = None
    end_s: float | None = None
    users: int | None = None
    rate_per_s: float | None = None


@dataclass(slots=True)
class Run:
    """Everything about one run. Times are Unix seconds where not said otherwise."""

    id: str
    workload: Any  # tokenswarm.workload.Workload, which this layer must not import
    host: str
    out: Path | None = None
    state: str = "idle"
    started: float = 0.0
    start_ns: int | None = None  # the plan's instant 0, ns since the epoch
    ended: float | None = None
    stages: list[StageWindow] = field(default_factory=list)
    workers: dict[str, Worker] = field(default_factory=dict)
    objectives: list[Any] = field(default_factory=list)  # slo.Objective
    probe: dict[str, Any] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)  # (invalid_reasons code, detail)
    planned_requests: int | None = None  # of an open-loop plan, over all stages
    planned_rate: float = 0.0  # now
    achieved_rate: float = 0.0  # over the last interval
    server: dict[str, Any] | None = None  # the engine's own metrics, where scraped
    steady_state: dict[str, Any] | None = None  # what was discarded, see steady.py
    _merged: tuple[object, Snapshot, StageStats] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def merged(self) -> Snapshot:
        """The sum over all workers that ever reported, dead ones included; only to be read.

        Every exporter asks for it at every interval, and with 50 workers adding up takes
        0.1 s, so the sum is kept until a worker has counted something new.
        """
        state = [(w.reported_s, *w.snapshot.mark()) for w in self.workers.values()]
        if self._merged is None or self._merged[0] != state:
            snapshot = merged(w.snapshot for w in self.workers.values())
            self._merged = state, snapshot, snapshot.total()
        return self._merged[1]

    @property
    def measured(self) -> list[int]:
        """Indices of the stages that count: all but warm-up."""
        return [i for i, stage in enumerate(self.stages) if not stage.warmup]

    def fault(self, code: str, detail: str) -> None:
        """What makes the run invalid, once."""
        if (code, detail) not in self.faults:
            self.faults.append((code, detail))

    def window(self) -> tuple[float, float] | None:
        """The measured window in seconds since the plan's start; None before it is known.

        It ends when closed-loop concurrency first falls below `users` for want of new requests.
        """
        stages = [self.stages[i] for i in self.measured]
        if not stages or stages[0].start_s is None or stages[-1].end_s is None:
            return None
        return stages[0].start_s, stages[-1].end_s

    def totals(self) -> StageStats:
        """Counts over the whole run, warm-up included; only to be read."""
        _ = self.merged
        assert self._merged is not None
        return self._merged[2]


class Exporter(Protocol):
    """Where numbers go. All calls come from the master's loop and must not block for long."""

    def start(self, run: Run) -> None:
        """A run begins: its id, workload and folder are known."""

    def interval(self, run: Run) -> None:
        """About once a second while a run goes on."""

    def finish(self, run: Run, summary: dict[str, Any]) -> None:
        """A run ended and was judged; summary is what summary.json holds."""

    def close(self) -> None:
        """The process ends."""
