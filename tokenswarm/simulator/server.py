"""The engine's server: one thread, one epoll, sends at their due times.

Knows nothing about protocols. Subtle: epoll waits in whole
milliseconds, so the loop waits with select on the epoll's own descriptor, which takes
microseconds.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import time
from time import monotonic_ns

from tokenswarm.records import BadInput
from tokenswarm.simulator.connection import Connection
from tokenswarm.simulator.request_log import RequestLog
from tokenswarm.simulator.service import Service
from tokenswarm.simulator.settings import Settings

logger = logging.getLogger(__name__)

FLUSH_EVERY_NS = 1_000_000_000
LONGEST_WAIT_S = 1.0
READS_A_TURN = 16
"""Sockets read between two looks at what is due: a burst of requests delays tokens by 1 ms."""


class Server:
    """Listens, reads, sends; `run` returns after `stop`."""

    def __init__(
        self,
        settings: Settings,
        host: str = "127.0.0.1",
        port: int = 8000,
        *,
        log_path: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._tls = tls
        self._listener = _listen(host, port)
        with contextlib.ExitStack() as undo:
            undo.callback(self._listener.close)
            self._log = RequestLog(log_path)
            undo.callback(self._log.close)
            self._service = Service(settings, self._log, self._wake, self.stop)
            undo.pop_all()
        self.engine = self._service.engine
        self.port: int = self._listener.getsockname()[1]
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._epoll = select.epoll()
        self._wake_read, self._wake_write = socket.socketpair()
        for sock in (self._listener, self._wake_read, self._wake_write):
            sock.setblocking(False)
        self._epoll.register(self._listener, select.EPOLLIN)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        self._accepting = True
        self._quitting = False
        self._flushed_ns = 0
        self._stalled = settings.stall_at_s is None or not settings.stall_for_s

    @property
    def wake_fd(self) -> int:
        """A descriptor to write a byte to when the loop must look up (signal.set_wakeup_fd)."""
        return self._wake_write.fileno()

    def run(self) -> None:
        """Serve until `stop`."""
        self._service.counting.start()
        try:
            while not self._quitting:
                self._turn()
        finally:
            self._shut_down()

    def stop(self) -> None:
        """End `run` soon; may be called from a signal handler or another thread."""
        self._quitting = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_write.send(b"x")

    # --- the loop ----------------------------------------------------------------------------

    def _turn(self) -> None:
        engine = self.engine
        due = engine.next_due()
        wait_ns = 0 if due is None else due - monotonic_ns()
        if due is None or wait_ns > 0:
            self._flush(idle=due is None)
            timeout = LONGEST_WAIT_S if due is None else min(wait_ns / 1e9, LONGEST_WAIT_S)
            select.select([self._epoll], (), (), timeout)
        if not self._stalled:
            self._maybe_stall()
        for fd, events in self._epoll.poll(0, READS_A_TURN):
            self._dispatch(fd, events)
        engine.run_due(monotonic_ns())

    def _dispatch(self, fd: int, events: int) -> None:
        connection = self._connections.get(fd)
        if connection is not None:
            if events & select.EPOLLOUT:
                connection.on_writable()
            readable = events & ~select.EPOLLOUT and not connection.closed
            if readable and not connection.on_readable():
                self._service.client_closed(connection)
            if connection.closed:
                self._forget(connection)
        elif fd == self._listener.fileno():
            self._accept()
        elif fd == self._wake_read.fileno():
            with contextlib.suppress(BlockingIOError):
                self._wake_read.recv(4096)
            self._service.take_counted()

    def _flush(self, *, idle: bool) -> None:
        now = monotonic_ns()
        if idle or now - self._flushed_ns > FLUSH_EVERY_NS:
            self._log.flush()
            self._flushed_ns = now

    def _maybe_stall(self) -> None:
        """The planned stall of the whole engine, once."""
        settings, first = self._settings, self.engine.first_arrival_ns
        if first is None or settings.stall_at_s is None:
            return
        start = first + int(settings.stall_at_s * 1e9)
        if monotonic_ns() < start:
            return
        length = int(settings.stall_for_s * 1e9)
        while not self._quitting and (left := start + length - monotonic_ns()) > 0:
            time.sleep(min(left / 1e9, 0.05))
        self.engine.stood_still(length, start + length)
        self._stalled = True

    def _shut_down(self) -> None:
        self._service.counting.stop()
        self.engine.stop()
        for connection in list(self._connections.values()):
            connection.close()
        for item in (self._listener, self._wake_read, self._wake_write, self._epoll):
            item.close()
        self._log.close()

    # --- connections -------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                logger.warning("no more connections until one is closed: %s", error)
                self._epoll.modify(self._listener, 0)
                self._accepting = False
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            connection = Connection(
                sock,
                address[1],
                self._settings.max_body_bytes,
                self._service.answer,
                self._want_write,
            )
            self._connections[connection.fd] = connection
            self.engine.metrics.connections += 1
            self._epoll.register(connection.fd, select.EPOLLIN)

    def _want_write(self, connection: Connection, wanted: bool) -> None:
        with contextlib.suppress(OSError, ValueError):
            if connection.closed:
                self._epoll.unregister(connection.fd)
                self._forget(connection)
                return
            mask = select.EPOLLIN | (select.EPOLLOUT if wanted else 0)
            self._epoll.modify(connection.fd, mask)

    def _forget(self, connection: Connection) -> None:
        if self._connections.get(connection.fd) is connection:
            del self._connections[connection.fd]
        if not self._accepting:
            self._epoll.modify(self._listener, select.EPOLLIN)
            self._accepting = True


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket on exactly this address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(4096)
    except (OSError, OverflowError) as error:
        sock.close()
        raise BadInput(f"--host {host} --port {port}: cannot listen there: {error}") from None
    return sock
