"""The only client socket and the only clock: send one request, hand out stamped reads.

A connection has one persistent io watcher, whose callback runs in the hub: it reads with
recvmsg, takes the kernel's receive time from the ancillary data (SO_TIMESTAMPNS), feeds the
HTTP parser and returns. The greenlet that sent the request wakes once, when the answer is
complete. This module knows HTTP/1.1 framing and TLS, nothing of events or tokens.

The one subtle rule: a callback never switches greenlets and never raises. Stamps are
CLOCK_REALTIME, because the kernel's are; `sent_ns` is taken from the same clock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from typing import Any, Protocol

import gevent
import gevent.socket
import httptools
from gevent import get_hub
from gevent.event import Event
from gevent.pool import Group

from tokenswarm import __version__
from tokenswarm.records import BadInput, Outcome
from tokenswarm.target import Proxy, Target
from tokenswarm.transport_held import Held

SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@ll")
_CMSG_SPACE = socket.CMSG_SPACE(_TIMESPEC.size)
_READ_BYTES = 16384
_READ_EVENT = 1  # libev's EV_READ
_SWEEP_S = 0.1
_STARVED_SHARE = 0.05
_RACE_NS = 1_000_000_000
_MAX_IDLE_NS = 4_000_000_000  # common servers close idle connections after 5 s
_MAX_FRAMING_BYTES = 1 << 20  # of headers, trailers or chunk extensions in a row
_TAIL_NS = 250_000_000  # how long the end of the body may follow the protocol's end mark
NS = 1_000_000_000
Addresses = list[tuple[Any, Any, int, str, Any]]
USER_AGENT = f"tokenswarm/{__version__}"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; None for no limit. first_token and total count from sent, stall between tokens."""

    connect: float | None = 10.0
    first_token: float | None = 600.0
    stall: float | None = 120.0
    total: float | None = None


class TransportError(Exception):
    """Why no complete answer came; outcome says which kind."""

    def __init__(self, outcome: Outcome, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome
        self.text = text


class Answer(Protocol):
    """What a connection feeds: httptools' callbacks, plus a call around each read.

    last_token_ns is when a token last came (None before the first), ended_ns when the
    protocol's own end mark came: both decide on time-outs. until_close is True for a body that
    only the end of the connection ends. framing_bytes counts bytes read since the last piece of
    the body: the answer sets it to 0 then. fresh counts the token events that the read in hand
    brought. is_heard: a byte of the response has come.
    """

    read_ns: int
    complete: bool
    keep_alive: bool
    until_close: bool
    framing_bytes: int
    fresh: int
    is_heard: bool
    last_token_ns: int | None
    ended_ns: int | None

    def attach(self, parser: Any) -> None:
        """The HTTP parser that will call back, before anything is sent."""

    def after_read(self, stamped: bool) -> None:
        """All that a read brought was parsed; not called for a stamped one with one token event.

        It sets fresh to 0.
        """

    def look(self) -> None:
        """Called a few times a second. Raises AnswerError when the answer is too long to keep."""


class LoopClock:
    """How late the loop is, to tell our own lag from a server that batches.

    Late by its own turns, or because the machine gave this process no CPU: then a turn is short
    and events piled up all the same. The kernel counts how long a process waited for a CPU.
    """

    def __init__(self) -> None:
        self._schedstat = -1
        with contextlib.suppress(OSError):  # not every kernel keeps it
            self._schedstat = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._waited = (time.monotonic_ns(), self._waited_ns())
        self.turn_start_ns = time.monotonic_ns()
        self.last_turn_ns = 0
        loop = get_hub().loop
        self._check = loop.check()
        self._check.start(self._turn_starts)
        self._prepare = loop.prepare()
        self._prepare.start(self._turn_ends)

    def _turn_starts(self) -> None:
        self.turn_start_ns = time.monotonic_ns()

    def _turn_ends(self) -> None:
        self.last_turn_ns = time.monotonic_ns() - self.turn_start_ns

    def lag_ns(self) -> int:
        """Longest that an event may have waited unread; called for suspicious reads only.

        That is the turn before, or this one so far, or how long the process waited for a CPU
        since the last call, when that was no negligible share of the time.
        """
        now, waited = time.monotonic_ns(), self._waited_ns()
        then, waited_then = self._waited
        self._waited = (now, waited)
        starved = waited - waited_then
        if starved < _STARVED_SHARE * (now - then):
            starved = 0
        return max(self.last_turn_ns, now - self.turn_start_ns, starved)

    def _waited_ns(self) -> int:
        """Time that this process waited for a CPU so far; 0 where the kernel does not say."""
        try:
            return int(os.pread(self._schedstat, 128, 0).split()[1])
        except (OSError, IndexError, ValueError):
            return 0

    def close(self) -> None:
        """Stop watching the loop."""
        self._check.stop()
        self._prepare.stop()
        if self._schedstat >= 0:
            os.close(self._schedstat)
            self._schedstat = -1


class Connection:
    """One socket, for one request at a time."""

    __slots__ = (
        "_addresses", "_answer", "_done", "_error", "_feed", "_in", "_opener", "_out", "_parser",
        "_raw", "_recvmsg", "_sock", "_tls", "_watcher", "connect_ns", "idle_since_ns", "is_second",
        "reusable", "sent_ns", "target", "upload_ns", "used",
    )  # fmt: skip

    def __init__(self, target: Target, addresses: Addresses | None = None) -> None:
        self.target = target
        self.used = False
        self.is_second = False  # the first, a kept one, was closed by the server
        self._addresses = addresses
        self._sock: Any = None
        self._tls: ssl.SSLObject | None = None
        self._in: ssl.MemoryBIO | None = None
        self._out: ssl.MemoryBIO | None = None
        self._answer: Any = None
        self._error: TransportError | None = None
        self._opener: Any = None  # the greenlet that is connecting
        self._done = Event()
        self.reusable = False
        self.connect_ns: int | None = None
        self.sent_ns: int | None = None
        self.upload_ns: int | None = None
        self.idle_since_ns = 0

    def open(self, timeout_s: float | None, tls: ssl.SSLContext | None) -> None:
        """Look the name up, connect and, for https, shake hands.

        Raises TransportError (connect_error). Afterwards connect_ns says how long it took.
        """
        began = time.monotonic_ns()
        timeout = gevent.Timeout(timeout_s) if timeout_s else None
        if timeout:
            timeout.start()
        self._opener = gevent.getcurrent()
        try:
            self._connect()
            if self.target.proxy is not None and self.target.tls:
                self._tunnel(self.target.proxy)
            if self.target.tls:
                assert tls is not None
                self._handshake(tls)
        except gevent.Timeout as fired:
            if fired is not timeout:
                raise
            self.close()
            raise self._connect_error(f"no connection within {timeout_s:g} s") from None
        except ssl.SSLCertVerificationError as e:
            self.close()
            raise self._connect_error(
                f"certificate not trusted: {e.verify_message} (backend.ca_file, backend.insecure)"
            ) from None
        except OSError as e:  # ssl.SSLError is one
            self.close()
            raise self._connect_error(_os_error_text(e)) from None
        finally:
            self._opener = None
            if timeout:
                timeout.close()
        self.connect_ns = time.monotonic_ns() - began

    def _connect_error(self, text: str) -> TransportError:
        where = f"{self.target.host}:{self.target.port}"
        if self.target.proxy is not None:
            where += f" through proxy {self.target.proxy.host}:{self.target.proxy.port}"
        return TransportError(Outcome.CONNECT_ERROR, f"{where}: {text}")

    def _connect(self) -> None:
        for family, kind, protocol, _, address in self._addresses or resolve(self.target):
            sock = gevent.socket.socket(family, kind, protocol)
            try:
                sock.connect(address)
            except OSError as e:
                sock.close()
                refused: OSError | None = e
            except BaseException:
                sock.close()
                raise
            else:
                refused = None
                break
        if refused is not None:
            raise refused
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # some stacks lack it; each unstamped read is counted
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._sock = sock
        self._raw = sock._sock  # the plain socket: a callback must never switch greenlets
        self._recvmsg = self._raw.recvmsg
        self._watcher = get_hub().loop.io(sock.fileno(), _READ_EVENT)

    def _tunnel(self, proxy: Proxy) -> None:
        """Have the proxy connect us to the server: from then on it only passes bytes on."""
        authority = self.target.authority
        lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}", *_proxy_headers(proxy)]
        self._sock.sendall("\r\n".join([*lines, "", ""]).encode())
        said = b""
        while b"\r\n\r\n" not in said and len(said) < _READ_BYTES:
            data = self._sock.recv(1)  # not a byte of what the server says itself
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, "closed by the proxy")
            said += data
        status = said.split(b"\r\n", 1)[0].decode("latin-1")
        if status.split(" ")[1:2] != ["200"]:
            raise OSError(f"the proxy said '{status[:80]}' to CONNECT {authority}")

    def _handshake(self, context: ssl.SSLContext) -> None:
        # Through MemoryBIO, because an SSLSocket hides the ancillary data with the stamps.
        self._in, self._out = incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(incoming, outgoing, server_hostname=self.target.host)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._sock.sendall(outgoing.read())
                data = self._sock.recv(_READ_BYTES)
                if not data:
                    raise ConnectionResetError(
                        errno.ECONNRESET, "closed during the TLS handshake"
                    ) from None
                incoming.write(data)
            else:
                break
        self._sock.sendall(outgoing.read())

    def exchange(self, payload: bytes, answer: Any) -> None:
        """Send a request and block this greenlet until its answer is complete.

        Raises TransportError: timeouts, a lost connection, or `cancel`'s outcome. sent_ns is
        set before the first byte is written, upload_ns when handing the bytes over took > 1 ms.
        """
        if self._error is not None:  # cancelled in the moment when it was connected
            raise self._error
        self._answer = answer
        self._done.clear()
        self.reusable = False
        self.upload_ns = None
        self._parser = httptools.HttpResponseParser(answer)
        answer.attach(self._parser)
        self._feed = self._parser.feed_data if self._tls is None else self._feed_tls
        payload = self._seal(payload)
        self.sent_ns = time.time_ns()
        began = time.monotonic_ns()
        try:
            self._send(payload)
        except OSError as e:
            # The server may have answered (413, 503) and closed before it read everything.
            if self._error is None:
                self._error = TransportError(Outcome.CONNECTION_LOST, _os_error_text(e))
        took = time.monotonic_ns() - began
        if took > 1_000_000:
            self.upload_ns = took
        if self._error is not None and self._error.outcome is not Outcome.CONNECTION_LOST:
            raise self._error
        sending_failed, self._error = self._error, None
        self._watcher.start(self._readable)
        try:
            self._done.wait()
        finally:
            self._watcher.stop()
            self._answer = None
        if self._error is not None:
            raise sending_failed or self._error

    def _send(self, data: bytes) -> None:
        """All of it; usually the kernel takes it at once, and nobody need wait."""
        try:
            sent = self._raw.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._sock.sendall(memoryview(data)[sent:])

    def _seal(self, payload: bytes) -> bytes:
        if self._tls is None:
            return payload
        assert self._out is not None
        self._tls.write(payload)
        return self._out.read()

    def _readable(self) -> None:
        # The hot path: once a token. Between the read and its stamp nothing else may happen.
        try:
            data, ancillary, _, _ = self._recvmsg(_READ_BYTES, _CMSG_SPACE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as e:
            self._fail(Outcome.CONNECTION_LOST, _os_error_text(e))
            return
        answer = self._answer
        if ancillary:
            seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2])
            answer.read_ns = seconds * NS + nanoseconds
        else:
            answer.read_ns = time.time_ns()
        if not data:
            self._closed_by_server()
            return
        try:
            self._feed(data)
            if answer.fresh == 1 and ancillary:  # nearly every read
                answer.fresh = 0
            else:
                self._account(answer, len(data), bool(ancillary))
        except Exception as e:  # noqa: BLE001 - an outcome, never a dead worker
            self._failed_on(e, answer, len(data), bool(ancillary))
        else:
            if answer.complete:
                self.reusable = answer.keep_alive
                self._done.set()

    def _account(self, answer: Answer, size: int, stamped: bool) -> None:
        if not answer.fresh:
            answer.framing_bytes += size
            if answer.framing_bytes > _MAX_FRAMING_BYTES:
                raise AnswerError(
                    Outcome.MALFORMED, f"{answer.framing_bytes} bytes of headers or framing"
                )
        answer.after_read(stamped)

    def _failed_on(self, e: Exception, answer: Answer, size: int, stamped: bool) -> None:
        """What came could not be used: say which outcome that is."""
        answer.framing_bytes += size
        if isinstance(e, httptools.HttpParserUpgrade):
            self._fail(Outcome.MALFORMED, "the server switched protocols")
        elif isinstance(e, httptools.HttpParserError):
            cause = e.__context__
            if answer.complete:  # what follows a complete answer is not part of it
                answer.after_read(stamped)
                self._done.set()
            elif isinstance(cause, AnswerError):
                self._fail(cause.outcome, str(cause))
            elif isinstance(e, httptools.HttpParserCallbackError):
                self._fail(Outcome.INTERNAL_ERROR, f"{type(cause).__name__}: {cause}")
            else:
                self._fail(Outcome.CONNECTION_LOST, f"broken HTTP framing: {e}")
        elif isinstance(e, AnswerError):
            self._fail(e.outcome, str(e))
        else:  # our own fault
            self._fail(Outcome.INTERNAL_ERROR, f"{type(e).__name__}: {e}")

    def _feed_tls(self, data: bytes) -> None:
        assert self._tls is not None
        assert self._in is not None
        self._in.write(data)
        while not self._answer.complete:
            try:
                plain = self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                return
            except ssl.SSLError as e:
                if isinstance(e, ssl.SSLZeroReturnError):
                    self._closed_by_server()
                else:
                    self._fail(Outcome.CONNECTION_LOST, f"TLS: {e.reason or e}")
                return
            if not plain:
                self._closed_by_server()
                return
            self._parser.feed_data(plain)

    def _closed_by_server(self) -> None:
        answer = self._answer
        if not answer.complete:
            if answer.ended_ns is not None or answer.until_close:
                answer.complete = True
            else:
                self._fail(Outcome.CONNECTION_LOST, "the server closed before the answer's end")
                return
        self._done.set()

    def _fail(self, outcome: Outcome, text: str) -> None:
        if self._error is None:
            self._error = TransportError(outcome, text)
        self.reusable = False
        self._done.set()

    def cancel(self, outcome: Outcome, text: str) -> None:
        """End the exchange in flight from outside; its greenlet gets a TransportError."""
        if self._done.is_set():
            return
        self._fail(outcome, text)
        if self._opener is not None:
            get_hub().loop.run_callback(self._interrupt_opener)
        if self._answer is not None:
            with contextlib.suppress(OSError):
                self._raw.shutdown(socket.SHUT_RDWR)  # wakes a sendall that waits

    def _interrupt_opener(self) -> None:
        if self._opener is not None:
            self._opener.throw(self._error)

    def check(self, now_ns: int, timeouts: Timeouts) -> None:
        """Apply the time-outs; called by the sweep, in the hub."""
        answer, sent = self._answer, self.sent_ns
        if answer is None or sent is None or self._done.is_set():
            return
        if answer.ended_ns is not None:
            if now_ns - answer.ended_ns > _TAIL_NS:  # everything came but the end of the body
                answer.complete = True
                self._done.set()
            return
        if timeouts.total is not None and now_ns - sent > timeouts.total * NS:
            self.cancel(Outcome.TIMEOUT_TOTAL, f"not complete within {timeouts.total:g} s")
            return
        try:
            answer.look()
        except AnswerError as e:
            self.cancel(e.outcome, str(e))
            return
        last = answer.last_token_ns
        if last is None:
            limit = timeouts.first_token
            if limit is not None and now_ns - sent > limit * NS:
                self.cancel(Outcome.TIMEOUT_FIRST_TOKEN, f"no token within {limit:g} s")
        elif timeouts.stall is not None and now_ns - last > timeouts.stall * NS:
            self.cancel(Outcome.TIMEOUT_STALLED, f"no further token for {timeouts.stall:g} s")

    def still_open(self) -> bool:
        """False when the server has closed an idle connection, or sent what nobody asked for."""
        try:
            self._raw.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close the socket; safe to call twice."""
        if self._sock is not None:
            if getattr(self, "_watcher", None) is not None:
                self._watcher.stop()
                self._watcher.close()
            self._sock.close()
            self._sock = None


class AnswerError(Exception):
    """Raised inside an Answer's callbacks to end the exchange with this outcome."""

    def __init__(self, outcome: Outcome, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


def _os_error_text(e: OSError) -> str:
    if isinstance(e, socket.gaierror):
        return f"name not known ({e.strerror or e})"
    if e.errno in (errno.EMFILE, errno.ENFILE):
        return "no file descriptor left (raise `ulimit -n`, or use more workers)"
    if e.errno == errno.EADDRNOTAVAIL:
        return "no local port left (raise net.ipv4.ip_local_port_range, or use more hosts)"
    if e.errno is not None:
        return f"{os.strerror(e.errno)} [{errno.errorcode.get(e.errno, e.errno)}]"
    return str(e) or type(e).__name__


def resolve(target: Target) -> Addresses:
    """The addresses of a target's host. Raises OSError (socket.gaierror)."""
    to = target.proxy or target
    found: Addresses = gevent.socket.getaddrinfo(to.host, to.port, type=socket.SOCK_STREAM)
    return found


def _proxy_headers(proxy: Proxy) -> list[str]:
    return [f"Proxy-Authorization: Basic {proxy.key}"] if proxy.key else []


def tls_context(ca_file: str | None, insecure: bool) -> ssl.SSLContext:
    """Client TLS settings. Raises BadInput when ca_file cannot be read."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as e:
        raise BadInput(f"backend.ca_file: cannot read '{ca_file}': {e}") from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


class Transport:
    """A worker's connections to one target: opened, kept alive, reused, swept for time-outs."""

    def __init__(
        self,
        target: Target,
        timeouts: Timeouts,
        headers: tuple[tuple[str, str], ...] = (),
        tls: ssl.SSLContext | None = None,
        keep_alive: bool = True,
    ) -> None:
        self.target = target
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
                extra = _proxy_headers(self.target.proxy)
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
        connection = kept or self._take() or Connection(self.target, self._addresses)
        was_kept = connection.used
        try:
            return self._send_on(connection, payload, answer, held)
        except TransportError as e:
            # A server may close a kept connection in the moment when it is used again. That is
            # no answer to this request, which is asked once more, on a connection of its own. A
            # loss that comes later is the server's failure, and the request's outcome.
            raced = time.time_ns() - (connection.sent_ns or 0) < _RACE_NS
            lost = e.outcome is Outcome.CONNECTION_LOST
            if not (was_kept and lost and raced) or answer.is_heard:
                raise
        connection = Connection(self.target, self._addresses)
        connection.is_second = True
        return self._send_on(connection, payload, answer, held)

    def _send_on(
        self, connection: Connection, payload: bytes, answer: Any, held: Held | None
    ) -> Connection:
        self.in_flight.add(connection)
        try:
            if connection.used:
                connection.connect_ns = None
            elif connection.connect_ns is None:
                connection.open(self.timeouts.connect, self.tls)
            connection.used = True
            connection.exchange(payload, answer)
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
        connection = Connection(self.target, self._addresses)
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
