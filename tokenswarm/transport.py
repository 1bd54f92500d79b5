"""The only client socket: connections to one server, opened, reused, swept for time-outs.

A Transport keeps what it opened alive and gives it to the next request; how a request is sent
and its answer read and stamped is in transport_connection.py. It knows HTTP's request head,
nothing of what is asked.

The one subtle rule: a server may close a kept connection in the moment when it is used again.
That is no answer: the request then goes out on a connection of its own, and that is counted. A
reset, or an end that comes later, is the server's failure, and the request's outcome.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from typing import Any

from gevent import get_hub
from gevent.pool import Group

from tokenswarm import __version__
from tokenswarm.records import Outcome
from tokenswarm.target import Target
from tokenswarm.transport_answer import Timeouts
from tokenswarm.transport_connection import Connection
from tokenswarm.transport_errors import TransportError
from tokenswarm.transport_first import FirstTokens
from tokenswarm.transport_held import Held
from tokenswarm.transport_open import Addresses, proxy_headers, resolve

_SWEEP_S = 0.1
_MAX_IDLE_NS = 4_000_000_000  # common servers close idle connections after 5 s
USER_AGENT = f"tokenswarm/{__version__}"


class Transport:
    """A worker's connections to one target: opened, kept alive, reused, swept for time-outs."""

    def __init__(
        self,
        target: Target,
        timeouts: Timeouts,
        headers: tuple[tuple[str, str], ...] = (),
        tls: ssl.SSLContext | None = None,
        keep_alive: bool = True,
        firsts: FirstTokens | None = None,
    ) -> None:
        self.target = target
        self._firsts = (firsts or FirstTokens()).shared()
        self._is_open = True
        self.timeouts = timeouts
        self.tls = tls
        self.keep_alive = keep_alive
        self.in_flight: set[Connection] = set()
        self._idle: list[Connection] = []
        self._addresses: Addresses | None = None  # looked up once a run: a look-up takes a thread
        self._heads: dict[str, bytes] = {}
        self._headers = headers
        self._sweep = get_hub().loop.timer(_SWEEP_S, _SWEEP_S)
        self._sweep.start(self._check_all)

    def head(self, path: str, method: str = "POST") -> bytes:
        """Request line and headers up to the value of Content-Length."""
        key = f"{method} {path}"
        found = self._heads.get(key)
        if found is None:
            asked, extra = self.target.path(path), list[str]()
            if self.target.proxy is not None and not self.target.tls:
                asked = f"http://{self.target.host_header}{asked}"
                extra = proxy_headers(self.target.proxy)
            lines = [
                f"{method} {asked} HTTP/1.1",
                *extra,
                f"Host: {self.target.host_header}",
                f"User-Agent: {USER_AGENT}",
                "Accept: text/event-stream, application/json",
                "Accept-Encoding: identity",
                "Content-Type: application/json",
                *(["Connection: close"] if not self.keep_alive else []),
                *(f"{name}: {value}" for name, value in self._headers),
                "Content-Length: ",
            ]
            found = self._heads[key] = "\r\n".join(lines).encode("utf-8")
        return found

    def send(
        self,
        path: str,
        body: bytes,
        answer: Any,
        method: str = "POST",
        more: bytes = b"",
        held: Held | None = None,
    ) -> Connection:
        """One request; blocks until its answer is complete. more: header lines, each with CRLF.

        held: where the connection comes from and goes back to, if not the common ones.
        Returns the connection, for sent_ns, connect_ns and upload_ns; it already serves others.
        Raises TransportError, whose `connection` attribute is that connection.
        """
        head = self.head(path, method)
        payload = b"%b%d\r\n%b\r\n%b" % (head, len(body), more, body)
        kept = None if held is None else held.take()
        connection = kept or self._take() or self.connection()
        try:
            return self._send_on(connection, payload, answer, held)
        except TransportError:
            if not connection.is_unread or answer.is_heard:
                raise
        return self._send_on(self.connection(), payload, answer, held, is_second=True)

    def connection(self) -> Connection:
        """A new connection to the target, not opened yet."""
        return Connection(self.target, self._firsts, self._addresses)

    def _send_on(
        self,
        connection: Connection,
        payload: bytes,
        answer: Any,
        held: Held | None,
        is_second: bool = False,
    ) -> Connection:
        connection.is_second = is_second
        self.in_flight.add(connection)
        try:
            if connection.is_kept:
                connection.connect_ns = None
            elif connection.connect_ns is None:
                connection.open(self.timeouts.connect, self.tls)
            connection.exchange(payload, answer)
            connection.is_kept = True
        except TransportError as e:
            connection.close()
            e.connection = connection  # type: ignore[attr-defined]
            raise
        except BaseException:
            connection.close()
            raise
        finally:
            self.in_flight.discard(connection)
        if connection.reusable and self.keep_alive and held is not None:
            held.keep(connection)
        elif connection.reusable and self.keep_alive:
            connection.idle_since_ns = time.monotonic_ns()
            self._idle.append(connection)
        else:
            connection.close()
        return connection

    def connect_ahead(self, count: int) -> None:
        """Open connections for the first requests of a run, which then start at one instant.

        One that cannot be opened is left to its request, which reports it.
        """
        with contextlib.suppress(OSError):
            self._addresses = resolve(self.target)
        if not self.keep_alive:
            return
        openers = Group()
        for _ in range(count):
            openers.spawn(self._open_ahead)
        openers.join()

    def _open_ahead(self) -> None:
        connection = self.connection()
        try:
            connection.open(self.timeouts.connect, self.tls)
        except TransportError:
            return
        connection.idle_since_ns = time.monotonic_ns()
        self._idle.append(connection)

    def _take(self) -> Connection | None:
        now = time.monotonic_ns()
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since_ns < _MAX_IDLE_NS and connection.still_open():
                return connection
            connection.close()
        return None

    def _check_all(self) -> None:
        now = time.time_ns()
        for connection in tuple(self.in_flight):
            connection.check(now, self.timeouts)

    def cancel_all(self, text: str) -> int:
        """End every exchange in flight as cancelled; returns how many there were."""
        connections = tuple(self.in_flight)
        for connection in connections:
            connection.cancel(Outcome.CANCELLED, text)
        return len(connections)

    def close(self) -> None:
        """Close all connections and stop the sweep."""
        self._sweep.stop()
        for connection in (*self._idle, *self.in_flight):
            connection.close()
        self._idle.clear()
        if self._is_open:
            self._is_open = False
            self._firsts.close()
