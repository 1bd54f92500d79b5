"""The SSE parser against literal streams."""

import pytest

from tokenswarm import sse
from tokenswarm.sse import EventTooLong, SseParser

STREAMS = {
    "one event": (b"data: a\n\n", [(b"a", "")]),
    "CRLF": (b"data: a\r\n\r\n", [(b"a", "")]),
    "CR": (b"data: a\r\rdata: b\r\r", [(b"a", ""), (b"b", "")]),
    "mixed line ends": (b"data: a\r\n\ndata: b\n\rdata: c\r\r\n", [(b"a", ""), (b"b", ""),
                                                                    (b"c", "")]),
    "no space": (b"data:a\n\n", [(b"a", "")]),
    "only one space is dropped": (b"data:  a\n\n", [(b" a", "")]),
    "data lines are joined by LF": (b"data: a\ndata:\ndata: b\n\n", [(b"a\n\nb", "")]),
    "a name belongs to one event": (b"event: error\ndata: a\n\ndata: b\n\n",
                                    [(b"a", "error"), (b"b", "")]),
    "a name without data is no event": (b"event: ping\n\ndata: b\n\n", [(b"b", "")]),
    "empty data is no event": (b"data: \n\ndata:\n\ndata\n\n", []),
    "comments and unknown fields": (b": ping\n:\nid: 7\nretry: 1\nfoo\ndata: a\n: x\n\n",
                                    [(b"a", "")]),
    "a leading byte order mark": (b"\xef\xbb\xbfdata: a\n\n", [(b"a", "")]),
    "a second byte order mark is text": (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [(b"a", "")]),
    "only LF and CR end lines": ("data: a\u2028b\u0085c\x0bd\n\n".encode(),
                                 [("a\u2028b\u0085c\x0bd".encode(), "")]),
    "a colon in the data": (b"data: {\"a\": 1}\n\n", [(b'{"a": 1}', "")]),
    "field names are case sensitive": (b"Data: a\n\nDATA: b\n\n", []),
    "a line without its blank line is no event yet": (b"data: a\n", []),
    "nothing": (b"", []),
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
def test_stream(name):
    stream, events = STREAMS[name]
    assert SseParser().feed(stream) == events


@pytest.mark.parametrize("name", STREAMS)
def test_stream_byte_by_byte(name):
    stream, events = STREAMS[name]
    parser = SseParser()
    got = []
    for i in range(len(stream)):
        got += parser.feed(stream[i : i + 1])
        assert parser.feed(b"") == []
    assert got == events


def test_an_event_comes_with_the_piece_that_ends_it():
    parser = SseParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"\ndata: b") == [(b"a", "")]
    assert parser.feed(b"\r") == []
    assert parser.feed(b"\n") == []  # belongs to the CR before it
    assert parser.feed(b"\r") == [(b"b", "")]
    assert parser.feed(b"\ndata: c\n\n") == [(b"c", "")]


def test_finish_gives_what_lacks_its_blank_line():
    parser = SseParser()
    assert parser.feed(b"data: a\n\ndata: [DO") == [(b"a", "")]
    assert parser.feed(b"NE]") == []
    assert parser.finish() == [(b"[DONE]", "")]
    assert parser.finish() == []


def test_a_line_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    parser = SseParser()
    with pytest.raises(EventTooLong, match="1000 bytes"):
        feed_all(parser, [b"data: xxxxxx"] * 1000)


def test_an_event_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    parser = SseParser()
    with pytest.raises(EventTooLong, match="1000 bytes"):
        feed_all(parser, [b"data: x\ndata: y\ndata: z\n"] * 1000)


def feed_all(parser, pieces):
    for piece in pieces:
        parser.feed(piece)
