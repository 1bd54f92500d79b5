"""One connection: a socket, and one request at a time on it, whose reads are stamped.

A connection is called back in the hub when there is something to read: it reads with recvmsg,
takes the kernel's receive time from the ancillary data (SO_TIMESTAMPNS), feeds the HTTP parser
and returns. The greenlet that sent the request wakes once, when the answer is complete. This
module knows HTTP/1.1 framing and TLS, nothing of events or tokens.

The one subtle rule: a callback never switches greenlets and never raises. Stamps are
CLOCK_REALTIME, because the kernel's are; `sent_ns` is taken from the same clock.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from typing import Any

import gevent
import httptools
from gevent import get_hub
from gevent.event import Event

from tokenswarm import transport_open as opening
from tokenswarm.records import Outcome
from tokenswarm.target import Target
from tokenswarm.transport_answer import Answer, Timeouts
from tokenswarm.transport_errors import AnswerError, TransportError, os_error_text, while_parsing
from tokenswarm.transport_first import EVERY, FirstTokens

_TIMESPEC = struct.Struct("@ll")
_CMSG_SPACE = socket.CMSG_SPACE(_TIMESPEC.size)
_READ_BYTES = 16384
_READ_EVENT = 1  # libev's EV_READ
# Of struct tcp_info, linux/tcp.h. The acknowledged bytes include one for the SYN.
_TCP_INFO_BYTES, _BYTES_ACKED, _BYTES_SENT, _BYTES_RETRANS = 256, 120, 200, 208
_U64 = struct.Struct("=Q")
_PEEK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)  # an int: `|` of flags takes microseconds
_MAX_FRAMING_BYTES = 1 << 20  # of headers, trailers or chunk extensions in a row
_RACE_NS = 500_000_000  # of a request and the end of an idle connection, which cross
_TAIL_NS = 250_000_000  # how long the end of the body may follow the protocol's end mark
NS = 1_000_000_000


class Connection:
    """One socket, for one request at a time."""

    __slots__ = (
        "_addresses", "_answer", "_done", "_error", "_feed", "_firsts", "_in", "_opener", "_out",
        "_parser", "_raw", "_recvmsg", "_sock", "_tls", "_watcher", "connect_ns", "idle_since_ns",
        "is_kept", "is_second", "is_unread", "reusable", "sent_ns", "target", "upload_ns",
    )  # fmt: skip

    def __init__(
        self, target: Target, firsts: FirstTokens, addresses: opening.Addresses | None = None
    ) -> None:
        self.target = target
        self._firsts = firsts
        self.is_kept = False  # it has served a request before
        self.is_second = False  # for this request: a kept one was closed by the server
        self.is_unread = False  # the server closed before it took the request
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
            self._hold(opening.connect(self._addresses or opening.resolve(self.target)))
            if self.target.proxy is not None and self.target.tls:
                opening.tunnel(self._sock, self.target, self.target.proxy)
            if self.target.tls:
                assert tls is not None
                self._tls, self._in, self._out = opening.handshake(
                    self._sock, tls, self.target.host
                )
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
            raise self._connect_error(os_error_text(e)) from None
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

    def _hold(self, sock: Any) -> None:
        self._sock = sock
        self._raw = sock._sock  # the plain socket: a callback must never switch greenlets
        self._recvmsg = self._raw.recvmsg
        self._watcher = get_hub().loop.io(sock.fileno(), _READ_EVENT)

    def exchange(self, payload: bytes, answer: Any) -> None:
        """Send a request and block this greenlet until its answer is complete.

        Raises TransportError: timeouts, a lost connection, or `cancel`'s outcome. sent_ns is
        set before the first byte is written, upload_ns when handing the bytes over took > 1 ms.
        """
        if self._error is not None:  # cancelled in the moment when it was connected
            raise self._error
        self._answer = answer
        self.is_unread = False
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
                self._error = TransportError(Outcome.CONNECTION_LOST, os_error_text(e))
                self.is_unread = self.is_kept
        took = time.monotonic_ns() - began
        if took > 1_000_000:
            self.upload_ns = took
        if self._error is not None and self._error.outcome is not Outcome.CONNECTION_LOST:
            raise self._error
        sending_failed, self._error = self._error, None
        self._firsts.watch(self._raw.fileno(), self._first_readable)
        try:
            self._done.wait()
        finally:
            self._firsts.forget(self._raw.fileno())
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

    def _first_readable(self) -> None:
        """Until the first token has come."""
        self._readable()
        answer = self._answer
        if answer is not None and answer.last_token_ns is not None:
            self._firsts.forget(self._raw.fileno())
            self._watcher.start(self._readable)

    def _readable(self) -> None:
        # The hot path: once a token. Between the read and its stamp nothing else may happen.
        firsts = self._firsts
        firsts.reads += 1
        if firsts.reads > EVERY:
            firsts.look()
        try:
            data, ancillary, _, _ = self._recvmsg(_READ_BYTES, _CMSG_SPACE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as e:
            self._lose(os_error_text(e))
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
                self.reusable = answer.keep_alive and not self._has_more()
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
        if isinstance(e, httptools.HttpParserError) and answer.complete:
            answer.after_read(stamped)  # what follows a complete answer is not part of it
            self._done.set()
        else:
            self._fail(*while_parsing(e))

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

    def _has_more(self) -> bool:
        """TLS holds what came behind a complete answer: what nobody asked for, or the end.

        Without TLS it is in the socket, where still_open looks.
        """
        if self._tls is None:
            return False
        try:
            self._tls.read(1)
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError:
            pass
        return True

    def _closed_by_server(self) -> None:
        answer = self._answer
        if not answer.complete:
            if answer.ended_ns is not None or answer.until_close:
                answer.complete = True
            else:
                self.is_unread = self.is_kept and self._is_unread_by_server()
                self._lose("the server closed before the answer's end")
                return
        self._done.set()

    def _is_unread_by_server(self) -> bool:
        """Whether the server may have ended the connection before it saw the request.

        It had when the bytes sent last were never acknowledged, or when TLS said so before they
        left. Some servers (llama.cpp's) end a kept connection just after an answer, without a
        word, while their kernel still takes what comes: an end in order soon after the request
        is taken for that. One that resets has failed, and is not asked here.
        """
        assert self.sent_ns is not None
        return self._is_unacknowledged() or self._answer.read_ns - self.sent_ns < _RACE_NS

    def _is_unacknowledged(self) -> bool:
        """By the kernel's count of bytes."""
        try:
            info = self._raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            (acknowledged,) = _U64.unpack_from(info, _BYTES_ACKED)
            (sent,) = _U64.unpack_from(info, _BYTES_SENT)
            (repeated,) = _U64.unpack_from(info, _BYTES_RETRANS)
        except (OSError, struct.error):  # a kernel that does not say
            return False
        return bool(acknowledged < sent - repeated)

    def _lose(self, text: str) -> None:
        if self.is_kept and not self._answer.is_heard:
            text += (
                ", before its first byte and on a kept connection: servers that close idle ones do "
                "that (backend.connection: new avoids it)"
            )
        self._fail(Outcome.CONNECTION_LOST, text)

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
        reason = timeouts.exceeded(answer, sent, now_ns)
        if reason is not None:
            self.cancel(*reason)

    def still_open(self) -> bool:
        """False when the server has closed an idle connection, or sent what nobody asked for."""
        try:
            self._raw.recv(1, _PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close the socket; safe to call twice."""
        if self._sock is not None:
            if getattr(self, "_watcher", None) is not None:
                self._firsts.forget(self._sock.fileno())
                self._watcher.stop()
                self._watcher.close()
            self._sock.close()
            self._sock = None
