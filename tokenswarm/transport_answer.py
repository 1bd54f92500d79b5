"""What an answer tells the connection that feeds it, and how long the connection waits for it.

Knows no socket and no protocol: stream.py and server_side.py have the answers.

The one subtle rule: only tokens count as progress. A server that sends headers, comments or
pings and no token is as late as one that says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tokenswarm.clock import NS
from tokenswarm.records import Outcome
from tokenswarm.transport_errors import AnswerError


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


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; None for no limit. first_token and total count from sent, stall between tokens."""

    connect: float | None = 10.0
    first_token: float | None = 600.0
    stall: float | None = 120.0
    total: float | None = None

    def exceeded(self, answer: Answer, sent_ns: int, now_ns: int) -> tuple[Outcome, str] | None:
        """Why an answer is waited for no longer, or None: a time-out, or its own objection."""
        if self.total is not None and now_ns - sent_ns > self.total * NS:
            return Outcome.TIMEOUT_TOTAL, f"not complete within {self.total:g} s"
        try:
            answer.look()
        except AnswerError as e:
            return e.outcome, str(e)
        last = answer.last_token_ns
        if last is None:
            limit = self.first_token
            if limit is not None and now_ns - sent_ns > limit * NS:
                return Outcome.TIMEOUT_FIRST_TOKEN, f"no token within {limit:g} s"
        elif self.stall is not None and now_ns - last > self.stall * NS:
            return Outcome.TIMEOUT_STALLED, f"no further token for {self.stall:g} s"
        return None
