"""The feeds of a generator: prompts of a source made into a protocol's requests, ahead of time.

Knows prompts and backends; when a request is due is others' business.

The one subtle rule: what was asked is dropped once the request that asks it is built. Both
together would be kept for every request in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tokenswarm.apart import Apart
from tokenswarm.backends import Backend
from tokenswarm.feed import Feed, Item
from tokenswarm.records import Prompt
from tokenswarm.talks import maker

_MAX_AHEAD = 4096


class Preparation:
    """Makes feeds of a source's prompts; source gives them, backend makes requests of them."""

    def __init__(self, source: Any, backend: Backend) -> None:
        self.source = source
        self._backend = backend
        self._apart = Apart(self._make)
        self._asks_apart = False
        self._feeds: list[Feed] = []

    def requests(self, indices: Iterator[int], ahead: int) -> Feed:
        """A feed of the requests with these indices."""
        self._asks_apart = True
        return self._kept(Feed(self._make, indices, min(_MAX_AHEAD, ahead), self._apart))

    def talks(self, sessions: Iterator[tuple[int, int]], ahead: int) -> Feed:
        """A feed of these sessions, (number, turns) each."""
        return self._kept(Feed(maker(self.source, self._backend.build), sessions, ahead))

    def _kept(self, feed: Feed) -> Feed:
        self._feeds.append(feed)
        return feed

    def _make(self, indices: Sequence[int]) -> list[Item]:
        """Prompts, without what was asked, and the requests that ask it."""
        prompts: list[Prompt] = self.source.prompts(indices)
        return [
            (replace(p, text=None, messages=None, token_ids=None), self._backend.build(p))
            for p in prompts
        ]

    def start(self, more_stages: bool) -> None:
        """The run begins: from now on prompts are prepared apart, if any are still to come."""
        if self._asks_apart and (more_stages or not all(f.is_complete for f in self._feeds)):
            self._apart.start()

    def stop(self) -> None:
        """Prepare nothing more."""
        for feed in self._feeds:
            feed.close()

    def close(self) -> None:
        """End the process that prepares."""
        self._apart.close()
