"""First tokens are looked for between the reads of other streams.

libev calls back everything that it found ready before it looks again. With a thousand streams
that takes longer than a token takes to come: a first token that arrives meanwhile is then read
together with the second, and stamped like it. So the sockets whose first token is still to come
are watched by an epoll instance of their own, which is looked at before the others in each turn
of the loop, and again after every few reads from them.

The one subtle rule: `look` is called in the middle of another stream's callback. What it calls
back reads and returns, and never switches greenlets.
"""

from __future__ import annotations

from collections.abc import Callable

import gevent.monkey
from gevent import get_hub

_READ_EVENT = 1  # libev's EV_READ and epoll's EPOLLIN
_MOST = 512  # at a time
_BEFORE_ALL = 2  # libev's highest priority
EVERY = 64  # reads of others between two looks: about a millisecond


class FirstTokens:
    """Calls back when a socket with its first token still to come can be read.

    reads counts all reads since the last look: whoever reads adds one, and looks beyond EVERY.
    For the sockets of one hub; several transports may share one, and each closes it.
    """

    __slots__ = ("_callbacks", "_queue", "_sharers", "_watcher", "reads")

    def __init__(self) -> None:
        self.reads = 0
        self._sharers = 0
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._queue = gevent.monkey.get_original("select", "epoll")()
        self._watcher = get_hub().loop.io(self._queue.fileno(), _READ_EVENT, priority=_BEFORE_ALL)
        self._watcher.start(self.look)

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call back when fd can be read, as long as it can."""
        self._queue.register(fd, _READ_EVENT)
        self._callbacks[fd] = callback

    def forget(self, fd: int) -> None:
        """Do not call back any more; must come before fd is closed. Nothing if not watched."""
        if self._callbacks.pop(fd, None) is not None:
            self._queue.unregister(fd)

    def look(self) -> None:
        """Call back for all that can be read now."""
        callbacks = self._callbacks
        self.reads = -_MOST  # what is called back counts too, and must not look again
        if callbacks:
            for fd, _ in self._queue.poll(0, _MOST):
                callbacks[fd]()
        self.reads = 0

    def shared(self) -> FirstTokens:
        """This one, for one more who will close it."""
        self._sharers += 1
        return self

    def close(self) -> None:
        """Give the queue back when all who share it did this; safe to call more often."""
        self._sharers -= 1
        if self._sharers <= 0 and not self._queue.closed:
            self._watcher.stop()
            self._watcher.close()
            self._callbacks.clear()
            self._queue.close()
