"""The nouns that every other module speaks: Prompt, Request, TokenEvent, Usage, Record, Outcome.

This module knows nothing about sockets, Locust, YAML or Prometheus and imports none of the
package. All times are integers in nanoseconds since the Unix epoch (CLOCK_REALTIME); None
means "did not happen". Seconds appear only at the edges, in the exporters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """What became of a request. Every request has exactly one."""

    OK = "ok"
    HTTP_ERROR = "http_error"
    THROTTLED = "throttled"
    CONNECT_ERROR = "connect_error"
    TIMEOUT_FIRST_TOKEN = "timeout_first_token"
    TIMEOUT_STALLED = "timeout_stalled"
    TIMEOUT_TOTAL = "timeout_total"
    STREAM_ERROR = "stream_error"
    TRUNCATED = "truncated"
    CONNECTION_LOST = "connection_lost"
    MALFORMED = "malformed"
    NOT_STREAM = "not_stream"
    EMPTY = "empty"
    SHORT_OUTPUT = "short_output"
    CANCELLED = "cancelled"
    LOST = "lost"
    INTERNAL_ERROR = "internal_error"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked of the server; exactly one of text, messages and token_ids is set.

    input_tokens is the length the server will count (BOS, template and history included), or
    None where the source does not promise one. output_tokens is the wanted length of the
    answer, None for "as long as the server likes".
    """

    index: int
    input_tokens: int | None
    output_tokens: int | None
    text: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    token_ids: tuple[int, ...] | None = None
    session: int | None = None
    turn: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # three times faster than what dataclasses do for frozen ones
        return Prompt, (
            self.index, self.input_tokens, self.output_tokens, self.text, self.messages,
            self.token_ids, self.session, self.turn,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, ready to be written to a socket; path is below the base URL."""

    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Request, (self.path, self.body, self.headers)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts that the server gave; None where it gave none."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(slots=True)
class TokenEvent:
    """What one server-sent event means, whatever the protocol.

    It is a token event when it carries text of any channel (text, reasoning, tool). tokens is
    how many tokens it carries where the server says so, else None.
    """

    text: str = ""
    reasoning: str = ""
    tool: str = ""
    tokens: int | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    error: str | None = None
    end: bool = False

    @property
    def has_tokens(self) -> bool:
        """True when the event carries generated text of any channel."""
        return bool(self.text or self.reasoning or self.tool)


@dataclass(slots=True)
class Record:
    """One request and what became of it. Times in ns since the epoch, durations in ns.

    event_ns holds the arrival of every token event; events that came in one read share a stamp
    unless our own loop lagged (measure.py spreads those). `ttft_ns` and its like live in
    measure.METRICS, never here: a record is facts, a metric is a formula.
    """

    index: int
    stage: int
    due_ns: int
    due_offset_ns: int
    outcome: Outcome
    warmup: bool = False
    error: str | None = None
    http_status: int | None = None
    sent_ns: int | None = None
    connect_ns: int | None = None
    upload_ns: int | None = None
    first_answer_ns: int | None = None
    end_ns: int | None = None
    event_ns: list[int] = field(default_factory=list)
    first_event_tokens: int = 1
    reads: int = 0
    coalesced_reads: int = 0
    unstamped_reads: int = 0
    longest_gap_ns: int | None = None
    prompt_tokens: int = 0
    prompt_tokens_source: str = "tokenizer"
    prompt_tokens_expected: int | None = None
    output_tokens: int | None = None
    output_tokens_source: str | None = None
    output_tokens_expected: int | None = None
    output_chars: int = 0
    cached_tokens: int | None = None
    finish_reason: str | None = None
    session: int | None = None
    turn: int | None = None
    retries: int = 0
    reconnected: bool = False
    url: str | None = None

    @property
    def first_ns(self) -> int | None:
        """Arrival of the first token event."""
        return self.event_ns[0] if self.event_ns else None

    @property
    def last_ns(self) -> int | None:
        """Arrival of the last token event."""
        return self.event_ns[-1] if self.event_ns else None


class BadInput(Exception):  # noqa: N818 - it is what the user gave, not what the program did
    """Something the user gave cannot be used: printed as it is, exit code 2, nothing sent.

    problems holds one text a mistake: what, where (file:line) and what to do.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
