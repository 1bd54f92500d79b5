"""Prepared requests, ahead of the moment they are needed.

Prompts are cut and request bodies built a bounded number ahead, before the run in gevent's
threadpool and during it in a process apart, so that nothing slow runs on the loop between a read
and its stamp. It knows nothing of time or sockets.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import gevent
from gevent.event import Event

from tokenswarm.apart import Apart
from tokenswarm.offload import offload
from tokenswarm.records import Prompt, Request

Item = tuple[Prompt, Request]
_BATCH = 32  # a thread's: it must not keep the interpreter long
_BATCH_APART = 128
# Below this share of `ahead`, or this number, preparing takes all the time it can get: a quick
# server uses up a handful of prompts before a machine that others use gives it any.
_LOW_WATER, _FEW = 0.25, 32
_REST = 4.0  # above it, a thread rests so many times as long as a batch took


class Feed:
    """What `make` gives for the indices of an iterator, in its order; ahead are kept ready.

    apart does the same as `make`, elsewhere, while a run is on.
    """

    def __init__(
        self,
        make: Callable[[Sequence[Any]], list[Any]],
        indices: Iterator[Any],
        ahead: int,
        apart: Apart | None = None,
    ) -> None:
        self._make = make
        self._apart = apart
        self._indices = indices
        self._ahead = max(1, ahead)
        self._low = max(_LOW_WATER * self._ahead, min(_FEW, self._ahead / 2))
        self._ready: deque[Any] = deque()
        self._more = Event()
        self._room = Event()
        self._finished = False
        self._hurry = False
        self._error: BaseException | None = None
        self._filler = gevent.spawn(self._fill)

    def _fill(self) -> None:
        try:
            while batch := list(islice(self._indices, self._batch_size())):
                began = time.monotonic()
                is_low = len(self._ready) <= self._low
                self._ready.extend(self._made(batch, is_low))
                self._more.set()
                if self._apart is None and not (is_low or self._hurry):
                    # well ahead: leave the interpreter to the loop, above all when a burst of
                    # first requests has just emptied half of what was ready
                    gevent.sleep(_REST * (time.monotonic() - began))
                while len(self._ready) >= self._ahead:
                    self._room.clear()
                    self._room.wait()
        except Exception as e:  # noqa: BLE001 - handed to whoever takes, with its type
            self._error = e
        self._finished = True
        self._more.set()

    def _batch_size(self) -> int:
        """Many at a time are cheaper, unless somebody waits for the first of them."""
        many = self._apart is not None and len(self._ready) > self._low
        return min(_BATCH_APART if many else _BATCH, self._ahead)

    def _made(self, batch: list[Any], is_low: bool) -> list[Any]:
        if self._apart is not None and not self._hurry:
            return self._apart(batch, hurry=is_low)
        made: list[Any] = offload(self._make, batch)
        return made

    def take(self) -> Any | None:
        """The next item, None when there are no more; waits where preparing is behind.

        Raises what making an item raised.
        """
        while not self._ready:
            if self._finished:
                if self._error is not None:
                    raise self._error
                return None
            self._more.clear()
            self._more.wait()
        item = self._ready.popleft()
        if len(self._ready) < self._ahead:
            self._room.set()
        return item

    @property
    def is_complete(self) -> bool:
        """Everything there is was prepared."""
        return self._finished

    def wait_ready(self, count: int) -> None:
        """Block until count items, or all there are, are ready. Raises like take."""
        self._hurry = True
        try:
            self._wait_ready(count)
        finally:
            self._hurry = False

    def _wait_ready(self, count: int) -> None:
        while len(self._ready) < min(count, self._ahead) and not self._finished:
            self._more.clear()
            self._more.wait()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Prepare nothing more."""
        self._filler.kill(block=False)
        self._finished = True
        self._more.set()
