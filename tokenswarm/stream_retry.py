"""How long a server asks to wait: `Retry-After`, as seconds or as a date (RFC 9110, 10.2.3).

It knows two headers and no clock. The one subtle rule: a date is the server's, so it is read by
the server's own clock, the `Date` of the same response; ours may be minutes away from it.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def retry_after_s(asked: bytes, date: bytes, now_s: float) -> float | None:
    """Seconds to wait from the values of the two headers, b"" for one that is missing.

    now_s is our clock (Unix seconds), for a response without a usable Date. What is past is 0;
    None for what is neither seconds nor a date. Fractions are no HTTP, but servers send them.
    """
    try:
        seconds = float(asked)
    except ValueError:
        until = _unix_s(asked)
        if until is None:
            return None
        said = _unix_s(date)
        seconds = until - (now_s if said is None else said)
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _unix_s(value: bytes) -> float | None:
    """An HTTP date in any of its three forms; None for anything else."""
    try:
        moment = parsedate_to_datetime(value.decode("latin-1"))
        if moment.tzinfo is None:  # asctime's form names no zone: HTTP dates are all GMT
            moment = moment.replace(tzinfo=UTC)
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
