"""Everything that can go wrong, or merely look odd, on demand: the table FAULTS.

A fault is a row: what it does and the outcome a right client records. It acts in one of three
places: `canned` answers instead of the engine, `alter` changes the delivery before it begins,
`wrap` turns one script into another. Knows nothing about sockets. Subtle: faults that cut a
stream mark its shape as unfinished, so that a cut stream never carries a finish reason by
accident, however short it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tokenswarm.records import Outcome
from tokenswarm.simulator.answer import Answer, Protocol, Script, coalesced
from tokenswarm.simulator.fault_scripts import (
    EMPTY_EVENTS,
    Delivery,
    bad_chunk_size,
    cut_chunked,
    empty_chunks,
    error_event,
    error_field,
    error_first,
    error_object,
    gzipped,
    hang_first,
    hang_middle,
    malformed,
    mapped,
    multi_line,
    pause,
    reasoning,
    reset_middle,
    spliced,
    split,
    tool_calls,
    truncate,
)


@dataclass(frozen=True, slots=True)
class Canned:
    """An answer that is not the engine's; status 0 resets the connection instead."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """One row. outcome is what a right client records; outcomes holds protocols that differ."""

    outcome: Outcome
    about: str
    canned: Callable[[Protocol, int], Canned] | None = None
    alter: Callable[[Delivery], None] | None = None
    wrap: Callable[[Script, Delivery], Script] | None = None
    only: frozenset[str] | None = None
    min_events: int = 1
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def fits(self, answer: Answer) -> bool:
        """Whether a fault of the generation can be shown on this answer: a stream, long enough."""
        if self.only is not None and answer.ask.protocol not in self.only:
            return False
        return answer.ask.stream and answer.events >= self.min_events

    def outcome_for(self, answer: Answer) -> Outcome:
        """The right outcome for this request."""
        outcome = self.outcomes.get(answer.ask.protocol, self.outcome)
        if outcome is Outcome.SHORT_OUTPUT and not answer.ask.exact:
            return Outcome.OK
        return outcome


def choose(probabilities: dict[str, float], rng: Random) -> str | None:
    """At most one fault for a request, seeded; one number is drawn whatever the table holds."""
    draw = rng.random()
    for name, probability in probabilities.items():
        if draw < probability:
            return name
        draw -= probability
    return None


# --- answers instead of the engine's --------------------------------------------------------


def _status(status: int, message: str, **headers: str) -> Callable[[Protocol, int], Canned]:
    def canned(protocol: Protocol, retry_after_s: int) -> Canned:
        values = tuple(
            (name.replace("_", "-"), value.format(retry_after_s)) for name, value in headers.items()
        )
        return Canned(status, protocol.error_body(status, message), headers=values)

    return canned


def _page(status: int, text: str) -> Callable[[Protocol, int], Canned]:
    body = f"<!doctype html><html><head><title>{text}</title></head><h1>{text}</h1></html>\n"
    return lambda _protocol, _retry: Canned(status, body.encode(), "text/html")


def _json_error(protocol: Protocol, _retry_after_s: int) -> Canned:
    return Canned(200, protocol.error_body(500, "the engine core died"))


def _reset(_protocol: Protocol, _retry_after_s: int) -> Canned:
    return Canned(0)


# --- changes before the delivery begins ------------------------------------------------------


def _short(delivery: Delivery) -> None:
    answer = delivery.answer
    answer.output_tokens = max(1, answer.output_tokens - max(1, answer.output_tokens // 4))
    answer.finish = "stop"


def _empty(delivery: Delivery) -> None:
    delivery.answer.output_tokens = 0
    delivery.answer.finish = "stop"


def _slow(delivery: Delivery) -> None:
    delivery.late_ns = delivery.slow_ns


def _batched(delivery: Delivery) -> None:
    delivery.answer.shape.tokens_per_event = 4


def _coalesced(delivery: Delivery) -> None:
    delivery.answer.shape.coalesce = 8


def _role_early(delivery: Delivery) -> None:
    delivery.answer.shape.role_early = True


def _usage_each(delivery: Delivery) -> None:
    delivery.answer.shape.usage_each = True


def _no_usage(delivery: Delivery) -> None:
    delivery.answer.shape.usage = False


def _no_done(delivery: Delivery) -> None:
    delivery.answer.shape.end_mark = False


def _whole(delivery: Delivery) -> None:
    delivery.answer.shape.whole = True


def _cut(delivery: Delivery) -> None:
    delivery.answer.shape.unfinished = True


def _cut_if_for_ever(delivery: Delivery) -> None:
    delivery.answer.shape.unfinished = delivery.stall_ns is None


def _close_delimited(delivery: Delivery) -> None:
    delivery.close_delimited = True


def _gzip(delivery: Delivery) -> None:
    delivery.gzip = True


def scripted(delivery: Delivery, fault: Fault | None) -> Script:
    """The script of a streamed answer, with its fault."""
    answer, stream = delivery.answer, delivery.protocol.stream
    if stream is None:
        raise ValueError(f"{delivery.protocol.name} has no streams")
    script = stream(answer)
    if fault is not None and fault.wrap is not None:
        delivery.cut_after = delivery.rng.randint(1, max(1, answer.events - 1))
        script = fault.wrap(script, delivery)
    if answer.shape.coalesce > 1:
        script = coalesced(script, answer.shape.coalesce)
    return gzipped(script) if delivery.gzip else script


OK, LOST = Outcome.OK, Outcome.CONNECTION_LOST
STREAM_ERROR = Outcome.STREAM_ERROR
_OPENAI = frozenset({"openai-completions", "openai-chat"})

FAULTS: dict[str, Fault] = {
    "http_400": Fault(Outcome.HTTP_ERROR, "400 with a JSON error", _status(400, "bad request")),
    "http_404": Fault(Outcome.HTTP_ERROR, "404 with a JSON error", _status(404, "no such model")),
    "http_500": Fault(Outcome.HTTP_ERROR, "500 with a JSON error", _status(500, "engine died")),
    "http_503": Fault(
        Outcome.HTTP_ERROR, "503 with an HTML page", _page(503, "503 Service Unavailable")
    ),
    "http_429": Fault(Outcome.THROTTLED, "429 with a JSON error", _status(429, "too many")),
    "http_429_retry_after": Fault(
        Outcome.THROTTLED, "429 with Retry-After", _status(429, "too many", Retry_After="{}")
    ),
    "http_503_retry_after": Fault(
        Outcome.THROTTLED, "503 with Retry-After", _status(503, "busy", Retry_After="{}")
    ),
    "redirect": Fault(
        Outcome.HTTP_ERROR, "307 to another path", _status(307, "moved", Location="/elsewhere")
    ),
    "json_200_error": Fault(STREAM_ERROR, "200 with a JSON error instead of a stream", _json_error),
    "html_200": Fault(Outcome.NOT_STREAM, "200 with a login page", _page(200, "Sign in")),
    "reset_before_headers": Fault(LOST, "connection reset before any answer", _reset),
    "not_stream": Fault(Outcome.NOT_STREAM, "a JSON answer although asked to stream", alter=_whole),
    "empty": Fault(Outcome.EMPTY, "a well-formed stream without a token", alter=_empty),
    "short_output": Fault(
        Outcome.SHORT_OUTPUT, "a quarter of the tokens missing", alter=_short, min_events=2
    ),
    "slow_start": Fault(OK, "first token late by fault_slow_ms", alter=_slow),
    "token_batching": Fault(OK, "four tokens an event", alter=_batched),
    "coalesced": Fault(OK, "eight events a write, as buffering proxies do", alter=_coalesced),
    "role_chunk": Fault(
        OK,
        "the role-only chunk long before the text",
        alter=_role_early,
        only=frozenset({"openai-chat"}),
    ),
    "reasoning": Fault(
        OK,
        "the first half of the text as reasoning_content",
        wrap=reasoning,
        only=frozenset({"openai-chat"}),
    ),
    "tool_calls": Fault(
        OK,
        "all text as the arguments of a tool call",
        wrap=tool_calls,
        only=frozenset({"openai-chat"}),
    ),
    "usage_every_chunk": Fault(OK, "usage in every chunk", alter=_usage_each),
    "usage_missing": Fault(OK, "no usage although asked for", alter=_no_usage),
    "done_missing": Fault(OK, "finish reason, but no [DONE]", alter=_no_done),
    "gzip": Fault(OK, "gzip body nobody asked for", alter=_gzip),
    "close_delimited": Fault(
        OK, "no length: the body ends with the connection", alter=_close_delimited
    ),
    "empty_chunks": Fault(
        OK,
        "events without text among the tokens",
        wrap=empty_chunks,
        only=frozenset(EMPTY_EVENTS),
    ),
    "comments": Fault(OK, "keep-alive comments", wrap=spliced(lambda _index: b": keep-alive\n\n")),
    "pings": Fault(
        OK, "ping events with empty data", wrap=spliced(lambda _index: b"event: ping\ndata:\n\n")
    ),
    "crlf": Fault(OK, "CRLF line ends", wrap=mapped(lambda text: text.replace(b"\n", b"\r\n"))),
    "cr": Fault(OK, "CR line ends", wrap=mapped(lambda text: text.replace(b"\n", b"\r"))),
    "no_space": Fault(
        OK, "no blank after data:", wrap=mapped(lambda text: text.replace(b"data: ", b"data:", 1))
    ),
    "multi_line": Fault(OK, "one event over two data lines", wrap=multi_line, only=_OPENAI),
    "split_writes": Fault(OK, "events cut at random bytes", wrap=split),
    "pause_mid_stream": Fault(OK, "fault_slow_ms without a byte, then it goes on", wrap=pause),
    "stall_first_token": Fault(
        Outcome.TIMEOUT_FIRST_TOKEN,
        "no first token for fault_stall_s (null: for ever)",
        wrap=hang_first,
    ),
    "stall_mid_stream": Fault(
        Outcome.TIMEOUT_STALLED,
        "silence in the middle for fault_stall_s (null: for ever)",
        wrap=hang_middle,
        alter=_cut_if_for_ever,
    ),
    "reset_mid_stream": Fault(
        LOST, "connection reset in the middle", wrap=reset_middle, alter=_cut
    ),
    "cut_mid_stream": Fault(LOST, "closed inside the chunked body", wrap=cut_chunked, alter=_cut),
    "bad_chunk_size": Fault(LOST, "a chunk size that is none", wrap=bad_chunk_size, alter=_cut),
    "truncated": Fault(
        Outcome.TRUNCATED,
        "clean end without an end mark",
        wrap=truncate,
        alter=_cut,
        min_events=2,
        outcomes={"triton": Outcome.SHORT_OUTPUT},
    ),
    "error_object": Fault(
        STREAM_ERROR, "an error object among the tokens", wrap=error_object, alter=_cut
    ),
    "error_first": Fault(
        STREAM_ERROR, "an error object instead of the first token", wrap=error_first
    ),
    "error_event": Fault(
        STREAM_ERROR, "event: error among the tokens", wrap=error_event, alter=_cut
    ),
    "error_field": Fault(
        STREAM_ERROR,
        "llama.cpp's error: field",
        wrap=error_field,
        alter=_cut,
        only=frozenset({"llamacpp"}) | _OPENAI,
    ),
    "malformed_event": Fault(Outcome.MALFORMED, "an event with half a JSON object", wrap=malformed),
}
"""Every fault by name."""
