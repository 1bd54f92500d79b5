"""From an answer to a record: what the stream knows is filled in, the outcome last.

Done once a request, after the answer has ended and while the loop has time.
"""

from __future__ import annotations

from collections.abc import Callable

from tokenswarm.records import Outcome, Record
from tokenswarm.stream import Stream
from tokenswarm.transport_errors import TransportError

_KEPT_ERROR_CHARS = 300


def settle(
    record: Record,
    stream: Stream,
    failure: TransportError | None,
    exact_output: bool,
    count: Callable[[str], int] | None,
    redact: Callable[[str], str],
) -> None:
    """Fill what the stream knows into its record, the outcome last.

    count turns the answer's text into tokens where the server gave no usage; None when there is
    no tokenizer. redact takes secrets out of texts that came from the server.
    """
    record.http_status = stream.status
    record.event_ns = stream.event_ns.tolist()
    record.reads = stream.reads
    record.coalesced_reads = stream.coalesced_reads
    record.unstamped_reads = stream.unstamped_reads
    record.longest_gap_ns = stream.longest_gap_ns
    record.first_answer_ns = stream.first_answer_ns
    record.finish_reason = stream.finish_reason
    text = stream.text
    record.output_chars = len(text)
    record.end_ns = stream.end_ns
    _count_tokens(record, stream, text, count)
    record.outcome, error = stream.verdict(failure)
    if record.outcome is Outcome.OK and exact_output:
        error = _short(record, stream)
        if error:
            record.outcome = Outcome.SHORT_OUTPUT
    if error is not None:
        record.error = redact(" ".join(error.split()))[:_KEPT_ERROR_CHARS]


def _count_tokens(
    record: Record, stream: Stream, text: str, count: Callable[[str], int] | None
) -> None:
    usage = stream.usage
    if usage is not None and usage.prompt_tokens is not None:
        record.prompt_tokens, record.prompt_tokens_source = usage.prompt_tokens, "usage"
    if usage is not None:
        record.cached_tokens = usage.cached_tokens
    if stream.first_event_tokens:
        record.first_event_tokens = stream.first_event_tokens
    if usage is not None and usage.output_tokens is not None:
        record.output_tokens, record.output_tokens_source = usage.output_tokens, "usage"
    elif not stream.event_ns:
        return
    elif stream.counted_events == len(stream.event_ns):
        record.output_tokens = stream.token_sum
        record.output_tokens_source = "usage"
    elif count is not None:
        record.output_tokens, record.output_tokens_source = count(text), "tokenizer"
    else:
        record.output_tokens, record.output_tokens_source = len(stream.event_ns), "events"


def _short(record: Record, stream: Stream) -> str | None:
    """Why an answer of a wanted exact length is too short; None when it is not.

    Without the server's own count, text that is tokenised again may come out a little shorter
    than it was generated, so the finish reason has a say too.
    """
    wanted, got = record.output_tokens_expected, record.output_tokens
    if wanted is None or got is None or got >= wanted:
        return None
    sure = record.output_tokens_source == "usage"
    if not sure and (stream.finish_reason == "length" or len(stream.event_ns) >= wanted):
        return None
    return f"{got} of {wanted} output tokens (finish reason {stream.finish_reason or 'not given'})"
