"""The feeds of a generator: prompts of a source made into a protocol's requests, ahead of time.

Knows prompts and backends; when a request is due is others' business.

The one subtle rule: what was asked is dropped once the request that asks it is built. Both
together would be kept for every request in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tokenswarm.apart import Apart
from tokenswarm.backends import Backend
from tokenswarm.feed import Feed, Item
from tokenswarm.records import Prompt
from tokenswarm.talks import maker, without_content

_MAX_AHEAD = 4096


class Preparation:
    """Makes feeds of a source's prompts; source gives them, backend makes requests of them."""

    def __init__(self, source: Any, backend: Backend) -> None:
        self.source = source
        self._backend = backend
        self._make_talks = maker(source, backend.build)
        # A run is either in sessions or not, so one of the two is ever started.
        self._requests_apart, self._talks_apart = Apart(self._make), Apart(self._make_talks)
        self._asked: set[Apart] = set()
        self._feeds: list[Feed] = []

    def requests(self, indices: Iterator[int], ahead: int) -> Feed:
        """A feed of the requests with these indices."""
        ahead = min(_MAX_AHEAD, ahead)
        return self._kept(Feed(self._make, indices, ahead, self._ask(self._requests_apart)))

    def talks(self, sessions: Iterator[tuple[int, int]], ahead: int) -> Feed:
        """A feed of these sessions, (number, turns) each."""
        # a live session goes on in this process, from reply to reply
        apart = None if self.source.live else self._ask(self._talks_apart)
        return self._kept(Feed(self._make_talks, sessions, ahead, apart))

    def _ask(self, apart: Apart) -> Apart:
        self._asked.add(apart)
        return apart

    def _kept(self, feed: Feed) -> Feed:
        self._feeds.append(feed)
        return feed

    def _make(self, indices: Sequence[int]) -> list[Item]:
        """Prompts, without what was asked, and the requests that ask it."""
        prompts: list[Prompt] = self.source.prompts(indices)
        return [(without_content(p), self._backend.build(p)) for p in prompts]

    def start(self, more_stages: bool) -> None:
        """The run begins: from now on prompts are prepared apart, if any are still to come."""
        if more_stages or not all(f.is_complete for f in self._feeds):
            for apart in self._asked:
                apart.start()

    def stop(self) -> None:
        """Prepare nothing more."""
        for feed in self._feeds:
            feed.close()

    def close(self) -> None:
        """End the process that prepares."""
        for apart in self._asked:
            apart.close()
