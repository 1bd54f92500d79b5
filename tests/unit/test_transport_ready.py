"""First tokens are looked for between the reads of others, and the loop is never held long."""

from __future__ import annotations

import socket
import time
from itertools import pairwise

import gevent
import pytest
from gevent import get_hub

from tokenswarm import transport_ready as module
from tokenswarm.transport_ready import Readiness


class Line:
    """A pair of sockets: what is said at one end is read, a byte at a time, from the other."""

    def __init__(self, name, ready, heard, also=lambda: None):
        self._said, self._read = socket.socketpair()
        self.fd = self._read.fileno()
        self._name, self._ready, self._heard, self._also = name, ready, heard, also

    def say(self, data=b"x"):
        self._said.sendall(data)

    def read(self):
        self._read.recv(1)
        self._heard.append(self._name)
        self._also()

    def close(self):
        self._ready.forget(self.fd)
        self._said.close()
        self._read.close()


@pytest.fixture
def ready():
    made = Readiness()
    yield made
    made.close()


@pytest.fixture
def line(ready):
    made = []

    def make(name, heard, also=lambda: None, *, has_token=False):
        one = Line(name, ready, heard, also)
        made.append(one)
        ready.first(one.fd, one.read)
        if has_token:
            ready.other(one.fd, one.read)
        return one

    yield make
    for one in made:
        one.close()


def heard_all(heard, n):
    deadline = time.monotonic() + 20
    while len(heard) < n:
        assert time.monotonic() < deadline, f"{len(heard)} of {n}"
        gevent.sleep(0.001)


def busy(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_a_first_token_that_comes_while_others_are_read_is_read_after_a_few_more(
    ready, line, monkeypatch
):
    monkeypatch.setattr(module, "_BUDGET_NS", 10**12)  # all in one turn of the loop
    heard = []
    first = line("first", heard)
    others = [
        line(str(i), heard, lambda: len(heard) == 1 and first.say(), has_token=True)
        for i in range(4 * module._BATCH)
    ]
    for other in others:
        other.say()
    heard_all(heard, len(others) + 1)
    assert heard.index("first") == module._BATCH  # and not behind all that were ready with them


def test_what_is_ready_together_is_read_with_first_tokens_in_front(ready, line):
    heard = []
    others = [line("other", heard, has_token=True) for _ in range(5)]
    first = line("first", heard)
    for one in (*others, first):
        one.say()
    heard_all(heard, 6)
    assert heard == ["first"] + ["other"] * 5


def test_greenlets_and_timers_go_on_while_there_is_always_something_to_read(ready, line):
    heard, turns = [], [0]
    others = [line(i, heard, lambda: busy(0.001), has_token=True) for i in range(2 * module._BATCH)]
    check = get_hub().loop.check()
    check.start(lambda: turns.append(len(heard)))
    for other in others:
        other.say(b"xx")
    heard_all(heard, 4 * module._BATCH)
    check.stop()
    # a batch of 64 ms is over the 5 ms of a turn: each batch ends one
    assert max(b - a for a, b in pairwise(turns)) <= module._BATCH
    assert sorted(heard) == sorted(list(range(2 * module._BATCH)) * 2)  # and all got their turn


def test_one_that_is_forgotten_is_not_called_and_can_be_watched_again(ready, line):
    heard = []
    one = line("one", heard)
    ready.forget(one.fd)
    ready.forget(one.fd)
    one.say()
    gevent.sleep(0.02)
    assert heard == []
    ready.first(one.fd, one.read)
    heard_all(heard, 1)
    ready.other(one.fd, one.read)
    one.say()
    heard_all(heard, 2)
    ready.forget(one.fd)
    one.say()
    gevent.sleep(0.02)
    assert heard == ["one", "one"]


def test_it_can_be_closed_twice_and_forgets_quietly_afterwards():
    ready, heard = Readiness(), []
    one = Line("one", ready, heard)
    ready.first(one.fd, one.read)
    ready.close()
    ready.close()
    one.close()
    assert heard == []
