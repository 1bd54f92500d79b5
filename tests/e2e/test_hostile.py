"""Servers that mean harm: every one gets its outcome, memory stays bounded, the worker lives on.

One run meets all of them, several at a time: which script a request gets follows from the index
in its X-Request-Id. The scripts would send for ever; they end when the client hangs up.
"""

import gzip
import re
import sys
import time
import zlib
from collections import Counter
from pathlib import Path

import pytest
from product import run

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from socket_server import SSE, WHOLE, Server, chunk, token

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
PATIENCE_S = 5  # far more than an honest answer takes while others flood
MOST_RSS = 600 << 20  # the worker alone has about 200 MB; a line of 1 GB must not add to that
GZIP = SSE.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
OK = b"HTTP/1.1 200 OK\r\n"
LINES = b"Content-Type: text/event-stream\r\n"


def for_ever(piece, first=b"", every_s=0.0):
    """A script: first, then the same piece again and again."""

    def script(peer):
        peer.send(first)
        while True:
            peer.send(piece)
            if every_s:
                time.sleep(every_s)

    return script


def once(wire, close=False):
    """A script: these bytes, then silence, or the end."""

    def script(peer):
        peer.send(wire)
        if not close:
            peer.until_closed()

    return script


def drip(wire, first=b""):
    """A script: one byte a second."""

    def script(peer):
        peer.send(first)
        for byte in wire:
            peer.send(bytes([byte]))
            time.sleep(1)

    return script


def endless_headers(peer):
    peer.send(OK)
    n = 0
    while True:
        n += 1
        peer.send(b"".join(b"X-%d-%d: a\r\n" % (n, i) for i in range(100)))


def bomb(of):
    """A gzip body that inflates to a gigabyte, in one chunk."""
    made, block = zlib.compressobj(9, zlib.DEFLATED, 31), of * (1 << 20)
    first, again = (made.compress(block) + made.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return GZIP + chunk(first + again * 1023)


LONG_LINE = b"x" * 65536
CASES = {
    "an honest server": (once(WHOLE), {"ok"}),
    "endless different headers": (endless_headers, {"malformed"}),
    "one header again and again": (for_ever(b"X: a\r\n" * 1000, OK), {"malformed"}),
    "a header without end": (for_ever(LONG_LINE, OK + b"X: "), {"malformed"}),
    "endless interim responses": (
        for_ever(b"HTTP/1.1 100 Continue\r\n\r\n" * 100), {"malformed"},
    ),
    "a line without end": (for_ever(chunk(LONG_LINE), SSE + chunk(b"data: ")), {"malformed"}),
    "an event of endless lines": (
        for_ever(chunk(b"data: " + b"x" * 9000 + b"\n"), SSE), {"malformed"},
    ),
    "a chunk extension without end": (for_ever(LONG_LINE, SSE + b"5;a="), {"malformed"}),
    "endless trailers": (
        for_ever(b"X: a\r\n" * 1000, SSE + chunk(token("a")) + b"0\r\n"), {"malformed"},
    ),
    "tokens without end": (
        for_ever(chunk(token("a")) * 50, SSE), {"timeout_total", "malformed"},
    ),
    "pings without end": (for_ever(chunk(b": ping\n\n") * 10, SSE, 0.01), {"timeout_first_token"}),
    "an error body without end": (
        for_ever(LONG_LINE, b"HTTP/1.1 500 No\r\nContent-Type: text/plain\r\n\r\n", 0.01),
        {"timeout_first_token"},
    ),
    "one byte a second": (drip(WHOLE), {"timeout_first_token"}),
    "one byte a second after the headers": (drip(chunk(token("a")), SSE), {"timeout_first_token"}),
    "one byte a second after a token": (
        drip(chunk(token("b")), SSE + chunk(token("a"))), {"timeout_stalled"},
    ),
    "silence": (once(b""), {"timeout_first_token"}),
    "a chunk size that is none": (once(SSE + b"zz\r\n"), {"connection_lost"}),
    "a negative chunk size": (once(SSE + b"-5\r\nhello\r\n"), {"connection_lost"}),
    "a chunk size beyond 64 bits": (once(SSE + b"f" * 20 + b"\r\n"), {"connection_lost"}),
    "a chunk that is longer than said": (once(SSE + b"2\r\nhello\r\n"), {"connection_lost"}),
    "two lengths": (
        once(OK + b"Content-Length: 5\r\nContent-Length: 7\r\n\r\nhello"), {"connection_lost"},
    ),
    "a length of exabytes": (
        once(OK + LINES + b"Content-Length: 9000000000000000000\r\n\r\n", close=True),
        {"connection_lost"},
    ),
    "no HTTP at all": (once(bytes(range(256)) * 10), {"connection_lost"}),
    "another protocol": (
        once(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhey"),
        {"malformed", "http_error"},
    ),
    "a gzip bomb of zeros": (lambda peer: peer.send(ZEROS), {"malformed"}),
    "a gzip bomb of blank lines": (lambda peer: peer.send(BLANKS), {"malformed"}),
    "gzip that is none": (once(GZIP + chunk(b"no gzip at all")), {"malformed"}),
    "gzip that is cut": (
        once(GZIP + chunk(gzip.compress(token("a"))[:-12]), close=True), {"connection_lost"},
    ),
    "JSON nested 100,000 deep": (
        once(SSE + chunk(b"data: " + b"[" * 100_000 + b"\n\n") + b"0\r\n\r\n"), {"malformed"},
    ),
    "numbers that are none of ours": (
        once(SSE + chunk(b'data: {"choices":[{"text":"a","finish_reason":["x"]}],"usage":'
                         b'{"prompt_tokens":1e300,"completion_tokens":-5}}\n\n') + b"0\r\n\r\n"),
        {"ok"},
    ),
}  # fmt: skip
ZEROS, BLANKS = bomb(b"\0"), bomb(b"\n")
NAMES = list(CASES)


def hostile(peer):
    """Play what the request's index says, once a connection."""
    head, _ = peer.request()
    found = re.search(rb"X-Request-Id: \w+-(\d+)", head)
    if found is not None:
        CASES[NAMES[int(found[1]) % len(NAMES)]][0](peer)


def test_a_run_against_every_kind_of_harm(tmp_path):
    requests = 2 * len(NAMES)
    with Server(hostile) as server:
        began = time.monotonic()
        finished = run(
            tmp_path, server.url, "--workers", "1",
            backend={"connection": "new"},  # a script plays once a connection
            prompts={"probe": False, "exact_output": False},
            load={"users": 10, "requests": requests, "drain": "20s"},
            timeouts={"first_token": PATIENCE_S, "stall": PATIENCE_S, "total": 3 * PATIENCE_S},
            slo={"error_ratio": "<100%"}, server={"off": True},
        )  # fmt: skip
        took_s = time.monotonic() - began
    outcomes = {
        NAMES[i]: {r["outcome"] for r in finished.rows if r["index"] % len(NAMES) == i}
        for i in range(len(NAMES))
    }
    wrong = {n: (seen, CASES[n][1]) for n, seen in outcomes.items() if not seen <= CASES[n][1]}
    assert wrong == {}
    assert len(finished.rows) == requests
    assert sum(Counter(r["outcome"] for r in finished.rows).values()) == requests
    assert finished.summary["requests"]["lost"] == 0
    assert not {"worker_lost", "internal_error", "reports_missing"} & set(finished.codes)
    [worker] = finished.summary["generator"]["workers"]
    assert (worker["state"], worker["lost"]) == ("running", False)
    assert worker["rss_bytes"] < MOST_RSS
    assert took_s < 150
