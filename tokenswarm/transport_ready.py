"""Which sockets have something to read, and in which order they are read.

libev calls back everything that it found ready before it looks again. With a thousand streams
that takes longer than a token takes to come: a first token that arrives meanwhile is then read
together with the second, and stamped like it. So sockets are watched by two epoll instances of
our own, one for answers that have no token yet and one for the others, and the first is looked
at again after every few reads from the second.

The one subtle rule: a callback reads and returns. It never switches greenlets and never raises,
so what `poll` found ready is still the callback's own when its turn comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent.monkey
from gevent import get_hub

_READ_EVENT = 1  # libev's EV_READ and epoll's EPOLLIN
_BATCH = 64  # reads between two looks at first tokens: about a millisecond
_MOST = 512  # first tokens at a time
_BUDGET_NS = 5_000_000  # of a turn of the loop, in which timers and greenlets wait
_BEFORE_ALL = 2  # libev's highest priority


class Readiness:
    """Calls back when a socket can be read, as long as it can; for the sockets of one hub."""

    def __init__(self) -> None:
        epoll = gevent.monkey.get_original("select", "epoll")
        self._first, self._others = epoll(), epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        loop = get_hub().loop
        self._watchers: list[Any] = []
        for queue, priority, callback in (
            (self._first, _BEFORE_ALL, self._read_first),
            (self._others, 0, self._read_others),
        ):
            watcher = loop.io(queue.fileno(), _READ_EVENT, priority=priority)
            watcher.start(callback)
            self._watchers.append(watcher)

    def first(self, fd: int, callback: Callable[[], None]) -> None:
        """Call back, before all others, when fd can be read: its first token is still to come."""
        self._callbacks[fd] = callback
        self._first.register(fd, _READ_EVENT)

    def other(self, fd: int, callback: Callable[[], None]) -> None:
        """Call this back from now on, when those with first tokens were."""
        self._callbacks[fd] = callback
        self._first.unregister(fd)
        self._others.register(fd, _READ_EVENT)

    def forget(self, fd: int) -> None:
        """Do not call back any more; must come before fd is closed."""
        if self._callbacks.pop(fd, None) is None:
            return
        try:
            self._others.unregister(fd)
        except FileNotFoundError:
            self._first.unregister(fd)

    def _read_first(self) -> None:
        callbacks = self._callbacks
        for fd, _ in self._first.poll(0, _MOST):
            callbacks[fd]()

    def _read_others(self) -> None:
        callbacks, poll = self._callbacks, self._others.poll
        ends = time.monotonic_ns() + _BUDGET_NS
        while True:
            ready = poll(0, _BATCH)
            for fd, _ in ready:
                callbacks[fd]()
            if len(ready) < _BATCH or time.monotonic_ns() > ends:
                return
            self._read_first()

    def close(self) -> None:
        """Give the queues back; safe to call twice."""
        for watcher in self._watchers:
            watcher.stop()
            watcher.close()
        self._watchers.clear()
        self._callbacks.clear()
        self._first.close()
        self._others.close()
