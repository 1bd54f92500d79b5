"""While a run goes on: once a second who is alive, which stage it is, how fast, and the exporters.

Reads what the inbox filled in; sends nothing but the word to end when the master itself failed.

The one subtle rule: silence counts only while somebody listened. When this process got no CPU,
no worker is blamed for it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

import gevent

from tokenswarm.clock import NS
from tokenswarm.distributed.crew import Crew
from tokenswarm.distributed.stages import Stages, stage_at
from tokenswarm.run import Exporter, Run

logger = logging.getLogger(__name__)
INTERVAL_S = 1.0
SILENCE_S = 20.0  # a worker that is alive but said nothing for so long counts as lost
GRACE_S = 60.0  # beyond load.drain, for the last reports
_YIELD_S = 0.01
_TURN_S = 0.001
_RATE_SAMPLES = 6


class Watch:
    """Watches one run from its instant 0. on_users(n) is told how many users there are."""

    def __init__(
        self,
        run: Run,
        crew: Crew,
        stages: Stages,
        exporters: Sequence[Exporter],
        say: Callable[[str], None],
        on_users: Callable[[int], None],
    ) -> None:
        self._run, self._crew, self._stages, self._exporters = run, crew, stages, exporters
        self._say, self._on_users = say, on_users
        self._sent = deque([(time.monotonic(), 0)], maxlen=_RATE_SAMPLES)

    def until_over(self) -> None:
        """Block until every worker is done, lost or long overdue, or we failed ourselves."""
        run = self._run
        until = time.monotonic() + INTERVAL_S
        try:
            while True:
                gevent.sleep(_YIELD_S)  # also when late: what workers said must be heard first
                while (left := until - time.monotonic()) > 0 and not all_done(run):
                    gevent.sleep(min(left, 0.05))
                late = time.monotonic() - until
                until += INTERVAL_S * (1 + max(0, int(late / INTERVAL_S)))
                if late > INTERVAL_S:
                    self._was_away(late)
                # One after the other, with a look at the sockets between them: in a run without
                # workers this loop is also the one that measures.
                for step in (self._check_workers, self._note_state, self._rates,
                             *(exporter.interval for exporter in self._exporters)):  # fmt: skip
                    step(run)
                    gevent.sleep(_TURN_S)
                if all_done(run) or _overdue(run):
                    break
        except Exception as e:
            logger.exception("The master failed while watching the run")
            run.fault("internal_error", f"master: {type(e).__name__}: {e}")
            self._crew.send("drain", {"run": run.id, "seconds": 0}, None)

    def _was_away(self, seconds: float) -> None:
        """Nobody could be heard for so long: that was no worker's silence."""
        for worker in self._run.workers.values():
            worker.reported_s += seconds

    def _check_workers(self, run: Run) -> None:
        for worker in run.workers.values():
            if worker.k is None or worker.final or worker.faults:
                continue
            silent = time.monotonic() - worker.reported_s
            if self._crew.gone(worker.id) or silent > SILENCE_S:
                if worker.state == "lost":
                    continue
                worker.state = "lost"
                self._say(f"worker {worker.id} ({worker.host}) is lost")
                self._stages.worker_lost()
            else:
                if worker.state == "lost":
                    self._say(f"worker {worker.id} ({worker.host}) is back")
                worker.state = "missing" if silent > 4 * INTERVAL_S else "running"

    def _note_state(self, run: Run) -> None:
        assert run.start_ns is not None
        now = time.time() - run.start_ns / NS
        index = stage_at(run, now)
        if index is None:
            run.state = "draining"
        else:
            run.state = "warmup" if run.stages[index].warmup else "running"
        self._on_users(run.merged.health.users)

    def _rates(self, run: Run) -> None:
        """Planned arrivals a second now, achieved ones over the last few intervals.

        Reports and intervals are out of phase, so one interval alone would jump.
        """
        assert run.start_ns is not None
        self._sent.append((time.monotonic(), run.totals().started))
        (then, before), (now, started) = self._sent[0], self._sent[-1]
        if now > then:
            run.achieved_rate = (started - before) / (now - then)
        offset = time.time() - run.start_ns / NS
        index = stage_at(run, offset)
        run.planned_rate = 0.0
        if run.workload.load.mode == "open" and index is not None:
            profile = run.workload.load.resolved_stages()[index].profile
            if profile is not None:
                run.planned_rate = float(profile.rate(offset - (run.stages[index].start_s or 0.0)))


def all_done(run: Run) -> bool:
    """Every worker that has a share has said its last word, or is lost."""
    return all(w.final or w.state == "lost" for w in run.workers.values() if w.k is not None)


def _overdue(run: Run) -> bool:
    """True when the last stage, the drain and the grace are over and a worker is still out."""
    assert run.start_ns is not None
    end = run.stages[-1].end_s
    if end is None:
        return False
    limit = end + run.workload.load.drain + GRACE_S
    return bool(time.time() - run.start_ns / NS > limit)
