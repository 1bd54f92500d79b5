"""One request on its way through the engine: its script, its due times, what was really sent.

Knows nothing about HTTP parsing, queues or the event loop; it writes to a Sink. Two clocks: due
times are CLOCK_MONOTONIC, so that a step of the wall clock moves nothing; stamps for the log are
CLOCK_REALTIME, taken just before the write. Subtle: `step` is the hot path (40,000 calls a
second): one script item and one write, looking one item ahead so that the end of a chunked body
travels with the last event.
"""

from __future__ import annotations

from random import Random
from time import monotonic_ns, time_ns
from typing import Any, Protocol

from tokenswarm.records import Outcome
from tokenswarm.simulator.answer import Answer, Ask, End, Piece, Raw, Script, Wait
from tokenswarm.simulator.answer import Protocol as Api
from tokenswarm.simulator.metrics import Metrics
from tokenswarm.simulator.tokenizing import Counted
from tokenswarm.simulator.wire import LAST_CHUNK, chunk

DONE = -1
HUNG = -2


class Sink(Protocol):
    """Where bytes go: a connection."""

    peer_port: int

    def write(self, data: bytes) -> None:
        """Send, or keep until the peer reads on."""
        ...

    def reset(self) -> None:
        """Close so that the peer sees a reset."""
        ...

    def cut(self) -> None:
        """Close in order, wherever the answer is, once everything is sent."""
        ...


class Pace:
    """How fast tokens come just now; shared by all jobs of an engine."""

    __slots__ = ("itl_ns", "jitter", "per_running_ns", "rng", "running")

    def __init__(self, itl_ns: int, per_running_ns: int, jitter: float, rng: Random) -> None:
        self.itl_ns = itl_ns
        self.per_running_ns = per_running_ns
        self.jitter = jitter
        self.rng = rng
        self.running = 0

    def gap_ns(self, steps: int) -> int:
        """Time for `steps` tokens of one request."""
        gap = steps * (self.itl_ns + self.per_running_ns * self.running)
        return self.jittered(gap) if self.jitter else gap

    def jittered(self, ns: int) -> int:
        """Ns times a factor from 1 - jitter to 1 + jitter."""
        return int(ns * (1 + self.jitter * (2 * self.rng.random() - 1)))


class Job:
    """Everything about one request from its arrival to its line in the log."""

    __slots__ = (
        "_next", "_script", "answer", "api", "arrived_ns", "ask", "chunked", "client_closed",
        "counted", "events_sent", "fault", "first_ns", "hashes", "head", "id", "keep_alive",
        "kv_tokens", "last_ns", "late_ns", "longest_gap_ns", "metrics", "outcome", "path",
        "received_ns", "request_id", "running", "sink", "status", "tokens_per_event", "tokens_sent",
        "wanted_tokens",
    )  # fmt: skip

    def __init__(
        self, number: int, sink: Sink, api: Api, received_ns: int, arrived_ns: int, metrics: Metrics
    ) -> None:
        self.id = number
        self.sink = sink
        self.api = api
        self.received_ns = received_ns
        self.arrived_ns = arrived_ns
        self.metrics = metrics
        self.ask: Ask | None = None
        self.answer: Answer | None = None
        self.counted: Counted | None = None
        self.fault: str | None = None
        self.outcome = Outcome.OK
        self.status = 200
        self.path = ""
        self.request_id: str | None = None
        self.keep_alive = True
        self.chunked = False
        self.head = b""
        self.kv_tokens = 0
        self.wanted_tokens = 0
        self.tokens_per_event = 1
        self.hashes: list[int] = []
        self.late_ns = 0
        self.running = False
        self.first_ns = 0
        self.last_ns = 0
        self.longest_gap_ns = 0
        self.tokens_sent = 0
        self.events_sent = 0
        self.client_closed = False
        self._script: Script = iter(())
        self._next: Piece | None = None

    def take(self, script: Script) -> None:
        """Hold the script; nothing of it is rendered before `prepare`."""
        self._script = script

    def prepare(self) -> None:
        """Send what needs no generation, an early role chunk; find the first paced piece."""
        script = self._script
        item = next(script, None)
        while isinstance(item, tuple) and not item[2]:
            following = next(script, None)
            self._emit(item[0], item[1], last=following is None)
            item = following
        while isinstance(item, Wait):
            self.late_ns += item.ns
            item = next(script, None)
        self._next = item if isinstance(item, tuple) else None

    def first_due(self, start: int, prefill_ns: int, pace: Pace) -> int:
        """When the first token is due if the engine begins at start; HUNG when never."""
        if self._next is None:
            return HUNG
        steps = self._next[2]
        more = pace.gap_ns(steps - 1) if steps > 1 else 0
        return start + prefill_ns + self.late_ns + more

    def step(self, due: int, pace: Pace) -> int:
        """Send the piece that is due and all that follow it at once.

        Returns when the next one is due, DONE after the last one, HUNG when nothing will follow.
        """
        item, script = self._next, self._script
        while item is not None:
            following = next(script, None)
            self._emit(item[0], item[1], last=following is None)
            if following.__class__ is not tuple:
                return self._turn(following, due, pace)
            item = following
            if item[2]:
                self._next = item
                return due + pace.gap_ns(item[2])
        return DONE

    def _emit(self, payload: bytes, tokens: int, *, last: bool) -> None:
        if self.chunked:
            payload = chunk(payload)
            if last:
                payload += LAST_CHUNK
        if self.head:
            payload, self.head = self.head + payload, b""
        now = time_ns()
        self.sink.write(payload)
        if not tokens:
            return
        events = 1 if tokens == 1 else -(-tokens // self.tokens_per_event)
        if self.first_ns:
            gap = now - self.last_ns
            self.metrics.itl.record(gap)
            if gap > self.longest_gap_ns:
                self.longest_gap_ns = gap
        else:
            self.first_ns = now
        self.last_ns = now
        self.metrics.generation_tokens += tokens
        self.tokens_sent += tokens
        self.events_sent += events

    def _turn(self, item: Any, due: int, pace: Pace) -> int:
        """What follows when the script does something other than send, or ends."""
        resume = due
        while isinstance(item, Wait):
            resume = max(resume, monotonic_ns()) + item.ns
            if item.shift:
                due += item.ns
            item = next(self._script, None)
            if item is None and self.chunked:
                self.sink.write(LAST_CHUNK)
        if isinstance(item, tuple):
            self._next = item
            return due + pace.gap_ns(item[2]) if item[2] else resume
        if isinstance(item, Raw):
            self.sink.write(item.data)
            self.sink.cut()
        if item is End.HANG:
            return HUNG
        if item is End.RESET:
            self.sink.reset()
        elif item is End.CUT:
            self.sink.cut()
        return DONE
