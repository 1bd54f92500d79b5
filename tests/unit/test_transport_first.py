"""First tokens are looked for between the reads of others."""

from __future__ import annotations

import socket
import time

import gevent
import pytest
from gevent import get_hub

from tokenswarm.transport_first import EVERY, FirstTokens


class Line:
    """A pair of sockets: what is said at one end is read, a byte at a time, from the other."""

    def __init__(self, name, firsts, heard, also=lambda: None):
        self._said, self._read = socket.socketpair()
        self.fd = self._read.fileno()
        self._name, self._firsts, self._heard, self._also = name, firsts, heard, also
        self._watcher = get_hub().loop.io(self.fd, 1)

    def wait_first(self):
        self._firsts.watch(self.fd, self.read)

    def wait_next(self):
        self._watcher.start(self.read)

    def say(self):
        self._said.sendall(b"x")

    def read(self):
        """As a connection reads."""
        self._firsts.reads += 1
        if self._firsts.reads > EVERY:
            self._firsts.look()
        self._read.recv(1)
        self._heard.append(self._name)
        self._also()

    def close(self):
        self._firsts.forget(self.fd)
        self._watcher.stop()
        self._watcher.close()
        self._said.close()
        self._read.close()


@pytest.fixture
def firsts():
    made = FirstTokens()
    yield made
    made.close()


@pytest.fixture
def line(firsts):
    made = []

    def make(name, heard, also=lambda: None):
        made.append(Line(name, firsts, heard, also))
        return made[-1]

    yield make
    for one in made:
        one.close()


def heard_all(heard, n):
    deadline = time.monotonic() + 20
    while len(heard) < n:
        assert time.monotonic() < deadline, f"{len(heard)} of {n}"
        gevent.sleep(0.001)


def test_one_that_comes_while_others_are_read_is_read_after_a_few_more(line):
    heard = []
    first = line("first", heard)
    first.wait_first()
    others = [
        line(str(i), heard, lambda: len(heard) == 1 and first.say()) for i in range(4 * EVERY)
    ]
    for other in others:
        other.wait_next()
        other.say()
    heard_all(heard, len(others) + 1)
    assert heard.index("first") == EVERY  # and not behind all that were ready with them


def test_what_is_ready_together_is_read_with_first_tokens_in_front(line):
    heard = []
    others, first = [line("other", heard) for _ in range(5)], line("first", heard)
    first.wait_first()
    for one in (*others, first):
        one.wait_next() if one is not first else None
        one.say()
    heard_all(heard, 6)
    assert heard == ["first"] + ["other"] * 5


def test_many_first_tokens_at_once_are_each_read_once(firsts, line):
    heard = []
    lines = [line(i, heard) for i in range(3 * EVERY)]
    for one in lines:
        one.wait_first()
        one.say()
    firsts.look()
    assert sorted(heard) == list(range(3 * EVERY))
    assert firsts.reads == 0


def test_one_that_is_forgotten_is_not_called_and_can_be_watched_again(firsts, line):
    heard = []
    one = line("one", heard)
    one.wait_first()
    firsts.forget(one.fd)
    firsts.forget(one.fd)
    one.say()
    firsts.look()
    assert heard == []
    one.wait_first()
    heard_all(heard, 1)


def test_it_is_there_until_all_who_share_it_have_closed_it():
    firsts, heard = FirstTokens(), []
    for _ in range(2):
        assert firsts.shared() is firsts
    firsts.close()
    one = Line("one", firsts, heard)
    one.wait_first()
    one.say()
    heard_all(heard, 1)
    firsts.forget(one.fd)
    firsts.close()
    with pytest.raises(ValueError, match="closed"):
        firsts.watch(one.fd, one.read)
    one.close()


def test_it_can_be_closed_twice_and_forgets_quietly_afterwards():
    firsts, heard = FirstTokens(), []
    one = Line("one", firsts, heard)
    one.wait_first()
    firsts.close()
    firsts.close()
    one.close()
    assert heard == []
