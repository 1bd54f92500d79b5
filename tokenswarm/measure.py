"""What the words mean: every formula once, with its unit and its source.

Facts about one request (records.Record) go in, integers come out. Times are ns since the
epoch, durations are ns, rates are millionths a second: `Metric.scale` turns them into seconds,
tokens and tokens a second at the edges. A new metric is one function and one row of METRICS;
it then appears in the histograms, on the wire, in the summary and in the SLO language.

The one subtle rule: a function returns None where the metric is not defined. A failed request
has an outcome and no latency, so `values` gives nothing for it except how late it was sent.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from operator import sub

from tokenswarm.records import Outcome, Record

NS = 1_000_000_000
_MILLIONTH = 1_000_000

# Prometheus bounds in seconds: ten a decade (the Renard series R10) plus the bounds that vLLM
# uses for the same quantity, so that client and server can be compared at equal `le`.
_R10 = (1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0)
_VLLM_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5,
              10, 20, 40, 80, 160, 640, 2560)  # fmt: skip
_VLLM_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
             20, 40, 80)  # fmt: skip
_VLLM_E2E = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960,
             1920, 7680)  # fmt: skip


def _bounds_ns(low_s: float, high_s: float, extra_s: Sequence[float]) -> tuple[int, ...]:
    """R10 bounds from low to high, both included, merged with extra ones, in ns."""
    ladder = {round(step * 10.0**decade * NS) for decade in range(-4, 3) for step in _R10}
    within = {b for b in ladder if low_s * NS <= b <= high_s * NS}
    return tuple(sorted(within | {round(b * NS) for b in extra_s}))


TTFT_BOUNDS_NS = _bounds_ns(0.001, 250, _VLLM_TTFT)
E2E_BOUNDS_NS = _bounds_ns(0.001, 250, _VLLM_E2E)
ITL_BOUNDS_NS = _bounds_ns(0.0001, 10, _VLLM_ITL)


def ttft(r: Record) -> int | None:
    """Time to first token, ns: first token event - sent.

    sent is just before the first byte of the request is written to a connected socket, so
    connecting is not part of it (peers that start the clock before connecting, such as
    guidellm and the vLLM bench, include it).
    """
    return r.first_ns - r.sent_ns if r.first_ns is not None and r.sent_ns is not None else None


def ttft_due(r: Record) -> int | None:
    """Time to first token as the plan's user felt it, ns: first token event - due."""
    return r.first_ns - r.due_ns if r.first_ns is not None else None


def itl(r: Record) -> list[int]:
    """Inter-token latencies, ns: each token event's arrival - the one before.

    One sample per token event after the first; they always sum to last token - first token.
    aiperf and guidellm call a mean per request "ITL"; pooled samples weigh every event alike.
    """
    stamps = r.event_ns
    return list(map(sub, stamps[1:], stamps))


def decode_tokens(r: Record) -> int | None:
    """Output tokens that came after the first event: output_tokens - m; None when there is none.

    m is the number of tokens in the first event, 1 unless the server says.
    """
    if r.output_tokens is None or len(r.event_ns) < 2:
        return None
    left = r.output_tokens - r.first_event_tokens
    return left if left > 0 else None


def tpot(r: Record) -> int | None:
    """Time per output token, ns: (last - first token event) / (output_tokens - m).

    Undefined when nothing follows the first event. Source: MLPerf inference, (E2E - TTFT) /
    (n - 1); guidellm divides the whole duration, TTFT included, by n.
    """
    n = decode_tokens(r)
    if n is None or r.last_ns is None or r.first_ns is None:
        return None
    return round((r.last_ns - r.first_ns) / n)


def e2e(r: Record) -> int | None:
    """End-to-end latency, ns: last token event - sent, so that E2E = TTFT + TPOT x (n - m)."""
    return r.last_ns - r.sent_ns if r.last_ns is not None and r.sent_ns is not None else None


def e2e_due(r: Record) -> int | None:
    """End-to-end latency from the planned instant, ns: last token event - due."""
    return r.last_ns - r.due_ns if r.last_ns is not None else None


def send_delay(r: Record) -> int | None:
    """How late the generator was, ns: sent - due. Includes connecting and waiting for a slot."""
    return max(0, r.sent_ns - r.due_ns) if r.sent_ns is not None else None


def connect(r: Record) -> int | None:
    """Name look-up, TCP and TLS set-up, ns; None when a connection was reused."""
    return r.connect_ns


def longest_gap(r: Record) -> int | None:
    """The longest wait between two reads with tokens, ns: the stall that a user feels."""
    return r.longest_gap_ns


def output_tokens(r: Record) -> int | None:
    """Tokens of the answer: the server's usage, else the tokenizer's count, else events."""
    return r.output_tokens


def prompt_tokens(r: Record) -> int | None:
    """Tokens of the prompt: the server's usage, else what was synthesised."""
    return r.prompt_tokens


def user_speed(r: Record) -> int | None:
    """Speed of one user, millionths of a token a second: (n - m) / (last - first token event)."""
    n = decode_tokens(r)
    if n is None or r.last_ns is None or r.first_ns is None or r.last_ns <= r.first_ns:
        return None
    return round(n * NS * _MILLIONTH / (r.last_ns - r.first_ns))


def user_speed_novita(r: Record) -> int | None:
    """Speed as the Novita study has it, millionths a second: output_tokens / (last - first).

    Counts the first token although its time is not in the divisor: only for reproducing it.
    """
    if r.output_tokens is None or r.last_ns is None or r.first_ns is None:
        return None
    if r.last_ns <= r.first_ns:
        return None
    return round(r.output_tokens * NS * _MILLIONTH / (r.last_ns - r.first_ns))


def answer_ttft(r: Record) -> int | None:
    """Time to the first token of the answer itself, ns: reasoning before it is not counted."""
    if r.first_answer_ns is None or r.sent_ns is None:
        return None
    return r.first_answer_ns - r.sent_ns


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of METRICS.

    scale: integers inside per unit outside. function: Record to one integer, a list of them,
    or None. failed: whether requests that failed have it too. prometheus: base name of the
    exported histogram ('' for none) with its bounds in integers inside.
    """

    unit: str
    scale: int
    help: str
    function: Callable[[Record], int | list[int] | None]
    failed: bool = False
    prometheus: str = ""
    bounds: tuple[int, ...] = ()
    higher_is_better: bool = False


METRICS: dict[str, Metric] = {
    "ttft_s": Metric("s", NS, "Time to first token, from sent", ttft,
        prometheus="tokenswarm_time_to_first_token_seconds", bounds=TTFT_BOUNDS_NS),
    "ttft_due_s": Metric("s", NS, "Time to first token, from due", ttft_due),
    "itl_s": Metric("s", NS, "Inter-token latency, one sample per token event after the first",
        itl, prometheus="tokenswarm_inter_token_latency_seconds", bounds=ITL_BOUNDS_NS),
    "tpot_s": Metric("s", NS, "Time per output token after the first, per request", tpot,
        prometheus="tokenswarm_time_per_output_token_seconds", bounds=ITL_BOUNDS_NS),
    "e2e_s": Metric("s", NS, "Sent to last token", e2e,
        prometheus="tokenswarm_request_duration_seconds", bounds=E2E_BOUNDS_NS),
    "e2e_due_s": Metric("s", NS, "Due to last token", e2e_due),
    "send_delay_s": Metric("s", NS, "How late the request was sent: sent - due", send_delay,
        failed=True, prometheus="tokenswarm_send_delay_seconds", bounds=TTFT_BOUNDS_NS),
    "connect_s": Metric("s", NS, "Setting up a new connection", connect),
    "longest_gap_s": Metric("s", NS, "Longest wait between two reads with tokens", longest_gap),
    "output_tokens": Metric("tokens", 1, "Tokens of the answer", output_tokens),
    "prompt_tokens": Metric("tokens", 1, "Tokens of the prompt", prompt_tokens),
    "tokens_per_s_per_user": Metric("tokens/s", _MILLIONTH, "Speed of one user after the first "
        "token", user_speed, higher_is_better=True),
    "tps_novita": Metric("tokens/s", _MILLIONTH, "Output tokens over decode time, first token "
        "counted (Novita study)", user_speed_novita, higher_is_better=True),
    "ttft_answer_s": Metric("s", NS, "Time to first token of the answer, reasoning excluded",
        answer_ttft),
}  # fmt: skip


def values(record: Record, metric: Metric) -> list[int]:
    """The samples that a request adds to a metric: none, one, or many (ITL)."""
    if record.outcome is not Outcome.OK and not metric.failed:
        return []
    value = metric.function(record)
    if value is None:
        return []
    samples = value if isinstance(value, list) else [value]
    # Only a clock that was set back gives a negative one (it makes the run invalid, clock_step):
    # such a sample is not a measurement, and must not end the loop that counts it.
    return samples if not samples or min(samples) >= 0 else [v for v in samples if v >= 0]


def spread_lagged(stamps: MutableSequence[int], first: int, lagging: bool) -> None:
    """Give the events stamps[first:], which came in one read, their arrival times, in place.

    All of them carry the read's stamp. When the loop was on time they did arrive together: the
    first gets the whole gap, the others 0, as the user saw it. When it lagged, they arrived
    somewhere since the read before: the gap is spread evenly. Stamps never fall.
    """
    if not lagging or first == 0:
        return
    before, now, n = stamps[first - 1], stamps[-1], len(stamps) - first
    for k in range(n - 1):
        stamps[first + k] = before + (now - before) * (k + 1) // n
