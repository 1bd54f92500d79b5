"""Requests leave a few at a time: reading what has come goes before sending more.

When a thousand answers end together, a thousand users send at once. That takes the loop longer
than a token takes to come, so that first tokens would be read together with second ones, and
stamped like them. A late request is a figure (`send_delay_s`); a late read is an error. So in one
turn of the loop sending may take a few milliseconds, and who is left waits for the next turn, in
order. Nobody waits while the loop has time.

It knows greenlets and the loop's turns; what is sent is others' business.
"""

from __future__ import annotations

import time
from collections import deque

from gevent import get_hub
from gevent.hub import Waiter

from tokenswarm.clock import LoopClock

_BUDGET_NS = 4_000_000  # of a turn: below a quarter of the gap of quick streams, 20 ms


class Pace:
    """Lets greenlets go on, so many that their work takes no more than a budget each turn."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self._closed = False
        self._waiting: deque[Waiter] = deque()
        # While it is active the loop looks at its sockets without waiting for them.
        self._restless = get_hub().loop.idle()

    def wait(self) -> None:
        """Return when it is this greenlet's turn: at once, unless many others go on too."""
        if self._closed:
            return
        if not self._waiting:
            if time.monotonic_ns() - self._clock.turn_end_ns < _BUDGET_NS:
                return
            self._restless.start(_nothing)
            self._clock.after_turn = self._turn
        waiter = Waiter()
        self._waiting.append(waiter)
        waiter.get()

    def _turn(self) -> None:
        waiting, ends = self._waiting, self._clock.turn_end_ns + _BUDGET_NS
        while waiting and time.monotonic_ns() < ends:
            waiting.popleft().switch(None)
        if not waiting:
            self._restless.stop()
            self._clock.after_turn = None

    def close(self) -> None:
        """Let all who wait go on, and nobody wait any more."""
        self._closed = True
        self._clock.after_turn = None
        self._restless.stop()
        while self._waiting:
            get_hub().loop.run_callback(self._waiting.popleft().switch, None)


def _nothing() -> None:
    """What the loop calls when it has nothing to do."""
