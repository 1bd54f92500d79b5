"""A session's own connection: kept while its user thinks, given up when the session is over."""

import time

import gevent
import pytest
from socket_server import WHOLE, Server, answers
from stream_play import backend
from test_transport import PATIENT

from tokenswarm import transport
from tokenswarm.clock import LoopClock
from tokenswarm.records import Outcome
from tokenswarm.stream import Stream
from tokenswarm.target import parse_url
from tokenswarm.transport import Transport
from tokenswarm.transport_balance import Balanced
from tokenswarm.transport_errors import TransportError
from tokenswarm.transport_held import Held


@pytest.fixture
def clock():
    made = LoopClock()
    yield made
    made.close()


def ask(to, clock, held=None):
    """The connection that a request went over."""
    stream = Stream(backend("openai-completions"), clock)
    return to.send("/v1/completions", b"{}", stream, held=held)


@pytest.fixture
def server():
    with Server(answers(*[WHOLE] * 20)) as made:
        yield made


@pytest.fixture
def client(server):
    made = Transport(parse_url(server.url), PATIENT)
    yield made
    made.close()


def test_each_session_keeps_its_connection_whatever_others_do(client, clock, server):
    one, two = Held(), Held()
    first, second = ask(client, clock, one), ask(client, clock, two)
    common = ask(client, clock)
    assert len({first, second, common}) == 3
    for _ in range(3):
        assert ask(client, clock, two) is second
        assert ask(client, clock, one) is first
        assert ask(client, clock) is common
    assert server.connections == 3
    assert first.connect_ns is None  # of its last turn, which had no connecting to do
    one.close()
    two.close()


def test_it_is_held_longer_than_the_common_ones_are_kept(client, clock, monkeypatch):
    monkeypatch.setattr(transport, "_MAX_IDLE_NS", 0)
    held = Held()
    first, common = ask(client, clock, held), ask(client, clock)
    assert ask(client, clock, held) is first
    assert ask(client, clock) is not common
    held.close()


def test_a_session_may_begin_on_a_connection_that_was_opened_ahead(client, clock, server):
    client.connect_ahead(1)
    held = Held()
    first = ask(client, clock, held)
    assert (server.connections, first.connect_ns > 0) == (1, True)
    assert ask(client, clock, held) is first
    held.close()
    assert ask(client, clock) is not first  # what a session had is nobody else's


def test_what_the_server_closed_meanwhile_is_replaced(clock):
    with Server(answers(WHOLE, close=True)) as server:
        client, held = Transport(parse_url(server.url), PATIENT), Held()
        first = ask(client, clock, held)
        deadline = time.monotonic() + 10
        while first.still_open() and time.monotonic() < deadline:
            gevent.sleep(0.01)
        second = ask(client, clock, held)
        assert second is not first
        assert not second.is_second
        held.close()
        client.close()


def test_a_failed_turn_leaves_nothing_behind(clock):
    with Server(lambda peer: peer.request() and peer.reset()) as server:
        client, held = Transport(parse_url(server.url), PATIENT), Held()
        with pytest.raises(TransportError) as e:
            ask(client, clock, held)
        assert e.value.outcome is Outcome.CONNECTION_LOST
        assert held.take() is None
        client.close()


def test_a_session_has_its_server_and_its_connection(clock):
    with Server(answers(*[WHOLE] * 9)) as one, Server(answers(*[WHOLE] * 9)) as two:
        balanced = Balanced(
            [Transport(parse_url(s.url), PATIENT) for s in (one, two)], "round-robin"
        )
        helds = {number: Held() for number in range(4)}
        went = [
            (number, ask(balanced.of_session(number), clock, helds[number]))
            for number in (0, 1, 2, 3, 0, 3, 1, 2)
        ]
        assert len({id(connection) for _, connection in went}) == 4
        assert {(n, c.target.url) for n, c in went} == {
            (0, one.url), (1, two.url), (2, one.url), (3, two.url),
        }  # fmt: skip
        for held in helds.values():
            held.close()
        balanced.close()
