"""The load of one worker: its share of the plan, sent when it is due.

A Generator puts the parts together and is what a worker speaks to: prepare, run, drain. Closed
loop and open loop are in generator_closed.py and generator_open.py, one request in
generator_request.py, its accounting in generator_settle.py. Locust's own users are not used for
this: its dispatcher can neither start users at an instant nor spread them over workers as a plan
wants (measured: bursts once a second).

The one subtle rule: `run` returns when nothing is left to send, `drain` when nothing is in
flight; only then does the snapshot count every request that was started.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import gevent

from tokenswarm import slo
from tokenswarm.backends import Backend
from tokenswarm.clock import Alarm, LoopClock
from tokenswarm.generator_closed import ClosedLoop
from tokenswarm.generator_course import Course
from tokenswarm.generator_open import OpenLoop
from tokenswarm.generator_prepare import Preparation
from tokenswarm.generator_request import Sender
from tokenswarm.generator_settle import Settler
from tokenswarm.generator_share import Share
from tokenswarm.pace import Pace
from tokenswarm.records import Record
from tokenswarm.snapshot import Snapshot
from tokenswarm.transport import Transport
from tokenswarm.transport_balance import Balanced


class Generator:
    """Runs worker k of n's share of a workload; see the module docstring.

    source gives prompts, backend makes requests of them, transport sends them. on_record gets
    every record once, on_stage_done(stage, exhausted_ns) is called when this worker's share of
    a stage that ends by requests is used up.
    """

    def __init__(
        self,
        workload: Any,
        k: int,
        n: int,
        backend: Backend,
        source: Any,
        transport: Transport | Balanced,
        objectives: Sequence[slo.Objective],
        count: Callable[[str], int] | None,
        redact: Callable[[str], str],
        on_record: Callable[[Record], None],
        on_stage_done: Callable[[int, int | None], None],
    ) -> None:
        share = Share(workload, k, n)
        self.workload, self.load, self.stages = workload, share.load, share.stages
        self.transport = transport
        self.snapshot = Snapshot()
        self.clock = LoopClock()
        self._alarm = Alarm()
        self._drain_until = math.inf
        self._course = course = Course()
        self._preparation = Preparation(source, backend)
        self._settler = Settler(
            share, course, self.snapshot, self.clock, objectives, count, redact, on_record
        )
        self._pace = Pace(self.clock)
        self.sender = Sender(
            share, course, backend, transport, self.snapshot, self.clock, self._pace,
            self._settler.add,
        )  # fmt: skip
        parts = (share, course, self._preparation, self.sender, self.snapshot, self._alarm)
        self._loop: ClosedLoop | OpenLoop = (
            OpenLoop(*parts) if self.load.mode == "open" else ClosedLoop(*parts, on_stage_done)
        )
        course.at_stop.append(self._preparation.stop)

    @property
    def in_flight(self) -> int:
        """Requests that were sent and not answered yet."""
        return self.sender.in_flight

    @property
    def users(self) -> int:
        """Users with a request, or what stands for them in open loop."""
        return self._loop.users

    @property
    def live_tokens(self) -> int:
        """Token events read so far, long before their requests end."""
        return self.sender.live_tokens

    def prepare(self) -> None:
        """Make the first requests ready. Raises BadInput when the plan cannot be made."""
        self._loop.prepare()
        self._preparation.start(len(self.stages) > 1)

    def run(self, start_ns: int) -> None:
        """Send this worker's share, from start_ns on; returns when nothing is left to send.

        Requests may still be in flight then: see drain. Raises what preparing a request raised.
        """
        self._course.start_ns = start_ns
        gevent.spawn(self.transport.connect_ahead, self._loop.at_once)
        self._loop.run()
        if self._course.error is not None:
            raise self._course.error

    def enter(self, stage: int, start_ns: int) -> None:
        """A stage after one that ended by requests begins at start_ns."""
        self._loop.enter(stage, start_ns)

    def stop(self) -> None:
        """Send nothing new from now on."""
        self._course.stop()

    def drain(self, seconds: float) -> int:
        """Wait for requests in flight, at most so long; the rest is cancelled. Returns how many.

        hurry() may shorten the wait meanwhile.
        """
        requests = self._course.requests
        self.hurry(seconds)
        gevent.sleep(0)  # what was due is sent first: it had its time
        self._pace.wait()
        while len(requests) and (left := self._drain_until - time.monotonic()) > 0:
            requests.join(timeout=min(left, 0.1))
        cancelled = self.sender.cut("still running when the run ended (load.drain)")
        requests.join(timeout=5)
        self._settler.finish()
        return cancelled

    def hurry(self, seconds: float) -> None:
        """Let requests in flight have at most so long from now on."""
        self._drain_until = min(self._drain_until, time.monotonic() + seconds)

    def close(self) -> None:
        """Free sockets and watchers; what is still in flight, in a run given up, is cut."""
        self.stop()
        self.sender.cut("the run was given up")
        self._settler.close()
        self._preparation.close()
        self._loop.close()
        self._pace.close()
        self.transport.close()
        self.clock.close()
        self._alarm.close()
