"""One connection: bytes in, requests out to the server, bytes back, in order.

Knows nothing about what is asked. Subtle: a request's arrival is the kernel's receive stamp of
its last bytes (SO_TIMESTAMPNS), not the moment a busy loop got round to reading them; without a
stamp, and with TLS, it is the moment of the read.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Iterator
from time import time_ns
from typing import TYPE_CHECKING

from tokenswarm.simulator.wire import CONTINUE, HttpRequest, RequestReader, WireError, head

if TYPE_CHECKING:
    from tokenswarm.simulator.job import Job

SO_TIMESTAMPNS = 35
MAX_PIPELINED = 64
READ_BYTES = 64 * 1024
_TIMESPEC = struct.Struct("@qq")
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection:
    """A socket and what is under way on it. on_request is called once a request is at its turn."""

    __slots__ = (
        "_closing", "_on_request", "_out", "_pull", "_reader", "_requests", "_send", "_sock",
        "_tls", "_want_write", "busy", "closed", "fd", "job", "peer_port",
    )  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        peer_port: int,
        max_body_bytes: int,
        on_request: Callable[[Connection, HttpRequest, int], None],
        want_write: Callable[[Connection, bool], None],
    ) -> None:
        self.fd = sock.fileno()
        self.peer_port = peer_port
        self.job: Job | None = None
        self.busy = False
        self.closed = False
        self._sock = sock
        self._send = sock.send
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._reader = RequestReader(max_body_bytes)
        self._requests: deque[tuple[HttpRequest, int]] = deque()
        self._out = bytearray()
        self._pull: Iterator[bytes] = iter(())
        self._closing = False
        self._on_request = on_request
        self._want_write = want_write
        if not self._tls:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    # --- out ---------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send, or keep until the peer reads on."""
        if self._out:
            self._out += data
            return
        if self.closed:
            return
        try:
            sent = self._send(data)
        except _WOULD_BLOCK:
            sent = 0
        except OSError:
            # The peer is gone; reading the socket will say so and end the job.
            return
        if sent < len(data):
            self._out += data[sent:]
            self._want_write(self, True)

    def respond(
        self,
        request: HttpRequest,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """A whole answer; closes afterwards when the request says so."""
        values = [("content-type", content_type), ("content-length", str(len(body))), *headers]
        if not request.keep_alive:
            values.append(("connection", "close"))
        self.write(head(status, values) + (b"" if request.method == "HEAD" else body))
        if not request.keep_alive:
            self.cut()

    def respond_pieces(self, request: HttpRequest, size: int, pieces: Iterator[bytes]) -> None:
        """A large answer, read from pieces only as fast as the peer takes it."""
        values = [("content-type", "application/x-ndjson"), ("content-length", str(size))]
        self._pull = pieces
        self.write(head(200, values))
        if not self._out:
            self.on_writable()
        if not request.keep_alive:
            self.cut()

    def on_writable(self) -> None:
        """The peer reads again: send what was kept."""
        if self._shaking_hands():
            return
        while self._out or self._refill():
            try:
                sent = self._send(self._out)
            except _WOULD_BLOCK:
                self._want_write(self, True)
                return
            except OSError:
                self._out.clear()
                self._pull = iter(())
                break
            del self._out[:sent]
        self._want_write(self, False)
        if self._closing:
            self.close()

    def reset(self) -> None:
        """Close so that the peer sees a reset."""
        if not self.closed:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close()

    def cut(self) -> None:
        """Close in order once everything is sent."""
        self._closing = True
        if not self._out:
            self.close()

    def close(self) -> None:
        """Close now."""
        if not self.closed:
            self.closed = True
            self._out.clear()
            self._requests.clear()
            self._want_write(self, False)
            self._sock.close()

    def finished(self, keep_alive: bool) -> None:
        """The answer under way has ended: on to the next request, or close."""
        self.job = None
        self.busy = False
        if not keep_alive:
            self.cut()
        else:
            self.pump()

    # --- in ----------------------------------------------------------------------------------

    def on_readable(self) -> bool:
        """Read what is there; False when the peer has closed."""
        if self._shaking_hands():
            return not self.closed
        while True:
            try:
                data, stamp = self._receive()
            except _WOULD_BLOCK:
                return True
            except OSError:
                return False
            if not data:
                return False
            if not self._take(data, stamp):
                return True
            if not self._tls:
                return True

    def pump(self) -> None:
        """Hand on the next request if its turn has come."""
        while self._requests and not self.busy and not self.closed and not self._closing:
            request, stamp = self._requests.popleft()
            self._on_request(self, request, stamp)

    def _receive(self) -> tuple[bytes, int]:
        if self._tls:
            return self._sock.recv(READ_BYTES), time_ns()
        data, ancillary, _, _ = self._sock.recvmsg(READ_BYTES, 64)
        for level, kind, value in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(value) >= 16:
                seconds, ns = _TIMESPEC.unpack_from(value)
                return data, seconds * 1_000_000_000 + ns
        return data, time_ns()

    def _take(self, data: bytes, stamp: int) -> bool:
        """Feed bytes; False when the peer does not speak HTTP and is being sent away."""
        try:
            requests = self._reader.feed(data)
            if len(self._requests) + len(requests) > MAX_PIPELINED:
                raise WireError(400, f"more than {MAX_PIPELINED} requests at once")
        except WireError as error:
            refusal = HttpRequest(keep_alive=False)
            self.respond(refusal, error.status, f"{error}\n".encode(), "text/plain")
            return False
        if self._reader.wants_continue:
            self._reader.wants_continue = False
            self.write(CONTINUE)
        self._requests.extend((request, stamp) for request in requests)
        self.pump()
        return not self.closed

    def _refill(self) -> bool:
        for piece in self._pull:
            self._out += piece
            return True
        return False

    def _shaking_hands(self) -> bool:
        """Go on with the TLS handshake; True while it is not complete."""
        if not isinstance(self._sock, ssl.SSLSocket) or self._sock.version() is not None:
            return False
        try:
            self._sock.do_handshake()
        except ssl.SSLWantWriteError:
            self._want_write(self, True)
            return True
        except ssl.SSLWantReadError:
            return True
        except OSError:
            self.close()
            return True
        return False
