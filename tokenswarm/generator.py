"""The load of one worker: its share of the plan, sent when it is due.

Closed loop: slot j of `users` belongs to worker j mod n; a slot sends its next request the moment
the one before ended (plus think time). Open loop: a dispatcher wakes at each due instant of this
worker's stripe and starts a greenlet for it, whatever became of those before. Locust's own users
are not used for this: its dispatcher can neither start users at an instant nor spread them over
workers as a plan wants (measured: bursts once a second).

The one subtle rule: everything about request i follows from (seed, i). In closed loop, index i
of a stage belongs to slot i mod users, hence to a worker; each stage has its own range of
indices, so that no two workers can ever send the same request.
"""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import gevent
from gevent.event import AsyncResult, Event
from gevent.lock import Semaphore
from gevent.pool import Group

from tokenswarm import arrivals, slo
from tokenswarm.apart import Apart
from tokenswarm.backends import Backend
from tokenswarm.clock import Alarm, LoopClock
from tokenswarm.feed import Feed, Item
from tokenswarm.measure import METRICS
from tokenswarm.offload import offload
from tokenswarm.records import Outcome, Prompt, Record
from tokenswarm.snapshot import Snapshot, StageStats
from tokenswarm.stream import Stream, settle
from tokenswarm.talks import Talk, maker, stage_sessions
from tokenswarm.transport import Transport
from tokenswarm.transport_balance import Balanced
from tokenswarm.transport_connection import Connection
from tokenswarm.transport_errors import TransportError
from tokenswarm.transport_held import Held

NS = 1_000_000_000
STAGE_INDICES = 10_000_000  # indices that a closed-loop stage without a known number may use
_AHEAD_S = 2.0
_MAX_AHEAD = 4096
_RETRY_PAUSE_S = 0.5  # doubled with every retry, where the server does not say how long
_MOST_RETRY_PAUSE_S = 30.0
_LONGEST_RETRY_PAUSE_S = 86_400.0  # whatever a server asks for
_BACK_OFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_POLL_S = 0.02
_SLICE_NS = 1_000_000
_NEXT_TURN_S = 1e-6
_BUSY_TURN_NS = 3_000_000
_MOST_UNSETTLED = 4096  # beyond it accounting takes the time it needs: memory stays bounded


def stage_bases(stages: Sequence[Any]) -> list[int]:
    """First index of each closed-loop stage: after the requests, or the reserve, of the others."""
    sizes = (s.requests if s.requests is not None else STAGE_INDICES for s in stages)
    return [0, *itertools.accumulate(sizes)][: len(stages)]


def slots_of(users: int, k: int, n: int) -> range:
    """The slots of worker k of n."""
    return range(k, users, n)


def closed_indices(base: int, requests: int | None, users: int, k: int, n: int) -> Iterator[int]:
    """Indices of a closed-loop stage for worker k of n, shared out as the slots are."""
    size = STAGE_INDICES if requests is None else requests
    mine = slots_of(users, k, n)
    for block in range(0, size if mine else 0, users):
        for slot in mine:
            if block + slot < size:
                yield base + block + slot


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
        self.workload, self.k, self.n = workload, k, n
        self.load = workload.load
        self.stages = self.load.resolved_stages()
        self.backend, self.source, self.transport = backend, source, transport
        self.objectives = [o for o in objectives if o.metric in METRICS]
        self.snapshot = Snapshot()
        self._streams: set[Stream] = set()
        self._events = 0  # of answers that have ended
        self.clock = LoopClock()
        self.start_ns = 0
        self.stage = -1
        self.stopping = False
        self.in_flight = 0
        self.active_slots = 0
        self.error: BaseException | None = None
        self._count, self._redact = count, redact
        self._on_record, self._on_stage_done = on_record, on_stage_done
        self._requests = Group()
        self._settling = Group()
        self._unsettled: deque[tuple[Record, Stream, TransportError | None]] = deque()
        self._settler_wakes = Event()
        self._settler = gevent.spawn(self._settle_all)
        self._alarm = Alarm()
        self._feeds: dict[int, Feed] = {}
        self._entered: dict[int, AsyncResult] = {i: AsyncResult() for i in range(len(self.stages))}
        self._exhausted: set[int] = set()
        self._stop = Event()
        self._names_urls = len(workload.backend.urls) > 1
        self._places = transport if isinstance(transport, Balanced) else None
        if not workload.backend.sticky_sessions:
            self._places = None
        self._cut = Event()  # nothing in flight may go on
        self._retry = workload.retry
        self._id = secrets.token_hex(4).encode()  # two runs at a server must not share names
        self._names_requests = not any(
            name.lower() == "x-request-id" for name in workload.backend.headers
        )
        self._drain_until = math.inf
        self._bases = stage_bases(self.stages)
        self._in_sessions = self.load.mode == "closed" and hasattr(source, "session")
        self._talks: dict[int, Talk] = {}
        self._held: dict[int, Held] = {}  # connections of the slots' sessions
        self._apart = Apart(self._make)
        self._open_feed: Feed | None = None
        self._arrivals: Iterator[arrivals.Arrival] = iter(())
        limit = self.load.max_in_flight
        self._max_in_flight = None if limit is None else len(range(k, limit, n))
        # Open loop drops what is over the limit; a closed loop's users wait for each other.
        gated = limit is not None and self.load.mode == "closed"
        self._gate = Semaphore(max(1, self._max_in_flight or 0)) if gated else nullcontext()

    # -- before the run ------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the first requests ready. Raises BadInput when the plan cannot be made."""
        if self.load.mode == "open":
            mine = arrivals.stripe(arrivals.schedule(self.load, self.workload.seed), self.k, self.n)
            self._arrivals, ahead = itertools.tee(mine)
            rate = max((s.profile.highest(s.duration or 0.0) if s.profile else 100.0)
                       for s in self.stages)  # fmt: skip
            wanted = min(_MAX_AHEAD, int(rate * _AHEAD_S / self.n) + 16)
            self._open_feed = Feed(self._make, (a.index for a in ahead), wanted, self._apart)
            self._open_feed.wait_ready(wanted)
        else:
            feed = self._feed(0)
            feed.wait_ready(len(slots_of(self._users(0), self.k, self.n)) or 1)

    def _make(self, indices: Sequence[int]) -> list[Item]:
        """Prompts, without what was asked, and the requests that ask it."""
        prompts: list[Prompt] = self.source.prompts(indices)
        return [
            (replace(p, text=None, messages=None, token_ids=None), self.backend.build(p))
            for p in prompts
        ]

    def _users(self, stage: int) -> int:
        """Most users of a closed-loop stage."""
        return int(self.stages[stage].most_users)

    def _feed(self, stage: int) -> Feed:
        feed = self._feeds.get(stage)
        if feed is None:
            users = self._users(stage)
            requests = self.stages[stage].requests
            mine = len(slots_of(users, self.k, self.n))
            if self._in_sessions:
                sessions = stage_sessions(self.source, stage, requests, users, self.k, self.n)
                feed = Feed(maker(self.source, self.backend.build), sessions, mine + 4)
            else:
                indices = closed_indices(self._bases[stage], requests, users, self.k, self.n)
                feed = Feed(self._make, indices, min(_MAX_AHEAD, 2 * mine + 16), self._apart)
            self._feeds[stage] = feed
        return feed

    # -- the run -------------------------------------------------------------------------------

    def run(self, start_ns: int) -> None:
        """Send this worker's share, from start_ns on; returns when nothing is left to send.

        Requests may still be in flight then: see drain. Raises what preparing a request raised.
        """
        self.start_ns = start_ns
        first = 0
        if self.load.mode == "closed":
            first = len(slots_of(int(self.stages[0].users_at(0.0)), self.k, self.n))
        gevent.spawn(self.transport.connect_ahead, first)
        self._entered[0].set(start_ns)
        if self.load.mode == "open":
            self._dispatch()
        else:
            self._conduct()
        if self.error is not None:
            raise self.error

    def enter(self, stage: int, start_ns: int) -> None:
        """A stage after one that ended by requests begins at start_ns."""
        if not self._entered[stage].ready():
            self._entered[stage].set(start_ns)

    @property
    def live_tokens(self) -> int:
        """Token events read so far, long before their requests end."""
        return self._events + sum(len(s.event_ns) for s in self._streams)

    def stop(self) -> None:
        """Send nothing new from now on."""
        self.stopping = True
        self._stop.set()
        for entered in self._entered.values():
            if not entered.ready():
                entered.set(None)
        for feed in (*self._feeds.values(), *([self._open_feed] if self._open_feed else [])):
            feed.close()

    def drain(self, seconds: float) -> int:
        """Wait for requests in flight, at most so long; the rest is cancelled. Returns how many.

        hurry() may shorten the wait meanwhile.
        """
        self._drain_until = min(self._drain_until, time.monotonic() + seconds)
        while len(self._requests) and (left := self._drain_until - time.monotonic()) > 0:
            self._requests.join(timeout=min(left, 0.1))
        self._cut.set()
        cancelled = self.transport.cancel_all("still running when the run ended (load.drain)")
        self._requests.join(timeout=5)
        while self._unsettled:
            self._settler_wakes.set()
            gevent.sleep(0.001)
        self._settling.join(timeout=30)
        return cancelled

    def hurry(self, seconds: float) -> None:
        """Let requests in flight have at most so long from now on."""
        self._drain_until = min(self._drain_until, time.monotonic() + seconds)

    def close(self) -> None:
        """Free sockets and watchers."""
        self.stop()
        self._settler.kill(block=False)
        self._apart.close()
        for held in self._held.values():
            held.close()
        self.transport.close()
        self.clock.close()
        self._alarm.close()

    # -- closed loop ---------------------------------------------------------------------------

    def _conduct(self) -> None:
        """Go through the stages, starting slots as each begins."""
        slots: dict[int, gevent.Greenlet] = {}
        for index, stage in enumerate(self.stages):
            begin = self._entered[index].get()
            if begin is None or self.stopping:
                break
            self._alarm.wait_until(begin)
            self.stage = index
            for j in slots_of(self._users(index), self.k, self.n):
                if j not in slots or slots[j].ready():
                    slots[j] = self._spawn(self._slot, j, begin)
            if index + 1 < len(self.stages):
                self._feed(index + 1)
            if stage.duration is not None:
                end = begin + round(stage.duration * NS)
                if index + 1 < len(self.stages):
                    self.enter(index + 1, end)
                self._stop.wait(timeout=max(0.0, (end - time.time_ns()) / NS))
            elif not slots_of(self._users(index), self.k, self.n):
                self._exhaust(index, None)
        else:
            if self.stages[-1].duration is None:
                gevent.joinall([s for s in slots.values() if not s.ready()])
        self.stage = len(self.stages)
        self.stopping = True

    def _slot(self, j: int, due_ns: int) -> None:
        """One user: the next request the moment the one before ended."""
        failures = 0
        health = self.snapshot.health
        while not self.stopping:
            stage = self._stage_at(due_ns)
            if stage is None or not self._belongs(j, stage):
                return
            if not self._active(j, stage, due_ns):
                gevent.sleep(_POLL_S)
                due_ns = time.time_ns()
                continue
            asked_ns = time.monotonic_ns()
            item = self._next(j, stage)
            taken_ns = time.monotonic_ns()
            health.starved_ns += taken_ns - asked_ns
            if item is None:
                self._exhaust(stage, time.time_ns())
                return
            if self.stopping:
                return
            self.active_slots += 1
            try:
                with self._gate:
                    if self.stopping:
                        return
                    answer = self._issue(stage, item, due_ns, self._held_by(j))
            finally:
                self.active_slots -= 1
                health.slots_ns += time.monotonic_ns() - taken_ns
            if j in self._talks:
                self._talks[j].heard(answer.text)
                if j in self._held and not self._talks[j].goes_on:
                    self._held[j].close()
            pause = float(self.load.think_s(self.workload.seed, item[0].index))
            failures = 0 if answer.event_ns else failures + 1
            if failures:
                # a server that is gone must not be hammered, nor a disk filled with failures
                pause = max(pause, _BACK_OFF_S[min(failures, len(_BACK_OFF_S)) - 1])
            due_ns = time.time_ns()
            if pause:
                self._stop.wait(timeout=pause)
                due_ns += round(pause * NS)

    def _held_by(self, j: int) -> Held | None:
        if not self.load.sticky_connection:
            return None
        return self._held.setdefault(j, Held())

    def _next(self, j: int, stage: int) -> Item | None:
        """The next request of slot j: of the session it is in, else of the stage's feed."""
        try:
            if j in self._talks and (item := self._talks[j].next()) is not None:
                return item
        except Exception as e:  # noqa: BLE001 - ends the run; `run` raises it
            self.error = self.error or e
            self.stop()
            return None
        taken = self._take(self._feed(stage))
        if not isinstance(taken, Talk):
            return taken
        self._talks[j] = taken
        return taken.next()

    def _stage_at(self, instant_ns: int) -> int | None:
        """The stage that a request due now belongs to; None when the last one is over."""
        stage = max(self.stage, 0)
        while stage < len(self.stages):
            entered, duration = self._entered[stage], self.stages[stage].duration
            if duration is None or not entered.ready():
                return stage
            if entered.value is None:
                return None
            if instant_ns < entered.value + round(duration * NS):
                return stage
            stage += 1
        return None

    def _belongs(self, j: int, stage: int) -> bool:
        if j >= self._users(stage):
            return False
        # a user in the middle of a session goes on when there is no new one
        return stage not in self._exhausted or (j in self._talks and self._talks[j].goes_on)

    def _active(self, j: int, stage: int, instant_ns: int) -> bool:
        """Whether a ramp has reached slot j yet, or has left it behind."""
        entered = self._entered[stage]
        begin = entered.value if entered.ready() else None
        t = 0.0 if begin is None else max(0.0, (instant_ns - begin) / NS)
        return j < int(self.stages[stage].users_at(t))

    def _exhaust(self, stage: int, instant_ns: int | None) -> None:
        if stage not in self._exhausted:
            self._exhausted.add(stage)
            if instant_ns is not None and stage == len(self.stages) - 1:
                self.snapshot.exhausted_s = (instant_ns - self.start_ns) / NS
            self._on_stage_done(stage, instant_ns)

    # -- open loop -----------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Start every request of the stripe at its due instant, whatever the others do."""
        assert self._open_feed is not None
        for arrival in self._arrivals:
            item = self._take(self._open_feed)
            if item is None or self.stopping:
                break
            due_ns = self.start_ns + arrival.due_ns
            self._alarm.wait_until(due_ns)
            if self.stopping:
                break
            self.stage = arrival.stage
            # started but not yet sent ones count: a late dispatcher starts many in one turn
            if self._max_in_flight is not None and len(self._requests) >= self._max_in_flight:
                self.snapshot.stage(arrival.stage).dropped += 1
                continue
            self._spawn(self._issue, arrival.stage, item, due_ns)
        self.stage = len(self.stages)

    # -- one request ---------------------------------------------------------------------------

    def _spawn(self, function: Callable[..., Any], *arguments: Any) -> gevent.Greenlet:
        greenlet = self._requests.spawn(function, *arguments)
        greenlet.link_exception(self._broken)
        return greenlet

    def _broken(self, greenlet: gevent.Greenlet) -> None:
        """A fault of our own in a user's greenlet ends the run; `run` raises it."""
        self.error = self.error or greenlet.exception
        self.stop()

    def _take(self, feed: Feed) -> Any | None:
        try:
            return feed.take()
        except Exception as e:  # noqa: BLE001 - ends the run; `run` raises it
            self.error = self.error or e
            self.stop()
            return None

    def _issue(self, stage: int, item: Item, due_ns: int, held: Held | None = None) -> Stream:
        """Send one request and wait for its answer.

        Accounting for it is left to the settler, so that a user's next request leaves at once.
        """
        prompt, _ = item
        stats = self.snapshot.stage(stage)
        stats.started += 1
        stream, failure, connection, retries = self._exchange(item, stats, held)
        record = Record(
            index=prompt.index,
            stage=stage,
            due_ns=due_ns,
            due_offset_ns=due_ns - self.start_ns,
            outcome=Outcome.INTERNAL_ERROR,
            warmup=self.stages[stage].warmup,
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
        self._unsettled.append((record, stream, failure))
        self._settler_wakes.set()
        return stream

    def _exchange(
        self, item: Item, stats: StageStats, held: Held | None
    ) -> tuple[Stream, TransportError | None, Connection, int]:
        """Send a request, and once more while the server is busy and the workload wants that."""
        prompt, request = item
        transport: Transport | Balanced = self.transport
        if self._places is not None and prompt.session is not None:
            transport = self._places.of_session(prompt.session)
        for retries in itertools.count():
            self.in_flight += 1
            stream, failure = Stream(self.backend, self.clock), None
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

    # -- accounting ----------------------------------------------------------------------------

    def _settle_all(self) -> None:
        """The settler: account for finished requests, in slices between which sockets are read.

        Many answers may end at the same time; accounting for all of them at once would let
        tokens of the others pile up unread.
        """
        while True:
            self._settler_wakes.wait()
            slice_ends = time.monotonic_ns() + _SLICE_NS
            while self._unsettled:
                if (
                    self.clock.last_turn_ns > _BUSY_TURN_NS
                    and len(self._unsettled) < _MOST_UNSETTLED
                ):
                    gevent.sleep(_NEXT_TURN_S)  # sockets wait: what has ended can wait longer
                    slice_ends = time.monotonic_ns() + _SLICE_NS
                    continue
                try:
                    self._account(*self._unsettled.popleft())
                except Exception as e:  # noqa: BLE001 - ends the run, told by `run`; never hangs it
                    self.error = self.error or e
                    self.stop()
                if time.monotonic_ns() > slice_ends and len(self._unsettled) < _MOST_UNSETTLED:
                    # not 0: that would come back before the loop has looked at its sockets
                    gevent.sleep(_NEXT_TURN_S)
                    slice_ends = time.monotonic_ns() + _SLICE_NS
            self._settler_wakes.clear()

    def _account(self, record: Record, stream: Stream, failure: TransportError | None) -> None:
        stream.end_of_body()
        if self._count is not None and stream.usage is None and stream.event_ns:
            # tokenising the answer takes milliseconds: not on the loop
            self._settling.spawn(self._settle_later, record, stream, failure)
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
        exact = self.workload.prompts.exact_output
        settle(record, stream, failure, exact, count, self._redact)
        self.snapshot.add(record, self.start_ns)
        stats = self.snapshot.stage(record.stage)
        stats.batched_reads += stream.batched_reads
        stats.judge(record, self.objectives, self.stages[record.stage].name)
        self._on_record(record)
