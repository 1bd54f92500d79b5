"""A burst of requests leaves in order and in portions, and sockets are read between them."""

from __future__ import annotations

import time

import gevent
import pytest
from gevent import get_hub

from tokenswarm import pace as module
from tokenswarm.clock import LoopClock
from tokenswarm.pace import Pace

MS = 1_000_000


@pytest.fixture
def clock():
    made = LoopClock()
    yield made
    made.close()


@pytest.fixture
def pace(clock):
    made = Pace(clock)
    yield made
    made.close()


def busy(ms):
    until = time.monotonic_ns() + round(ms * MS)
    while time.monotonic_ns() < until:
        pass


def burst(pace, clock, n, ms):
    """n greenlets, each with so much to do; the turn of the loop that each went on in."""
    turns, gone = [0], []
    check = get_hub().loop.check()
    check.start(lambda: turns.append(turns[-1] + 1))

    def one(i):
        pace.wait()
        gone.append((i, turns[-1]))
        busy(ms)

    gevent.sleep(0.002)
    gevent.joinall([gevent.spawn(one, i) for i in range(n)], raise_error=True, timeout=30)
    check.stop()
    return gone


def test_a_burst_leaves_in_order_a_few_in_a_turn(pace, clock):
    gone = burst(pace, clock, 40, 1)
    assert [i for i, _ in gone] == list(range(40))
    each_turn = [sum(1 for _, t in gone if t == turn) for turn in {t for _, t in gone}]
    # 4 ms of 1 ms each, and the one that goes over; a machine that gives no CPU makes it fewer
    assert max(each_turn) <= 5
    assert len(each_turn) >= 8


def test_nobody_waits_while_there_is_time(pace, clock, monkeypatch):
    monkeypatch.setattr(module, "_BUDGET_NS", 10**12)
    gone = burst(pace, clock, 40, 0.01)
    assert len({turn for _, turn in gone}) == 1


def test_who_waits_goes_on_though_no_socket_is_ready(pace, clock):
    began = time.monotonic()
    assert len(burst(pace, clock, 3, 5)) == 3
    assert time.monotonic() - began < 10  # and not when the next timer or socket wakes the loop


def test_a_greenlet_that_is_killed_while_it_waits_is_no_trouble(pace, clock):
    blocker = gevent.spawn(lambda: (pace.wait(), busy(6)))
    waiting = [gevent.spawn(pace.wait) for _ in range(3)]
    killed = []
    gevent.spawn(lambda: (waiting[1].kill(block=False), killed.append(1)))
    gevent.joinall([blocker, *waiting], timeout=20)
    assert killed
    assert all(g.ready() for g in (blocker, *waiting))


def test_closing_lets_all_go_on(clock):
    pace = Pace(clock)
    clock.after_turn = None  # the loop's turns release nobody
    clock.turn_end_ns = 0
    waiting = [gevent.spawn(pace.wait) for _ in range(3)]
    gevent.sleep(0)
    pace.close()
    gevent.joinall(waiting, timeout=20)
    assert all(g.successful() for g in waiting)
    pace.wait()  # and nobody waits any more
