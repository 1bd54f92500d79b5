"""One worker's share of the plan: which requests, when, and how the sending ends."""

import itertools
import time
from types import SimpleNamespace

import gevent
import httptools
import pytest
from gevent.event import Event
from socket_server import WHOLE, Server, answers

from tokenswarm import arrivals, backends, slo, workload
from tokenswarm.generator import Generator
from tokenswarm.generator_share import STAGE_INDICES, closed_indices, slots_of, stage_bases
from tokenswarm.records import BadInput, Outcome, Prompt
from tokenswarm.target import parse_url
from tokenswarm.transport import Transport
from tokenswarm.transport_answer import Timeouts
from tokenswarm.transport_errors import TransportError

NS = 1_000_000_000
HEAD = """
seed: 5
backend: {kind: openai-completions, model: m}
tokenizer: {source: tiktoken, path: cl100k_base}
prompts: {input_tokens: 8, output_tokens: 2}
"""


class Prompts:
    """A source of prompts that are their indices; from `short` on there are none."""

    def __init__(self, short=None):
        self.short = short

    def prompts(self, indices):
        if self.short is not None and max(indices) >= self.short:
            raise BadInput("prompts.path: too few")
        return [Prompt(i, 8, 2, text=str(i)) for i in indices]


class Wire:
    """A transport without sockets: every answer takes so long, and is the same."""

    def __init__(self, takes_s=0.001, failure=None):
        self.takes_s, self.failure = takes_s, failure
        self.in_flight = set()
        self.most = 0
        self.sent = 0

    def send(self, path, body, answer, more=b"", held=None):
        connection = SimpleNamespace(
            sent_ns=time.time_ns(), connect_ns=None, upload_ns=None, is_second=False
        )
        cancelled = Event()
        self.in_flight.add(cancelled)
        self.sent += 1
        self.most = max(self.most, len(self.in_flight))
        failure = self.failure
        if cancelled.wait(self.takes_s):
            failure = Outcome.CANCELLED
        self.in_flight.discard(cancelled)
        if failure is not None:
            error = TransportError(failure, "no")
            error.connection = connection
            raise error
        parser = httptools.HttpResponseParser(answer)
        answer.attach(parser)
        answer.read_ns = time.time_ns()
        parser.feed_data(WHOLE)
        answer.after_read(True)
        return connection

    def connect_ahead(self, n):
        pass

    def cancel_all(self, text):
        for cancelled in self.in_flight:
            cancelled.set()
        return len(self.in_flight)

    def close(self):
        pass


class Share:
    """A generator with its records and what it said about stages."""

    def __init__(self, load, k=0, n=1, wire=None, source=None, slos=None):
        self.records, self.done = [], []
        self.wire = wire or Wire()
        work = workload.parse(HEAD + load)
        self.generator = Generator(
            work, k, n, backends.make(work), source or Prompts(), self.wire,
            slo.parse_slos(slos or {}, work.load.mode), None, lambda text: text,
            self.records.append, lambda stage, at: self.done.append((stage, at)),
        )  # fmt: skip

    def run(self, drain=20.0, lead_s=0.0):
        self.generator.prepare()
        self.start_ns = time.time_ns() + round(lead_s * NS)
        try:
            self.generator.run(self.start_ns)
            self.cancelled = self.generator.drain(drain)
        finally:
            self.generator.close()
        return self

    @property
    def indices(self):
        return sorted(r.index for r in self.records)

    @property
    def stats(self):
        return self.generator.snapshot.total()


# -- indices and slots -------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("requests", "users"), [(1, 1), (20, 1), (20, 3), (21, 7), (5, 16), (50, 16)]
)
def test_the_workers_indices_are_disjoint_and_complete(requests, users, n):
    shares = [list(closed_indices(100, requests, users, k, n)) for k in range(n)]
    assert sorted(itertools.chain(*shares)) == list(range(100, 100 + requests))
    assert all(share == sorted(share) for share in shares)
    for k, share in enumerate(shares):
        assert {(i - 100) % users for i in share} <= set(slots_of(users, k, n))


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize("users", [1, 2, 6, 7, 64])
def test_the_workers_slots_are_disjoint_complete_and_even(users, n):
    slots = [list(slots_of(users, k, n)) for k in range(n)]
    assert sorted(itertools.chain(*slots)) == list(range(users))
    sizes = [len(s) for s in slots]
    assert max(sizes) - min(sizes) <= 1


def test_a_stage_without_a_number_never_runs_out():
    first = list(itertools.islice(closed_indices(0, None, 4, 1, 2), 4))
    assert first == [1, 3, 5, 7]
    assert max(closed_indices(0, None, 1000, 999, 1000)) < STAGE_INDICES


def test_a_worker_without_a_slot_has_no_index_and_finds_out_at_once():
    began = time.process_time()
    assert list(closed_indices(0, None, 1, 1, 2)) == []
    assert time.process_time() - began < 0.05


def test_the_stages_have_ranges_of_their_own():
    stages = [SimpleNamespace(requests=r) for r in (10, None, 5, None)]
    assert stage_bases(stages) == [0, 10, 10 + STAGE_INDICES, 15 + STAGE_INDICES]


# -- closed loop -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3])
def test_closed_loop_by_requests_sends_each_once_whatever_the_workers(n):
    load = "load: {users: 4, requests: 25}"
    shares = [Share(load, k, n).run() for k in range(n)]
    assert sorted(itertools.chain(*(s.indices for s in shares))) == list(range(25))
    for k, share in enumerate(shares):
        assert share.wire.most == len(slots_of(4, k, n))
        assert [stage for stage, _ in share.done] == [0]
        assert share.stats.started == share.stats.ended == len(share.records)


def test_closed_loop_sends_the_next_the_moment_one_ends():
    share = Share("load: {users: 1, requests: 8}", wire=Wire(0.02)).run()
    records = sorted(share.records, key=lambda r: r.due_ns)
    assert records[0].due_ns == share.start_ns
    for before, after in itertools.pairwise(records):
        assert before.sent_ns + 20_000_000 <= after.due_ns <= after.sent_ns
        assert after.due_ns - before.end_ns < 10_000_000
    assert [r.due_offset_ns for r in records] == [r.due_ns - share.start_ns for r in records]


def test_users_who_think_at_the_end_do_not_prolong_the_drain():
    share = Share("load: {users: 3, duration: 300ms, think_time: 30}")
    began = time.monotonic()
    share.run()
    assert time.monotonic() - began < 10
    assert (len(share.records), share.cancelled) == (3, 0)


def test_think_time_moves_the_due_instant():
    load = "load: {users: 1, requests: 4, think_time: 0.05}"
    records = sorted(Share(load).run().records, key=lambda r: r.due_ns)
    for before, after in itertools.pairwise(records):
        assert after.due_ns - before.end_ns >= 50_000_000
        assert after.sent_ns >= after.due_ns - 2_000_000


def test_closed_loop_by_time_ends_and_finishes_what_is_under_way():
    share = Share("load: {users: 3, duration: 200ms}", wire=Wire(0.03)).run()
    assert len(share.records) >= 6
    assert all(r.due_offset_ns < 200_000_000 for r in share.records)
    assert {r.outcome for r in share.records} == {Outcome.OK}
    assert share.cancelled == 0


def test_requests_belong_to_the_stage_of_their_due_time():
    load = """load: {stages: [{duration: 150ms, users: 2, warmup: true},
                             {duration: 150ms, users: 3}]}"""
    share = Share(load, wire=Wire(0.02)).run()
    for record in share.records:
        assert record.stage == (record.due_offset_ns >= 150_000_000)
        assert record.warmup == (record.stage == 0)
        assert (record.index >= STAGE_INDICES) == (record.stage == 1)
    assert {r.stage for r in share.records} == {0, 1}


def test_a_stage_after_one_of_requests_waits_for_the_word_and_sends_its_own():
    load = """load: {stages: [{requests: 7, users: 2}, {requests: 5, users: 3}]}"""
    share = Share(load)
    share.generator.prepare()
    running = gevent.spawn(share.run)
    while not share.done:
        gevent.sleep(0.001)
    gevent.sleep(0.05)
    assert share.indices == list(range(7))
    begin = time.time_ns() + 20_000_000
    share.generator.enter(1, begin)
    running.get(timeout=20)
    assert share.indices == list(range(12))
    assert min(r.sent_ns for r in share.records if r.stage == 1) >= begin
    assert [stage for stage, _ in share.done] == [0, 1]


def test_a_worker_without_a_share_says_so_and_ends():
    share = Share("load: {users: 1, requests: 5}", k=1, n=2).run()
    assert (share.records, share.done) == ([], [(0, None)])
    share = Share("load: {users: 1, duration: 50ms}", k=1, n=2).run()
    assert share.records == []


def test_a_server_that_is_gone_is_not_hammered():
    wire = Wire(0, Outcome.CONNECT_ERROR)
    share = Share("load: {users: 1, duration: 400ms}", wire=wire).run()
    assert 2 <= len(share.records) <= 5
    assert share.stats.outcomes["connect_error"] == wire.sent


def test_a_ramp_starts_its_users_one_after_the_other():
    load = "load: {stages: [{duration: 400ms, shape: {ramp: {from: 0, to: 4}}}]}"
    share = Share(load, wire=Wire(0.005)).run()
    halves = [sum(200_000_000 * h <= r.due_offset_ns < 200_000_000 * (h + 1) for r in share.records)
              for h in (0, 1)]  # fmt: skip
    assert share.wire.most == 4
    assert halves[1] > 1.5 * halves[0]


def test_max_in_flight_lets_a_closed_loops_users_wait():
    share = Share("load: {users: 6, requests: 30, max_in_flight: 2}", wire=Wire(0.005)).run()
    assert share.indices == list(range(30))
    assert share.wire.most == 2


def test_users_who_send_at_once_leave_a_few_in_a_turn_of_the_loop():
    turns, sent = [0], []

    class Slow(Wire):
        def send(self, *args, **options):
            sent.append(turns[-1])
            until = time.monotonic_ns() + 1_000_000
            while time.monotonic_ns() < until:
                pass
            return super().send(*args, **options)

    check = gevent.get_hub().loop.check()
    check.start(lambda: turns.append(turns[-1] + 1))
    try:
        Share("load: {users: 40, requests: 40}", wire=Slow(0.2)).run()
    finally:
        check.stop()
    assert len(sent) == 40
    # 4 ms a turn, and those that went on before the first one had used them up
    assert max(map(sent.count, sent)) <= 6


# -- open loop ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("process", ["constant", "poisson"])
def test_open_loop_is_due_at_the_plans_instants_whatever_the_workers(process, n):
    load = f"load: {{mode: open, arrivals: {process}, rate_per_s: 200, duration: 200ms}}"
    plan = {a.index: a.due_ns
            for a in arrivals.schedule(workload.parse(HEAD + load).load, 5)}  # fmt: skip
    shares = [Share(load, k, n).run(lead_s=0.02) for k in range(n)]
    got = {r.index: r.due_offset_ns for share in shares for r in share.records}
    assert got == plan
    for share in shares:
        assert all(r.sent_ns >= r.due_ns for r in share.records)


def test_open_loop_does_not_wait_for_answers():
    load = "load: {mode: open, arrivals: constant, rate_per_s: 100, duration: 200ms}"
    share = Share(load, wire=Wire(0.5)).run()
    assert share.wire.most == 20


def test_arrivals_beyond_the_limit_are_dropped_and_counted_even_when_late():
    load = """load: {mode: open, arrivals: constant, rate_per_s: 500, duration: 200ms,
                    max_in_flight: 3}"""
    share = Share(load, wire=Wire(0.6))
    share.generator.prepare()
    gevent.spawn(time.sleep, 0.1)  # holds the loop: 50 arrivals are late at once
    share.run()
    assert (share.wire.sent, share.wire.most) == (3, 3)
    assert (share.stats.started, share.stats.dropped, share.stats.due) == (3, 97, 100)


# -- ends --------------------------------------------------------------------------------------


def test_what_is_still_running_when_the_drain_is_over_is_cancelled_and_counted():
    load = "load: {mode: open, arrivals: constant, rate_per_s: 50, duration: 100ms}"
    share = Share(load, wire=Wire(60)).run(drain=0.05)
    assert share.cancelled == 5
    assert [r.outcome for r in share.records] == [Outcome.CANCELLED] * 5
    assert share.stats.in_flight == 0


def test_what_was_due_before_the_end_is_sent_even_if_the_drain_is_none():
    load = "load: {mode: open, arrivals: constant, rate_per_s: 2000, duration: 100ms}"
    share = Share(load, wire=Wire(60))
    share.generator.prepare()
    gevent.spawn(time.sleep, 0.1)  # holds the loop: all arrivals are late at once
    share.run(drain=0)
    assert (share.wire.sent, share.stats.dropped, share.cancelled) == (200, 0, 200)
    assert [r.outcome for r in share.records] == [Outcome.CANCELLED] * 200


def test_a_drain_begins_at_the_end_of_the_last_stage_not_at_its_last_arrival():
    load = "load: {mode: open, arrivals: constant, rate_per_s: 2, duration: 1s}"
    share = Share(load, wire=Wire(0.2)).run(drain=0)
    assert [r.outcome for r in share.records] == [Outcome.OK] * 2
    assert time.time_ns() - share.start_ns >= 1 * NS


@pytest.mark.parametrize(
    "load",
    ["{users: 2, requests: 100}", "{mode: open, arrivals: constant, rate_per_s: 0.01, requests: 9}",
     "{mode: open, arrivals: constant, rate_per_s: 0.01, duration: 900s}"],
)  # fmt: skip
def test_stopping_wakes_whoever_waits_and_the_drain_has_its_own_length(load):
    share = Share(f"load: {load}", wire=Wire(60))
    gevent.spawn_later(0.1, share.generator.stop)
    began = time.monotonic()
    share.run(drain=0.1)
    assert time.monotonic() - began < 20
    assert {r.outcome for r in share.records} == {Outcome.CANCELLED}
    assert share.stats.in_flight == share.stats.dropped == 0


def test_hurrying_shortens_a_drain_that_is_going_on():
    share = Share("load: {users: 2, duration: 50ms}", wire=Wire(60))
    gevent.spawn_later(0.2, share.generator.hurry, 0)
    began = time.monotonic()
    share.run(drain=50)
    assert time.monotonic() - began < 20
    assert share.cancelled == 2


@pytest.mark.parametrize(
    "load",
    ["{users: 2, duration: 60s}", "{mode: open, rate_per_s: 20, duration: 60s}",
     "{users: 4, duration: 60s, max_in_flight: 2}", "{users: 2, duration: 60s, think_time: 30}",
     "{stages: [{requests: 2, users: 2}, {duration: 9s, users: 2}]}"],
)  # fmt: skip
def test_stopping_sends_nothing_new_and_lets_the_rest_finish(load):
    share = Share(f"load: {load}", wire=Wire(0.1))
    running = gevent.spawn(share.run)
    gevent.sleep(0.25)
    share.generator.stop()
    sent = share.wire.sent
    running.get(timeout=20)
    assert share.wire.sent == sent == len(share.records) > 0
    assert {r.outcome for r in share.records} == {Outcome.OK}


@pytest.mark.parametrize(
    "load", ["{users: 2, requests: 90}", "{mode: open, rate_per_s: 300, requests: 90}"]
)
def test_a_prompt_that_cannot_be_made_ends_the_run_with_its_reason(load):
    share = Share(f"load: {load}", source=Prompts(short=64))
    with pytest.raises(BadInput, match="too few"):
        share.run()


def test_the_first_prompt_that_cannot_be_made_is_said_before_anything_is_sent():
    share = Share("load: {users: 2, requests: 90}", source=Prompts(short=0))
    with pytest.raises(BadInput, match="too few"):
        share.generator.prepare()
    share.generator.close()
    assert share.wire.sent == 0


# -- a busy server -----------------------------------------------------------------------------


def test_a_busy_servers_date_is_waited_for_by_its_own_clock():
    busy = (
        b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
        b"Retry-After: Sun, 06 Nov 1994 08:49:38 GMT\r\n\r\n"
    )
    with Server(answers(busy, WHOLE)) as server:
        wire = Transport(parse_url(server.url), Timeouts())
        share = Share("load: {users: 1, requests: 1}\nretry: {max: 1}", wire=wire).run()
    assert [(r.outcome, r.retries) for r in share.records] == [(Outcome.OK, 1)]
    assert 1.0 <= share.stats.retry_wait_ns / NS < 20.0  # unasked it would have been 0.5 s


# -- SLOs --------------------------------------------------------------------------------------


def test_each_request_is_judged_by_its_objectives():
    load = "load: {users: 1, requests: 6}"
    good = Share(load, slos={"ttft": "<10s", "tpot": "<10s"}).run().stats
    assert (good.good, good.slo_evaluated["ttft"], good.slo_met["ttft"]) == (6, 6, 6)
    late = Share(load, slos={"ttft": "<1us"}).run().stats
    assert (late.good, late.slo_evaluated["ttft"], late.slo_met["ttft"]) == (0, 6, 0)
    failed = Share(load, slos={"ttft": "<10s"}, wire=Wire(0, Outcome.TIMEOUT_STALLED)).run().stats
    assert (failed.good, failed.slo_evaluated["ttft"], failed.slo_met["ttft"]) == (0, 6, 0)


def test_a_fault_of_our_own_in_a_user_ends_the_run_and_is_raised(monkeypatch, capfd):
    share = Share("load: {users: 2, duration: 30s}")

    def broken(*_):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(share.generator.sender, "issue", broken)
    with pytest.raises(ZeroDivisionError, match="ours"):
        share.run()
    assert "ZeroDivisionError" in capfd.readouterr().err  # gevent prints where it was
