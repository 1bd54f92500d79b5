"""One answer, from bytes to stamped token events, and what became of the request.

Stream is what a connection feeds: HTTP callbacks in, events through the SSE parser and the
protocol's reader, stamps and texts kept. It runs in the hub's callback, so it does only what
must be done once a token. stream_settle.py fills the facts into a Record afterwards.

The one subtle rule: what an answer is worth is decided once, in `verdict`, from facts gathered
while reading; an event after the protocol's end mark never counts.
"""

from __future__ import annotations

import zlib
from array import array
from contextlib import suppress
from operator import sub
from typing import Any

import orjson

from tokenswarm.backends import Backend, Reader
from tokenswarm.backends.openai_common import error_text
from tokenswarm.clock import LoopClock
from tokenswarm.lookalike import Lookalike, decode
from tokenswarm.measure import spread_lagged
from tokenswarm.records import Outcome, TokenEvent, Usage
from tokenswarm.sse import EventTooLong, LineParser, SseParser
from tokenswarm.stream_retry import retry_after_s
from tokenswarm.transport_errors import AnswerError, TransportError

LAG_NS = 1_000_000  # a loop turn longer than this may have let events pile up
_KEPT_BODY_BYTES = 65536
_KEPT_REASON_CHARS = 64
_INFLATE_STEP = 1 << 20
# What no server means: beyond these an answer is cut off, so that memory stays bounded.
MAX_DOCUMENT_BYTES = 16 << 20
MAX_ANSWER_CHARS = 64 << 20
MAX_TOKEN_EVENTS = 1_000_000
MAX_INFLATED_BYTES = 2 << 20  # of one read of 64 KiB
_LOOK_EVENTS = 1024  # how often that is looked at


class Stream:
    """The answer to one request; see transport_answer.Answer for what a connection reads of it."""

    __slots__ = (
        "_alike", "_answers", "_body", "_clock", "_closes", "_foot", "_head", "_headers",
        "_inflate", "_is_interim", "_is_stream", "_lines", "_more", "_next_look", "_parser", "_raw",
        "_read", "_skip_foot", "_skip_head", "_sse", "_streams", "_texts", "_understood",
        "_widest_ns", "batched_reads", "coalesced_reads", "complete", "counted_events",
        "ended_ns", "error", "event_ns", "finish_reason", "first_answer_ns",
        "first_event_tokens", "framing_bytes", "fresh", "given_up_ns", "keep_alive", "malformed",
        "read_ns", "status", "token_sum", "unstamped_reads", "until_close", "usage",
    )  # fmt: skip

    def __init__(self, backend: Backend, clock: LoopClock) -> None:
        self._parser: Any = None
        self._read: Reader = backend.reader()
        self._streams = backend.streams
        self._closes = backend.closes
        self._clock = clock
        self._lines = backend.lines
        self._sse: SseParser | LineParser = LineParser() if backend.lines else SseParser()
        self._alike = Lookalike(self._read) if backend.stateless else None
        # What surrounds the text of an event like the last ones; None when the long way is due.
        self._head: bytes | None = None
        self._foot = b""
        self._skip_head = 0
        self._skip_foot = 0
        self._headers: dict[bytes, bytes] = {}
        self._inflate: Any = None
        self._is_interim = False
        self._is_stream = False
        self._understood = False  # at least one event
        self._body = bytearray()
        self._texts: list[str] = []
        self._answers: list[str] | None = None  # of them, those of the answer; None while all are
        self._raw = bytearray()  # text that follows them, not looked at yet, see lookalike
        self._next_look = _LOOK_EVENTS
        self._more = 0  # events that came in a read with an earlier one
        self._widest_ns: int | None = None
        self.read_ns = 0
        self.fresh = 0
        self.framing_bytes = 0
        self.complete = False
        self.keep_alive = False
        self.until_close = False
        self.ended_ns: int | None = None
        self.given_up_ns: int | None = None  # when it failed, or was waited for no longer
        self.status: int | None = None
        self.event_ns = array("q")
        self.token_sum = 0  # over the events that say how many tokens they carry
        self.counted_events = 0
        self.first_event_tokens: int | None = None
        self.batched_reads = 0
        self.coalesced_reads = 0
        self.unstamped_reads = 0
        self.first_answer_ns: int | None = None
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.malformed: str | None = None

    @property
    def last_token_ns(self) -> int | None:
        """When a token last came."""
        return self.event_ns[-1] if self.event_ns else None

    @property
    def end_ns(self) -> int | None:
        """When the request was over: the end mark, the last read, or when it was given up."""
        return self.ended_ns or self.given_up_ns or self.read_ns or None

    @property
    def reads(self) -> int:
        """Socket reads that brought token events."""
        return len(self.event_ns) - self._more

    @property
    def longest_gap_ns(self) -> int | None:
        """The longest wait between two reads with tokens; None with fewer than two."""
        if self.reads < 2:
            return None
        widest: int = max(map(sub, self.event_ns[1:], self.event_ns))
        return widest if self._widest_ns is None else max(widest, self._widest_ns)

    @property
    def is_heard(self) -> bool:
        """A byte of the response has come."""
        return bool(self.framing_bytes) or self.status is not None

    # -- httptools' callbacks ------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A response begins: forget an interim one's headers; a second one was not asked for."""
        if self.complete:
            raise AnswerError(Outcome.MALFORMED, "a second response to one request")
        self._headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; a server that sends endless ones is cut off."""
        if len(self._headers) > 200:
            raise AnswerError(Outcome.MALFORMED, "more than 200 response headers")
        self._headers[name.lower()] = value

    def attach(self, parser: Any) -> None:
        """The parser that will call back; it alone knows the status."""
        self._parser = parser

    def on_headers_complete(self) -> None:
        """Status and headers are known: decide how to read the body."""
        status = self._parser.get_status_code()
        self._is_interim = status < 200  # not the answer: 100 Continue, 103 Early Hints
        if self._is_interim:
            return
        self.status = status
        media = self._headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        sse = media != b"text/html" if self._lines else media in (b"text/event-stream", b"")
        self._is_stream = self._streams and status == 200 and sse
        encoding = self._headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding in (b"gzip", b"deflate", b"x-gzip"):
            self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
        elif encoding not in (b"identity", b""):
            raise AnswerError(
                Outcome.MALFORMED,
                f"content-encoding {encoding.decode('latin-1')!r} was not asked for",
            )
        self.until_close = (
            b"content-length" not in self._headers
            and b"chunked" not in self._headers.get(b"transfer-encoding", b"").lower()
        )

    def on_body(self, data: bytes) -> None:
        """A piece of the body, stamped read_ns."""
        self.framing_bytes = 0
        # The hot path: nearly every piece is one event like the one before, and its text can
        # wait to be looked at until the answer is complete.
        head = self._head
        if head is not None and data.startswith(head) and data.endswith(self._foot):
            middle = data[self._skip_head : self._skip_foot]
            if (
                middle
                and b'"' not in middle
                and b"\\" not in middle
                and (middle.isascii() or middle[0] & 0xC0 != 0x80)  # no rest of a character
            ):
                self.event_ns.append(self.read_ns)
                self._raw += middle
                self.fresh += 1
                return
        if self._inflate is None:
            self._take(data)
            return
        inflated = 0
        try:
            # piecewise, so that a small body that inflates to gigabytes needs no memory
            piece = self._inflate.decompress(data, _INFLATE_STEP)
            while piece:
                inflated += len(piece)
                if inflated > MAX_INFLATED_BYTES:
                    raise AnswerError(
                        Outcome.MALFORMED,
                        f"{len(data)} bytes inflate to more than {MAX_INFLATED_BYTES}",
                    )
                self._take(piece)
                piece = self._inflate.decompress(self._inflate.unconsumed_tail, _INFLATE_STEP)
        except zlib.error as e:
            raise AnswerError(Outcome.MALFORMED, f"broken compression: {e}") from None

    def on_message_complete(self) -> None:
        """The body is complete, unless it was an interim (1xx) response."""
        if not self._is_interim:
            self.complete = True
            self.keep_alive = self._parser.should_keep_alive()  # llhttp forgets it afterwards

    # -- the body ------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        if not self._is_stream:
            if not self._streams and len(self._body) > MAX_DOCUMENT_BYTES:
                raise AnswerError(
                    Outcome.MALFORMED, f"an answer of more than {MAX_DOCUMENT_BYTES} bytes"
                )
            if not self._streams or len(self._body) < _KEPT_BODY_BYTES:
                self._body += data
            return
        try:
            events = self._sse.feed(data)
        except EventTooLong as e:
            raise AnswerError(Outcome.MALFORMED, str(e)) from None
        for payload, name in events:
            self._event(payload, name)
        alike = self._alike
        if alike is not None and alike.head is not None:
            usable = self._sse.idle and self.ended_ns is None and self._inflate is None
            self._head = alike.head if usable else None

    def _event(self, payload: bytes, name: str) -> None:
        if self.ended_ns is not None:
            return
        try:
            event = self._read(payload, name)
        except ValueError as e:
            if self.malformed is None:
                shown = payload[:80].decode("utf-8", "replace")
                self.malformed = f"event {shown!r}: {str(e)[:100]}"
            return
        self._understood = True
        alike, worked = self._alike, bool(self._raw)
        self._note(event)
        if alike is not None and not name and alike.learn(payload, event, worked):
            self._foot = alike.foot
            self._skip_head, self._skip_foot = len(alike.head or b""), -len(alike.foot)

    def _note(self, event: TokenEvent) -> None:
        text = event.text
        if text or event.reasoning or event.tool:
            self._decode()
            self.event_ns.append(self.read_ns)
            self.fresh += 1
            if event.tokens:
                self.counted_events += 1
                self.token_sum += event.tokens
                if len(self.event_ns) == 1:
                    self.first_event_tokens = event.tokens
            if self._answers is None and (event.reasoning or event.tool):
                self._answers = list(self._texts)
            if text:
                self._keep(text, is_answer=True)
                if self.first_answer_ns is None:
                    self.first_answer_ns = self.read_ns
            if event.reasoning:
                self._keep(event.reasoning, is_answer=False)
            if event.tool:
                self._keep(event.tool, is_answer=False)
        if event.usage is not None:
            self.usage = event.usage
        if event.finish_reason is not None:
            self.finish_reason = str(event.finish_reason)[:_KEPT_REASON_CHARS]
        if event.error is not None and self.error is None:
            self.error = event.error
        if event.end:
            self.ended_ns = self.read_ns

    def _keep(self, text: str, is_answer: bool) -> None:
        self._texts.append(text)
        if is_answer and self._answers is not None:
            self._answers.append(text)

    def after_read(self, stamped: bool) -> None:
        """Account for a read: how many token events it brought, and whose doing that was.

        A connection need not call it for a stamped read with one token event.
        """
        n, self.fresh = self.fresh, 0
        if not n:
            return
        if not stamped:
            self.unstamped_reads += 1
        if n > 1:
            self._more += n - 1
            before = len(self.event_ns) - n
            if before:
                gap = self.read_ns - self.event_ns[before - 1]
                self._widest_ns = max(gap, self._widest_ns or 0)
            lagging = self._clock.lag_ns() > LAG_NS
            if lagging:
                self.coalesced_reads += 1
            else:
                self.batched_reads += 1
            spread_lagged(self.event_ns, before, lagging)
            self.look()

    def look(self) -> None:
        """Cut an answer off that never ends: its texts and stamps are kept in memory."""
        events = len(self.event_ns)
        if events < self._next_look:
            return
        self._next_look = events + _LOOK_EVENTS
        chars = len(self.text)
        if events > MAX_TOKEN_EVENTS or chars > MAX_ANSWER_CHARS:
            raise AnswerError(
                Outcome.MALFORMED,
                f"an answer without end: {events} token events, {chars} characters so far",
            )

    # -- afterwards ----------------------------------------------------------------------------

    def end_of_body(self) -> None:
        """Look at what the end of the body left behind: an unterminated end mark, a document."""
        if self._is_stream:
            self._decode()  # first: what is wrong with it is not the cut's doing
            before = self.malformed
            with suppress(EventTooLong):  # told already, when it was read
                for payload, name in self._sse.finish():
                    self._event(payload, name)
            self.malformed = before  # cut off is truncated, not malformed
            self.after_read(stamped=True)
        elif not self._streams and self.status == 200:
            self._event(bytes(self._body), "")
            self.after_read(stamped=True)

    @property
    def text(self) -> str:
        """All generated text, channels in the order they came."""
        self._decode()
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

    @property
    def answer(self) -> str:
        """The text of the answer alone: what a client puts into the history of a conversation."""
        text = self.text
        return text if self._answers is None else "".join(self._answers)

    def _decode(self) -> None:
        """Look at the text of events that were only likened to others."""
        if self._raw:
            raw, self._raw = bytes(self._raw), bytearray()
            text = decode(raw)
            if text is not None:
                self._keep(text, is_answer=self._alike is None or self._alike.channel == "text")
            elif self.malformed is None:
                shown = raw[:80].decode("utf-8", "replace")
                self.malformed = f"events with the text {shown!r}...: not valid JSON"

    @property
    def throttled(self) -> bool:
        """The server asked to come back later."""
        return self.status == 429 or (self.status == 503 and b"retry-after" in self._headers)

    def retry_after_s(self) -> float | None:
        """Seconds that the server asks to wait; None when it does not, or not intelligibly."""
        headers = self._headers
        asked, date = headers.get(b"retry-after", b""), headers.get(b"date", b"")
        return retry_after_s(asked, date, self.read_ns / 1e9)

    def _body_text(self) -> str:
        """What an error body says, in one short line."""
        body = bytes(self._body)
        try:
            document = orjson.loads(body)
        except ValueError:
            return " ".join(body.decode("utf-8", "replace").split())
        if isinstance(document, dict):
            for key in ("error", "detail", "message"):
                if document.get(key):
                    return error_text(document[key])
        return body.decode("utf-8", "replace")

    def verdict(self, failure: TransportError | None) -> tuple[Outcome, str | None]:
        """Outcome and error text, before the wanted length is looked at.

        failure is why the exchange ended early; None when the body came to its end.
        """
        if failure is not None and failure.outcome is not Outcome.CONNECTION_LOST:
            return failure.outcome, failure.text
        status = self.status
        if status is not None and status != 200:
            return self._status_verdict(status)
        if failure is not None and self.ended_ns is None:
            return Outcome.CONNECTION_LOST, failure.text
        if not self._is_stream and self._streams:
            return self._document_verdict()
        if self.error is not None:
            return Outcome.STREAM_ERROR, self.error
        if self.malformed is not None:
            if not self._streams and b"json" not in self._headers.get(b"content-type", b"json"):
                return Outcome.NOT_STREAM, f"expected a JSON document, got '{self._media()}'"
            return Outcome.MALFORMED, self.malformed
        closed = self._closes or not self._streams
        if self.ended_ns is None and self.finish_reason is None and not closed:
            return Outcome.TRUNCATED, "the stream ended without its end mark or a finish reason"
        if not self.event_ns:
            if not self._understood:
                return Outcome.TRUNCATED, "the body ended without an event"
            return Outcome.EMPTY, "well-formed, but without a token"
        return Outcome.OK, None

    def _status_verdict(self, status: int) -> tuple[Outcome, str]:
        text = f"HTTP {status}"
        if 300 <= status < 400 and b"location" in self._headers:
            # what follows a '?' is nobody's address, and may be a signature
            to = self._headers[b"location"].decode("latin-1").partition("?")[0]
            return (
                Outcome.HTTP_ERROR,
                f"{text}: redirect to {to}, not followed: give that as --host",
            )
        if said := self._body_text():
            text = f"{text}: {said}"
        return (Outcome.THROTTLED if self.throttled else Outcome.HTTP_ERROR), text

    def _document_verdict(self) -> tuple[Outcome, str]:
        try:
            document = orjson.loads(bytes(self._body))
        except ValueError:
            document = None
        if isinstance(document, dict) and document.get("error"):
            return Outcome.STREAM_ERROR, error_text(document["error"])
        return (
            Outcome.NOT_STREAM,
            f"expected Content-Type 'text/event-stream', got '{self._media()}'. "
            "Is streaming off on this server?",
        )

    def _media(self) -> str:
        return self._headers.get(b"content-type", b"nothing").decode("latin-1")
