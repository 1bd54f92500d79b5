"""One request of a generator: sent, its answer awaited, sent again while the server is busy.

Knows the transport and retries; why a request is sent now, and what becomes of its record, is
others' business.

The one subtle rule: accounting for an answer is left to the settler, so that a user's next
request leaves at once.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable

from gevent.event import Event

from tokenswarm.backends import Backend
from tokenswarm.clock import LoopClock
from tokenswarm.feed import Item
from tokenswarm.generator_course import Course
from tokenswarm.generator_share import Share
from tokenswarm.pace import Pace
from tokenswarm.records import Outcome, Record
from tokenswarm.snapshot import Snapshot, StageStats
from tokenswarm.stream import Stream
from tokenswarm.transport import Transport
from tokenswarm.transport_balance import Balanced
from tokenswarm.transport_connection import Connection
from tokenswarm.transport_errors import TransportError
from tokenswarm.transport_held import Held

_RETRY_PAUSE_S = 0.5  # doubled with every retry, where the server does not say how long
_MOST_RETRY_PAUSE_S = 30.0
_LONGEST_RETRY_PAUSE_S = 86_400.0  # whatever a server asks for

Settle = Callable[[Record, Stream, TransportError | None], None]


class Sender:
    """Sends requests one by one; done gets each one's record, answer and failure when it ended."""

    def __init__(
        self,
        share: Share,
        course: Course,
        backend: Backend,
        transport: Transport | Balanced,
        snapshot: Snapshot,
        clock: LoopClock,
        pace: Pace,
        done: Settle,
    ) -> None:
        self.in_flight = 0
        self._pace = pace
        self._share, self._course = share, course
        self._backend, self._transport = backend, transport
        self._snapshot, self._clock, self._done = snapshot, clock, done
        self._streams: set[Stream] = set()
        self._events = 0  # of answers that have ended
        self._cut = Event()  # nothing in flight may go on
        self._retry = share.workload.retry
        self._names_urls = len(share.workload.backend.urls) > 1
        self._places = transport if isinstance(transport, Balanced) else None
        if not share.workload.backend.sticky_sessions:
            self._places = None
        self._id = secrets.token_hex(4).encode()  # two runs at a server must not share names
        self._names_requests = not any(
            name.lower() == "x-request-id" for name in share.workload.backend.headers
        )

    @property
    def live_tokens(self) -> int:
        """Token events read so far, long before their requests end."""
        return self._events + sum(len(s.event_ns) for s in self._streams)

    def cut(self, why: str) -> int:
        """End what is in flight, or waits to retry, as cancelled; how many were in flight."""
        self._cut.set()
        return self._transport.cancel_all(why)

    def issue(self, stage: int, item: Item, due_ns: int, held: Held | None = None) -> Stream | None:
        """Send one request and wait for its answer. held: its session's own connection.

        None when the run was cut before it could be sent.
        """
        self._pace.wait()
        if self._cut.is_set():
            return None
        prompt, _ = item
        stats = self._snapshot.stage(stage)
        stats.started += 1
        stream, failure, connection, retries = self._exchange(item, stats, held)
        record = Record(
            index=prompt.index,
            stage=stage,
            due_ns=due_ns,
            due_offset_ns=due_ns - self._course.start_ns,
            outcome=Outcome.INTERNAL_ERROR,
            warmup=self._share.stages[stage].warmup,
            sent_ns=connection.sent_ns,
            connect_ns=connection.connect_ns,
            upload_ns=connection.upload_ns,
            prompt_tokens=prompt.input_tokens or 0,
            prompt_tokens_expected=prompt.input_tokens,
            output_tokens_expected=prompt.output_tokens,
            session=prompt.session,
            turn=prompt.turn,
            retries=retries,
            reconnected=connection.is_second,
            url=connection.target.url if self._names_urls else None,
        )
        self._done(record, stream, failure)
        return stream

    def _exchange(
        self, item: Item, stats: StageStats, held: Held | None
    ) -> tuple[Stream, TransportError | None, Connection, int]:
        """Send a request, and once more while the server is busy and the workload wants that."""
        prompt, request = item
        transport: Transport | Balanced = self._transport
        if self._places is not None and prompt.session is not None:
            transport = self._places.of_session(prompt.session)
        for retries in itertools.count():
            self.in_flight += 1
            stream, failure = Stream(self._backend, self._clock), None
            self._streams.add(stream)
            try:
                connection = transport.send(
                    request.path,
                    request.body,
                    stream,
                    more=self._id_header(prompt.index, retries),
                    held=held,
                )
            except TransportError as e:
                failure, connection = e, e.connection  # type: ignore[attr-defined]
                stream.given_up_ns = time.time_ns()
            finally:
                self.in_flight -= 1
                self._streams.discard(stream)
                self._events += len(stream.event_ns)
            if not stream.throttled or retries >= self._retry.max:
                break
            waited_ns, is_whole = self._wait_to_retry(stream, retries)
            stats.retry_wait_ns += waited_ns
            if not is_whole:
                failure = TransportError(Outcome.CANCELLED, "waiting to retry when the run ended")
                break
        return stream, failure, connection, retries

    def _id_header(self, index: int, retries: int) -> bytes:
        """A header by which the server's log and ours can be put side by side."""
        if not self._names_requests:
            return b""
        return b"X-Request-Id: %b-%d%b\r\n" % (
            self._id, index, b"-%d" % retries if retries else b""
        )  # fmt: skip

    def _wait_to_retry(self, stream: Stream, retries: int) -> tuple[int, bool]:
        """Wait as long as the server asks, or ever longer. ns waited, and whether to the end."""
        pause = stream.retry_after_s() if self._retry.honour_retry_after else None
        if pause is None:
            pause = min(_MOST_RETRY_PAUSE_S, _RETRY_PAUSE_S * 2 ** min(retries, 16))
        pause = min(pause, _LONGEST_RETRY_PAUSE_S)
        began = time.monotonic_ns()
        cut = self._cut.wait(timeout=pause)
        return time.monotonic_ns() - began, not cut
