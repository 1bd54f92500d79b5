"""Play an HTTP answer to a Stream read by read, without a socket, and say what became of it.

The answer is framed as a server would (status line, headers, chunked body) and goes through a
Connection whose reads are scripted; each read has the kernel's stamp 1, 2, 3, ...
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from types import SimpleNamespace

import httptools

from tokenswarm import backends, target, workload
from tokenswarm.records import Outcome, Record
from tokenswarm.stream import Stream
from tokenswarm.stream_settle import settle
from tokenswarm.transport_connection import Connection

WORKLOAD = """
backend: {kind: KIND, model: m}
tokenizer: {source: tiktoken, path: cl100k_base}
prompts: {input_tokens: 8, output_tokens: 4}
"""


def backend(kind: str):
    """The backend of a protocol, for a workload of no interest."""
    return backends.make(workload.parse(WORKLOAD.replace("KIND", kind)))


class StillClock:
    """A LoopClock of which a test says how much the loop lags."""

    def __init__(self, lag_ns: int = 0) -> None:
        self.lag = lag_ns

    def lag_ns(self) -> int:
        return self.lag


class Overheard:
    """A backend whose reader keeps what it read, channel by channel.

    It calls itself not stateless, so that every event is really read and none by likeness.
    """

    stateless = False

    def __init__(self, inner) -> None:
        self._inner = inner
        self.text = self.reasoning = ""

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def reader(self):
        read = self._inner.reader()

        def overheard(data, name):
            event = read(data, name)
            self.text += event.text
            self.reasoning += event.reasoning
            return event

        return overheard


@dataclass
class Played:
    """What became of an answer."""

    outcome: Outcome
    error: str | None
    record: Record
    stream: Stream
    text: str
    reasoning: str

    @property
    def first_read(self) -> int:
        """Index of the read that brought the first token, -1 without one."""
        return self.stream.event_ns[0] - 1 if self.stream.event_ns else -1

    @property
    def first_answer_read(self) -> int:
        """The same for the first token of the answer itself."""
        stamp = self.stream.first_answer_ns
        return -1 if stamp is None else stamp - 1


def head(status: int, content_type: str, *headers: str) -> bytes:
    """Status line and headers of a chunked answer."""
    lines = [f"HTTP/1.1 {status} Said", f"Content-Type: {content_type}", *headers]
    return "\r\n".join([*lines, "Transfer-Encoding: chunked"]).encode() + b"\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


END = b"0\r\n\r\n"


def play(kind, reads, *, exact=False, wanted=None, count=None, **options):
    """The reads of one connection, which then ends.

    before: a piece that comes first, with the stamp 0; lag_ns: how much the loop lags; stamped:
    whether the kernel gives stamps.
    """
    ear = Overheard(backend(kind))
    heard, _ = _connection(ear, reads, **options)
    stream, failure = _connection(backend(kind), reads, **options)
    record = Record(0, 0, 0, 0, Outcome.INTERNAL_ERROR, output_tokens_expected=wanted)
    settle(record, stream, failure, exact, count, lambda text: text)
    # reading events by likeness or one by one comes to the same
    assert (heard.malformed is None) == (stream.malformed is None)
    if stream.malformed is None:
        assert (heard.text, len(heard.event_ns)) == (stream.text, len(stream.event_ns))
        if options.get("stamped", True):
            assert heard.event_ns == stream.event_ns
    return Played(record.outcome, record.error, record, stream, ear.text, ear.reasoning)


def _connection(protocol, reads, *, before=b"", lag_ns=0, stamped=True):
    """A Stream that was fed by a Connection, and why that failed."""
    stream = Stream(protocol, StillClock(lag_ns))
    connection = Connection(target.parse_url("http://127.0.0.1:1"), SimpleNamespace(reads=-(10**9)))
    connection._answer = stream
    connection._parser = httptools.HttpResponseParser(stream)
    stream.attach(connection._parser)
    connection._feed = connection._parser.feed_data
    script = [(0, before)] if before else []
    script += [(i + 1, data) for i, data in enumerate(reads) if data]
    for stamp, data in [*script, (len(reads) + 1, b"")]:
        ancillary = [(1, 35, struct.pack("@ll", 0, stamp))] if stamped else []
        connection._recvmsg = lambda *_, data=data, anc=ancillary: (data, anc, 0, None)
        connection._readable()
        if connection._done.is_set():
            break
    stream.end_of_body()
    return stream, connection._error
