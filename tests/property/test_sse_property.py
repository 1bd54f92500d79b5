"""However the bytes are cut, the events are those of a slow and obvious whole-string parser."""

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tokenswarm.sse import SseParser

BOM = b"\xef\xbb\xbf"
line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
texts = st.sampled_from(
    [b"", b" ", b"a", b" [DONE]", b'{"a":1}', "né 你 \u2028 \x85".encode(), b":", b"\xff"]
)
lines = st.one_of(
    st.builds(lambda f, t: f + t, st.sampled_from([b"data:", b"data: "]), texts),
    st.builds(lambda t: b"event: " + t, texts),
    st.sampled_from(
        [b"", b"", b"", b":ping", b"data", b"id: 1", b"dat", b"junk", BOM + b"data: x"]
    ),
)
streams = st.lists(st.tuples(lines, line_ends), max_size=25).flatmap(
    lambda rows: st.builds(
        lambda bom, rest: bom + b"".join(line + end for line, end in rows) + rest,
        st.sampled_from([b"", BOM]),
        st.sampled_from([b"", b"data: cut", b"event", b"\r"]),
    )
)


def twin(stream):
    """Every event of a whole stream."""
    stream = stream.removeprefix(BOM)
    events, data, name = [], [], ""
    for line in re.split(b"\r\n|\r|\n", stream)[:-1]:  # the last has no end yet
        if line == b"":
            if b"\n".join(data) != b"":
                events.append((b"\n".join(data), name))
            data, name = [], ""
        elif re.match(b"data(:|$)", line):
            data.append(re.sub(b"^data:? ?", b"", line))
        elif re.match(b"event:", line):
            name = re.sub(b"^event: ?", b"", line).decode("utf-8", "replace")
    return events


def cut(stream, places):
    edges = [0, *sorted({p % (len(stream) + 1) for p in places}), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


@given(streams, st.lists(st.integers(0, 2000), max_size=12))
def test_any_cut_gives_the_events_of_the_whole(stream, places):
    parser = SseParser()
    events = [event for piece in cut(stream, places) for event in parser.feed(piece)]
    assert events == twin(stream)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_any_bytes_in_any_cut_are_the_same(stream, places):
    whole, pieces = SseParser(), SseParser()
    events = whole.feed(stream) + whole.finish()
    got = [event for piece in cut(stream, places) for event in pieces.feed(piece)]
    assert got + pieces.finish() == events
