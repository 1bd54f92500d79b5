"""Retry-After: seconds, or a date by the server's own clock."""

import pytest
from stream_play import END, chunk, head, play

from tokenswarm.stream_retry import retry_after_s

NOW_S = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT, the date of RFC 9110's examples
DATE = b"Sun, 06 Nov 1994 08:49:37 GMT"


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        (b"120", 120.0),
        (b"0", 0.0),
        (b"0.5", 0.5),
        (b"-3", 0.0),
        (b"Sun, 06 Nov 1994 08:50:07 GMT", 30.0),
        (b"Sunday, 06-Nov-94 08:50:07 GMT", 30.0),
        (b"Sun Nov  6 08:50:07 1994", 30.0),
        (b"Sun, 06 Nov 1994 09:50:07 +0100", 30.0),
        (b"Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        (b"Sun, 06 Nov 1994 08:00:00 GMT", 0.0),
        (b"", None),
        (b"soon", None),
        (b"nan", None),
        (b"inf", None),
        (b"Sun, 99 Nov 1994 08:49:37 GMT", None),
        (b"Sun, 06 Nov 99999 08:49:37 GMT", None),
        (b"\xff\xfe, \xb2 Nov", None),
    ],
)
def test_seconds_and_dates_by_our_clock(asked, seconds):
    assert retry_after_s(asked, b"", NOW_S) == seconds


def test_a_date_is_counted_from_the_responses_own_date():
    asked = b"Sun, 06 Nov 1994 08:50:07 GMT"
    assert retry_after_s(asked, DATE, NOW_S - 3600) == 30.0  # our clock is an hour late
    assert retry_after_s(asked, b"yesterday", NOW_S - 3600) == 3630.0
    assert retry_after_s(b"7", DATE, NOW_S - 3600) == 7.0


def asked_to_wait(*headers):
    """What a 503 with these headers asks for, when our clock shows 0 (see stream_play)."""
    busy = head(503, "text/plain", *headers)
    stream = play("openai-completions", [chunk(b"busy") + END], before=busy).stream
    return stream.throttled, stream.retry_after_s()


def test_an_answer_reads_its_own_headers():
    asked = "retry-after: Thu, 01 Jan 1970 00:01:30 GMT"
    assert asked_to_wait("Retry-After: 12") == (True, 12.0)
    assert asked_to_wait(asked) == (True, pytest.approx(90.0))
    assert asked_to_wait(asked, "Date: Thu, 01 Jan 1970 00:01:00 GMT") == (True, 30.0)
    assert asked_to_wait(asked, "Date: Thu, 01 Jan 1970 00:02:00 GMT") == (True, 0.0)
    assert asked_to_wait("Retry-After: later") == (True, None)
    assert asked_to_wait() == (False, None)
