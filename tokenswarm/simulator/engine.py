"""The engine: from a request for tokens to jobs in a batch, with due times, counters and a log.

Knows nothing about sockets or the event loop: connections hand requests in and get bytes back,
the loop asks `run_due` to send what is due. Subtle: a place that becomes free is free from the
due time of the last token, not from the moment the loop got round to it, so that the capacity
is what the timing model says even when the loop is a little late.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from time import monotonic_ns, time_ns
from typing import Any

from tokenswarm.records import Outcome
from tokenswarm.simulator.answer import Answer, Ask, Protocol, RequestError, Shape
from tokenswarm.simulator.batch import Batch
from tokenswarm.simulator.fault_scripts import Delivery
from tokenswarm.simulator.faults import FAULTS, Canned, choose, scripted
from tokenswarm.simulator.job import DONE, HUNG, Job, Pace, Sink
from tokenswarm.simulator.metrics import Metrics
from tokenswarm.simulator.prefix_cache import PrefixCache, block_hashes
from tokenswarm.simulator.request_log import RequestLog
from tokenswarm.simulator.settings import Settings
from tokenswarm.simulator.tokenizing import Counted, Tokenizing
from tokenswarm.simulator.wire import head

NS_PER_MS = 1_000_000
SEND_BUDGET = 128
"""Sends between two looks at the sockets: at most 2 ms."""


class Engine:
    """All state of one simulated engine. on_done is told of each job that leaves it."""

    def __init__(
        self,
        settings: Settings,
        tokenizing: Tokenizing,
        log: RequestLog,
        on_done: Callable[[Job], None],
    ) -> None:
        self.settings = settings
        self.tokenizing = tokenizing
        self.log = log
        self.metrics = Metrics()
        self.batch: Batch[Job] = Batch(settings.max_batch, settings.kv_tokens)
        self.cache = PrefixCache(settings.block_size, settings.kv_tokens)
        self.active: set[Job] = set()
        self.first_arrival_ns: int | None = None
        self.floor_ns = 0
        self.max_running = 0
        self.created = int(time_ns() // 1_000_000_000)
        self._on_done = on_done
        self._numbers = itertools.count(1)
        self._turns = itertools.count()
        self._due: list[tuple[int, int, Job]] = []
        self._fault_rng = Random(f"faults {settings.seed}")
        self._length_rng = Random(f"lengths {settings.seed}")
        self._pace = Pace(
            int(settings.itl_ms * NS_PER_MS),
            int(settings.itl_ms_per_running * NS_PER_MS),
            settings.jitter,
            Random(f"jitter {settings.seed}"),
        )

    # --- arrivals ----------------------------------------------------------------------------

    def new_job(self, sink: Sink, api: Protocol, received_ns: int, arrived_ns: int) -> Job:
        """A job for a request that has just been read; stamps in both clocks."""
        if self.first_arrival_ns is None:
            self.first_arrival_ns = arrived_ns
        job = Job(next(self._numbers), sink, api, received_ns, arrived_ns, self.metrics)
        self.active.add(job)
        return job

    def pick_fault(self, job: Job, ask: Ask) -> Canned | None:
        """Decide on the fault of a request; the answer if the fault is one that replaces it."""
        name = ask.fault
        if name is None and self.settings.faults:
            name = choose(self.settings.faults, self._fault_rng)
        if name is None:
            return None
        if name not in FAULTS:
            raise RequestError(400, f"unknown fault {name!r}; known: {', '.join(FAULTS)}")
        job.fault = name
        fault = FAULTS[name]
        if fault.canned is None:
            return None
        canned = fault.canned(job.api, self.settings.retry_after_s)
        job.outcome = fault.outcome
        job.status = canned.status
        return canned

    def submit(self, job: Job, ask: Ask, counted: Counted) -> None:
        """Queue a counted request; RequestError when it cannot be served."""
        job.ask, job.counted = ask, counted
        output = self._output_tokens(ask, counted.tokens)
        needed = counted.tokens + output
        if not self.batch.can_ever_run(needed):
            raise RequestError(
                400,
                f"prompt and output need {needed} tokens of KV cache, the engine has "
                f"{self.settings.kv_tokens}.",
            )
        limit = self.settings.max_queue
        full = limit is not None and len(self.batch.waiting) >= limit
        if full and not self.batch.has_room(needed):
            raise RequestError(503, f"the queue is full: {limit} requests wait.")
        job.kv_tokens = needed
        job.answer = self._answer(job, ask, counted, output)
        job.wanted_tokens = job.answer.output_tokens
        if ask.stream and self.settings.early_headers:
            self._open(job, job.answer)
        self._start(self.batch.submit(job), job.arrived_ns)

    def finish_early(self, job: Job, status: int) -> None:
        """Log a request that was answered without a generation."""
        job.status = status
        if status >= 400 and job.outcome is Outcome.OK:
            job.outcome, job.fault = Outcome.HTTP_ERROR, None
        self._log(job)

    def client_closed(self, job: Job) -> None:
        """The client went away before its answer ended."""
        job.client_closed = True
        if job.outcome is Outcome.OK:
            job.outcome = Outcome.CANCELLED
        self._leave(job, monotonic_ns())

    # --- time --------------------------------------------------------------------------------

    def next_due(self) -> int | None:
        """When something is due (monotonic ns); None when nothing is."""
        return self._due[0][0] if self._due else None

    def run_due(self, now: int) -> None:
        """Send what is due by now, at most SEND_BUDGET pieces."""
        due_times, turns, pace, active = self._due, self._turns, self._pace, self.active
        for _ in range(SEND_BUDGET):
            if not due_times or due_times[0][0] > now:
                return
            due, _, job = heappop(due_times)
            if job not in active:
                continue
            following = job.step(due, pace)
            if following >= 0:
                heappush(due_times, (following, next(turns), job))
            elif following == DONE:
                self._leave(job, due)

    def stood_still(self, ns: int, until: int) -> None:
        """The whole engine stood still for ns: all that is planned comes that much later."""
        self._due = [(due + ns, turn, job) for due, turn, job in self._due]
        self.floor_ns = until

    def stop(self) -> None:
        """End what still runs and write its lines."""
        for job in sorted(self.active, key=lambda job: job.id):
            if job.outcome is Outcome.OK:
                job.outcome = Outcome.CANCELLED
            self._log(job)
        self.log.flush()

    # --- private -----------------------------------------------------------------------------

    def _output_tokens(self, ask: Ask, prompt_tokens: int) -> int:
        """How many tokens the answer gets; RequestError when they do not fit the model."""
        room = self.settings.max_model_len - prompt_tokens
        if room < 1 or (ask.max_tokens is not None and ask.max_tokens > room):
            limit, wanted = self.settings.max_model_len, ask.max_tokens or 1
            raise RequestError(
                400,
                f"This model's maximum context length is {limit} tokens. However, you requested "
                f"{prompt_tokens + wanted} tokens ({prompt_tokens} in the prompt, {wanted} in the "
                "completion). Please reduce the length of the prompt or completion.",
            )
        if ask.max_tokens is not None:
            return ask.max_tokens
        return min(room, self.settings.default_output_tokens)

    def _answer(self, job: Job, ask: Ask, counted: Counted, output: int) -> Answer:
        """The generation, with its end by EOS or stop string and its fault applied."""
        settings = self.settings
        answer = Answer(
            job.id, self.created, ask, self.tokenizing.vocabulary, counted.tokens, output
        )
        answer.shape = Shape(
            tokens_per_event=settings.tokens_per_event,
            coalesce=settings.coalesce,
            usage_each=ask.usage_each,
            whole=not ask.stream,
        )
        if ask.one_event:
            answer.shape.tokens_per_event = output
        if settings.eos_p and not ask.exact:
            draw = 1.0 - self._length_rng.random()
            drawn = 1 + int(math.log(draw) / math.log(1.0 - settings.eos_p))
            if drawn < output:
                answer.output_tokens, answer.finish = max(drawn, ask.min_tokens, 1), "stop"
        if ask.stop:
            answer.stop_at(ask.stop)
        return answer

    def _open(self, job: Job, answer: Answer) -> None:
        """Make the script, apply the fault, send the head of a stream."""
        settings = self.settings
        stall = settings.fault_stall_s
        delivery = Delivery(
            answer,
            job.api,
            # Seeding costs 15 us: only where something is drawn.
            Random(f"fault {settings.seed} {job.id}") if job.fault else self._fault_rng,
            None if stall is None else int(stall * 1e9),
            int(settings.fault_slow_ms * NS_PER_MS),
        )
        fault = FAULTS[job.fault] if job.fault else None
        if fault is not None and not fault.fits(answer):
            job.fault, fault = None, None
        if fault is not None:
            job.outcome = fault.outcome_for(answer)
            if fault.alter is not None:
                fault.alter(delivery)
        job.late_ns = delivery.late_ns
        job.tokens_per_event = answer.shape.tokens_per_event
        if answer.shape.whole:
            job.chunked = False
            job.tokens_per_event = max(1, answer.output_tokens)
            body = job.api.whole(answer)
            headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
            job.head = head(200, headers + _connection(job))
            job.take(iter([(body, answer.output_tokens, answer.output_tokens)]))
            return
        headers = [("content-type", "text/event-stream; charset=utf-8")]
        if delivery.close_delimited:
            job.keep_alive = False
        job.chunked = job.chunked and not delivery.close_delimited
        if job.chunked:
            headers.append(("transfer-encoding", "chunked"))
        else:
            job.keep_alive = False
        if delivery.gzip:
            headers.append(("content-encoding", "gzip"))
        first = head(200, headers + _connection(job))
        if settings.early_headers:
            job.sink.write(first)
        else:
            job.head = first
        job.take(scripted(delivery, fault))

    def _start(self, jobs: list[Job], at: int) -> None:
        """Begin these jobs at a monotonic time: look up their prefix, plan their first token."""
        pace, settings = self._pace, self.settings
        pace.running = self.batch.running
        self.max_running = max(self.max_running, pace.running)
        for job in jobs:
            answer, counted = job.answer, job.counted
            if answer is None or counted is None:
                raise RuntimeError(f"job {job.id} was queued before it was counted")
            job.running = True
            if settings.prefix_caching:
                size = settings.block_size * counted.units_per_token
                job.hashes = block_hashes(counted.units, size)
                answer.cached_tokens = self.cache.look_up(job.hashes, counted.tokens)
                self.cache.insert(job.hashes)
            if not (answer.ask.stream and settings.early_headers):
                self._open(job, answer)
            computed = counted.tokens - answer.cached_tokens
            prefill = settings.base_ms + settings.prefill_ms_per_token * computed
            prefill_ns = int(prefill * NS_PER_MS)
            if settings.jitter:
                prefill_ns = pace.jittered(prefill_ns)
            self.metrics.prompt_tokens += counted.tokens
            job.prepare()
            due = job.first_due(max(at, job.arrived_ns, self.floor_ns), prefill_ns, pace)
            if due != HUNG:
                heappush(self._due, (due, next(self._turns), job))

    def _leave(self, job: Job, at: int) -> None:
        """A job ends: log it, give its place to the next ones."""
        metrics, answer = self.metrics, job.answer
        self._log(job)
        if job.first_ns:
            metrics.ttft.record(job.first_ns - job.received_ns)
            metrics.e2e.record(job.last_ns - job.received_ns)
            if job.tokens_sent > 1:
                metrics.tpot.record((job.last_ns - job.first_ns) // (job.tokens_sent - 1))
        reason = "abort" if job.client_closed or answer is None else answer.finish
        metrics.finished[reason] += 1
        if job.running:
            job.running = False
            self._keep_output(job)
            started = self.batch.release(job)
        elif answer is not None:
            started = self.batch.withdraw(job)
        else:
            started = []
        self._pace.running = self.batch.running
        self._start(started, at)
        self._on_done(job)

    def _keep_output(self, job: Job) -> None:
        """Put the answer behind its prompt in the prefix cache: the next turn finds both."""
        answer, counted = job.answer, job.counted
        if not job.hashes or answer is None or counted is None or job.client_closed:
            return
        size = self.settings.block_size * counted.units_per_token
        rest = list(counted.units[len(job.hashes) * size :])
        if counted.units_per_token == 1:
            rest += [answer.token_id(i) for i in range(answer.output_tokens)]
        else:
            rest += answer.text().encode()
        self.cache.insert(block_hashes(rest, size, job.hashes[-1]))

    def _log(self, job: Job) -> None:
        self.active.discard(job)
        self.metrics.requests += 1
        self.metrics.events += job.events_sent
        self.log.write(_line(job))


def _line(job: Job) -> dict[str, Any]:
    """What the log says of a job; times in Unix seconds."""
    ask, counted, answer = job.ask, job.counted, job.answer
    return {
        "id": job.id,
        "path": job.path,
        "protocol": job.api.name,
        "model": ask.model if ask else None,
        "status": job.status or None,
        "outcome": str(job.outcome),
        "fault": job.fault,
        "prompt_tokens": counted.tokens if counted else None,
        "cached_tokens": answer.cached_tokens if answer else None,
        "max_tokens": ask.max_tokens if ask else None,
        "output_tokens": job.wanted_tokens,
        "tokens_sent": job.tokens_sent,
        "events_sent": job.events_sent,
        "received": job.received_ns / 1e9,
        "first_sent": job.first_ns / 1e9 if job.first_ns else None,
        "last_sent": job.last_ns / 1e9 if job.last_ns else None,
        "ended": time_ns() / 1e9,
        "longest_gap_s": job.longest_gap_ns / 1e9,
        "client_closed": job.client_closed,
        "request_id": job.request_id,
        "peer_port": job.sink.peer_port,
    }


def _connection(job: Job) -> list[tuple[str, str]]:
    return [] if job.keep_alive else [("connection", "close")]
