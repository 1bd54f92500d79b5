"""The settler: accounts for requests that have ended, while nothing else wants the loop.

Completes each record from its answer, counts it in the snapshot, judges it by the objectives and
hands it on, once.

The one subtle rule: many answers may end at the same time, and accounting for all of them at
once would let tokens of the others pile up unread. It goes in slices, between which sockets are
read, and waits while the loop's turns are long.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import gevent
from gevent.event import Event
from gevent.pool import Group

from tokenswarm import slo
from tokenswarm.clock import LoopClock
from tokenswarm.generator_course import Course
from tokenswarm.generator_share import Share
from tokenswarm.measure import METRICS
from tokenswarm.offload import offload
from tokenswarm.records import Record
from tokenswarm.snapshot import Snapshot
from tokenswarm.stream import Stream
from tokenswarm.stream_settle import settle
from tokenswarm.transport_errors import TransportError

_SLICE_NS = 1_000_000
_NEXT_TURN_S = 1e-6
_BUSY_TURN_NS = 3_000_000
_MOST_UNSETTLED = 4096  # beyond it accounting takes the time it needs: memory stays bounded


class Settler:
    """count counts the tokens of an answer without usage; on_record gets every record once."""

    def __init__(
        self,
        share: Share,
        course: Course,
        snapshot: Snapshot,
        clock: LoopClock,
        objectives: Sequence[slo.Objective],
        count: Callable[[str], int] | None,
        redact: Callable[[str], str],
        on_record: Callable[[Record], None],
    ) -> None:
        self._share, self._course = share, course
        self._snapshot, self._clock = snapshot, clock
        self._objectives = [o for o in objectives if o.metric in METRICS]
        self._count, self._redact, self._on_record = count, redact, on_record
        self._counting = Group()
        self._ended: deque[tuple[Record, Stream, TransportError | None]] = deque()
        self._wakes = Event()
        self._greenlet = gevent.spawn(self._settle_all)

    def add(self, record: Record, stream: Stream, failure: TransportError | None) -> None:
        """A request has ended; it is accounted for soon."""
        self._ended.append((record, stream, failure))
        self._wakes.set()

    def finish(self) -> None:
        """Wait until everything that ended is accounted for."""
        while self._ended:
            self._wakes.set()
            gevent.sleep(0.001)
        self._counting.join(timeout=30)

    def close(self) -> None:
        """End the greenlet."""
        self._greenlet.kill(block=False)

    def _settle_all(self) -> None:
        while True:
            self._wakes.wait()
            slice_ends = time.monotonic_ns() + _SLICE_NS
            while self._ended:
                if self._clock.last_turn_ns > _BUSY_TURN_NS and len(self._ended) < _MOST_UNSETTLED:
                    gevent.sleep(_NEXT_TURN_S)  # sockets wait: what has ended can wait longer
                    slice_ends = time.monotonic_ns() + _SLICE_NS
                    continue
                try:
                    self._account(*self._ended.popleft())
                except Exception as e:  # noqa: BLE001 - told by Generator.run; never hangs it
                    self._course.fail(e)
                if time.monotonic_ns() > slice_ends and len(self._ended) < _MOST_UNSETTLED:
                    # not 0: that would come back before the loop has looked at its sockets
                    gevent.sleep(_NEXT_TURN_S)
                    slice_ends = time.monotonic_ns() + _SLICE_NS
            self._wakes.clear()

    def _account(self, record: Record, stream: Stream, failure: TransportError | None) -> None:
        stream.end_of_body()
        if self._count is not None and stream.usage is None and stream.event_ns:
            # tokenising the answer takes milliseconds: not on the loop
            self._counting.spawn(self._settle_later, record, stream, failure)
        else:
            self._settle(record, stream, failure, None)

    def _settle_later(self, record: Record, stream: Stream, failure: TransportError | None) -> None:
        assert self._count is not None
        n: int = offload(self._count, stream.text)
        self._settle(record, stream, failure, lambda _: n)

    def _settle(
        self,
        record: Record,
        stream: Stream,
        failure: TransportError | None,
        count: Callable[[str], int] | None,
    ) -> None:
        exact = self._share.workload.prompts.exact_output
        settle(record, stream, failure, exact, count, self._redact)
        self._snapshot.add(record, self._course.start_ns)
        stats = self._snapshot.stage(record.stage)
        stats.batched_reads += stream.batched_reads
        stats.judge(record, self._objectives, self._share.stages[record.stage].name)
        self._on_record(record)
