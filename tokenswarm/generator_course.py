"""What the greenlets of one generator share: when the run began, and whether it goes on.

Knows nothing of what they do. Anybody may end the sending, by stopping it or by failing.

The one subtle rule: a fault of our own never ends a greenlet in silence. It is kept, stops
everybody else, and is raised by Generator.run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event
from gevent.pool import Group

from tokenswarm.feed import Feed


class Course:
    """A generator's run. at_stop is called, once or more, when nothing new may be sent."""

    def __init__(self) -> None:
        self.start_ns = 0  # the plan's instant 0
        self.stopping = False
        self.stopped = Event()
        self.at_stop: list[Callable[[], None]] = []
        self.error: BaseException | None = None
        self.requests = Group()

    def stop(self) -> None:
        """Send nothing new from now on."""
        self.stopping = True
        self.stopped.set()
        for let_go in self.at_stop:
            let_go()

    def fail(self, error: BaseException | None) -> None:
        """Something of ours broke: the first of such ends the run, and is told."""
        self.error = self.error or error
        self.stop()

    def spawn(self, function: Callable[..., Any], *arguments: Any) -> gevent.Greenlet:
        """Start a user, or a request, that a drain waits for."""
        greenlet = self.requests.spawn(function, *arguments)
        greenlet.link_exception(self._broken)
        return greenlet

    def _broken(self, greenlet: gevent.Greenlet) -> None:
        self.fail(greenlet.exception)

    def take(self, feed: Feed) -> Any | None:
        """The next item of a feed; None when there is none, or when making it failed."""
        try:
            return feed.take()
        except Exception as e:  # noqa: BLE001 - ends the run; Generator.run raises it
            self.fail(e)
            return None
