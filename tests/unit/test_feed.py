"""Prepared requests: order, how far ahead, errors."""

import threading

import gevent
import pytest

from tokenswarm.feed import Feed
from tokenswarm.records import BadInput


def made(made_so_far=None):
    """A maker of items that are their indices."""

    def make(indices):
        if made_so_far is not None:
            made_so_far.extend(indices)
        return [(i, f"request {i}") for i in indices]

    return make


def drained(feed):
    items = []
    while (item := feed.take()) is not None:
        items.append(item)
    return items


@pytest.mark.parametrize("ahead", [0, 1, 7, 32, 100, 5000])
@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 100])
def test_items_come_in_order_and_once(ahead, n):
    feed = Feed(made(), iter(range(n)), ahead)
    assert drained(feed) == [(i, f"request {i}") for i in range(n)]
    assert feed.take() is None


def test_no_more_is_made_than_is_wanted_ahead():
    so_far = []
    feed = Feed(made(so_far), iter(range(100_000)), 50)
    feed.wait_ready(50)
    for _ in range(20):
        gevent.sleep(0)
    assert 50 <= len(so_far) < 50 + 32
    for _ in range(500):
        feed.take()
    assert len(so_far) < 500 + 50 + 32 + 1
    feed.close()


def test_items_are_made_in_another_thread():
    threads = []

    def make(indices):
        threads.append(threading.get_ident())
        return [(i, None) for i in indices]

    drained(Feed(make, iter(range(3)), 8))
    assert threading.get_ident() not in threads


def test_waiting_for_more_than_there_is_ends():
    feed = Feed(made(), iter(range(3)), 100)
    feed.wait_ready(100)
    assert len(drained(feed)) == 3


def test_an_error_is_raised_after_the_items_before_it_with_its_type():
    def make(indices):
        if indices[0] >= 32:
            raise BadInput("prompts: too short")
        return [(i, None) for i in indices]

    feed = Feed(make, iter(range(100)), 64)
    with pytest.raises(BadInput, match="too short"):
        feed.wait_ready(64)
    assert [feed.take()[0] for _ in range(32)] == list(range(32))
    for _ in range(2):
        with pytest.raises(BadInput, match="too short"):
            feed.take()


def test_closing_wakes_who_waits():
    def never(indices):
        started.set()
        release.wait(20)
        return [(i, None) for i in indices]

    started, release = threading.Event(), threading.Event()
    feed = Feed(never, iter(range(3)), 8)
    taker = gevent.spawn(feed.take)
    while not started.is_set():
        gevent.sleep(0.001)
    feed.close()
    assert taker.get(timeout=20) is None
    release.set()
