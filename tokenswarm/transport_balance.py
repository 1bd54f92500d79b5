"""Several servers behind no balancer: one transport for each, and a rule that picks.

Round-robin gives every server the same number of requests; least-loaded the next request to the
server with the fewest of ours in flight, the round-robin's next one where several have. Each
worker sees only its own requests. A session may be kept where its first turn went: the server's
prefix cache has its history.

The one subtle rule: workers start the round at different servers, or the first requests of all
workers would meet at one. In open loop the turns of a session are spread over the workers, which
know nothing of each other's choices: there the session's number decides.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import gevent

from tokenswarm.transport import Transport
from tokenswarm.transport_connection import Connection
from tokenswarm.transport_held import Held

BALANCES = ("round-robin", "least-loaded")
MOST_SESSIONS = 1 << 16  # that are remembered: more than a worker can have going on at a time


class Balanced:
    """As one Transport; first is the server that this worker begins with.

    by_number: a session's place follows from its number, the same on all workers.
    """

    def __init__(
        self,
        transports: Sequence[Transport],
        balance: str,
        first: int = 0,
        by_number: bool = False,
    ) -> None:
        self.transports = tuple(transports)
        self._by_number = by_number
        self._places: OrderedDict[int, Transport] = OrderedDict()  # of sessions, latest used last
        self.target = self.transports[0].target
        self._least = balance == "least-loaded"
        self._order = itertools.count(first)

    def send(
        self,
        path: str,
        body: bytes,
        answer: Any,
        method: str = "POST",
        more: bytes = b"",
        held: Held | None = None,
    ) -> Connection:
        """As Transport.send, to the server whose turn it is."""
        return self._pick().send(path, body, answer, method, more, held)

    def of_session(self, number: int) -> Transport:
        """The server that a session's turns go to: where its first one went."""
        if self._by_number:
            return self.transports[number % len(self.transports)]
        place = self._places.pop(number, None) or self._pick()
        self._places[number] = place
        if len(self._places) > MOST_SESSIONS:
            self._places.popitem(last=False)
        return place

    def _pick(self) -> Transport:
        n, at = len(self.transports), next(self._order)
        turn = [self.transports[(at + i) % n] for i in range(n)]
        return min(turn, key=lambda t: len(t.in_flight)) if self._least else turn[0]

    @property
    def in_flight(self) -> set[Connection]:
        """Connections with a request, of all servers."""
        return set().union(*(t.in_flight for t in self.transports))

    def connect_ahead(self, count: int) -> None:
        """Open connections for the first requests, shared out over the servers."""
        each = -(-count // len(self.transports))
        gevent.joinall([gevent.spawn(t.connect_ahead, each) for t in self.transports])

    def cancel_all(self, text: str) -> int:
        """End every exchange in flight as cancelled; returns how many there were."""
        return sum(t.cancel_all(text) for t in self.transports)

    def close(self) -> None:
        """Close all connections."""
        for transport in self.transports:
            transport.close()
