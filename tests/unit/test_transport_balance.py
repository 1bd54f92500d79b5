"""Several servers: whose turn it is, and that all of them are closed and cancelled together."""

from collections import Counter

import gevent
import pytest
from socket_server import WHOLE, Server, answers
from test_transport import PATIENT, Asked

from tokenswarm import transport_balance
from tokenswarm.records import Outcome
from tokenswarm.target import parse_url
from tokenswarm.transport import Transport
from tokenswarm.transport_balance import Balanced


class Fake:
    """A transport of which a test says how busy it is."""

    def __init__(self, name, busy=0):
        self.target = name
        self.in_flight = set(range(busy))

    def send(self, path, body, answer, method, more, held):
        return self.target


def order(balance, *busy, first=0, n=6):
    fakes = [Fake("abc"[i], b) for i, b in enumerate(busy)]
    balanced = Balanced(fakes, balance, first)
    return "".join(balanced.send("/", b"", None) for _ in range(n))


def test_round_robin_whatever_is_busy():
    assert order("round-robin", 9, 0, 0) == "abcabc"
    assert order("round-robin", 0, 0, 0, first=1) == "bcabca"


def test_the_least_loaded_and_in_turn_among_equals():
    assert order("least-loaded", 2, 1, 2) == "bbbbbb"
    assert order("least-loaded", 1, 0, 0) == "bbcbbc"
    assert order("least-loaded", 0, 0, 0) == "abcabc"


def of_sessions(balanced, *numbers):
    return "".join(balanced.of_session(n).target for n in numbers)


def test_a_session_stays_where_its_first_turn_went():
    fakes = [Fake(name) for name in "abc"]
    assert of_sessions(Balanced(fakes, "round-robin"), 7, 7, 9, 7, 4, 9, 5, 4) == "aabacbac"
    assert of_sessions(Balanced(fakes, "round-robin", first=1), 7, 9, 7) == "bcb"


def test_the_least_loaded_server_is_chosen_for_a_sessions_first_turn_only():
    fakes = [Fake("a", 1), Fake("b", 0)]
    balanced = Balanced(fakes, "least-loaded")
    assert of_sessions(balanced, 1, 2) == "bb"
    fakes[1].in_flight = set(range(5))
    assert of_sessions(balanced, 1, 3, 2) == "bab"


@pytest.mark.parametrize("balance", ["round-robin", "least-loaded"])
def test_by_number_all_workers_agree_whatever_they_have_sent(balance):
    fakes = [Fake("a", 9), Fake("b")]
    for first in (0, 1):
        balanced = Balanced(fakes, balance, first, by_number=True)
        assert of_sessions(balanced, 0, 1, 5, 4, 1) == "abbab"


def test_sessions_long_over_are_forgotten(monkeypatch):
    monkeypatch.setattr(transport_balance, "MOST_SESSIONS", 2)
    balanced = Balanced([Fake(name) for name in "abc"], "round-robin")
    assert of_sessions(balanced, 1, 2, 1, 3, 1) == "abaca"  # 2 was the one not used for longest
    assert of_sessions(balanced, 2) == "a"
    assert len(balanced._places) == 2


@pytest.mark.parametrize("balance", ["round-robin", "least-loaded"])
def test_real_servers_share_the_requests_and_say_which_answered(balance):
    scripts = [answers(*[WHOLE] * 20) for _ in range(2)]
    with Server(scripts[0]) as one, Server(scripts[1]) as two:
        balanced = Balanced(
            [Transport(parse_url(s.url), PATIENT) for s in (one, two)], balance
        )  # fmt: skip
        balanced.connect_ahead(4)
        asked = [Asked(balanced) for _ in range(6)]
        balanced.close()
    assert {a.outcome for a in asked} == {Outcome.OK}
    assert Counter(a.connection.target.url for a in asked) == {one.url: 3, two.url: 3}


def test_all_that_is_in_flight_is_cancelled():
    with Server(lambda p: p.until_closed()) as one, Server(lambda p: p.until_closed()) as two:
        balanced = Balanced([Transport(parse_url(s.url), PATIENT) for s in (one, two)], "x")
        greenlets = [gevent.spawn(Asked, balanced) for _ in range(2)]
        while len(balanced.in_flight) < 2 or not all(c.sent_ns for c in balanced.in_flight):
            gevent.sleep(0.01)
        assert balanced.cancel_all("over") == 2
        assert [g.get().outcome for g in greenlets] == [Outcome.CANCELLED] * 2
        balanced.close()
