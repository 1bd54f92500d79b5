"""Whatever bytes a server sends, in whatever pieces: an outcome, and never a crash."""

import sys
from itertools import pairwise
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from stream_play import END, chunk, head, play

from tokenswarm.backends import BACKENDS
from tokenswarm.records import Outcome

EXAMPLES = 300
KINDS = [kind for kind in BACKENDS if kind != "template"]
SSE = head(200, "text/event-stream")
GOOD = SSE + chunk(b'data: {"choices":[{"text":"a","finish_reason":"length"}]}\n\n') + END
FRAGMENTS = st.sampled_from([
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"\r\n", b"\n",
    b"Content-Type: text/event-stream\r\n", b"Content-Type: application/json\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n", b"Content-Encoding: gzip\r\n",
    b"5\r\n", b"-1\r\n", b"fffffffffffffffff\r\n", b"0\r\n", b"5;ext=1\r\n", b": ping\n\n",
    b"data: {}\n\n", b"data: [DONE]\n\n", b'data: {"error":"x"}\n\n', b"event: error\n",
    b"error: 5\n\n",
    b'data: {"choices":[{"text":"a"}]}\n\n', b'data: {"text":"ab","meta_info":{}}\n\n',
    b'data: {"text_output":["a"]}\n\n', b'data: {"token":{"text":"a"},"generated_text":5}\n\n',
    b'data: {"content":5,"stop":true,"tokens":[[]]}\n\n', b"\x1f\x8b\x08\x00", b"[[[", b'"',
    b"\xff",
])  # fmt: skip
BYTES = st.one_of(FRAGMENTS, st.binary(max_size=20))
JUDGED = set(Outcome) - {Outcome.INTERNAL_ERROR, Outcome.LOST, Outcome.CANCELLED}


def pieces(whole, places):
    edges = [0, *sorted({p % (len(whole) + 1) for p in places}), len(whole)]
    return [whole[a:b] for a, b in pairwise(edges) if a < b]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from(KINDS), st.lists(BYTES, max_size=20), st.lists(st.integers(0, 999)))
def test_any_answer_has_an_outcome(kind, parts, places):
    assert play(kind, pieces(b"".join(parts), places)).outcome in JUDGED


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from(KINDS), st.lists(BYTES, max_size=20), st.lists(st.integers(0, 999)))
def test_any_body_of_a_stream_has_an_outcome_whatever_its_pieces(kind, parts, places):
    body = b"".join(parts)
    wire = SSE + (chunk(body) if body else b"") + END
    whole, cut = play(kind, [wire]), play(kind, pieces(wire, places))
    assert whole.outcome in JUDGED
    assert (whole.outcome, whole.error, whole.text) == (cut.outcome, cut.error, cut.text)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=3), st.booleans())
@example(len(SSE), b"\x00", True)
def test_a_good_answer_with_wrong_bytes_somewhere(at, wrong, is_replaced):
    wire = GOOD[:at] + wrong + GOOD[at + len(wrong) * is_replaced :]
    assert play("openai-completions", [wire]).outcome in JUDGED
