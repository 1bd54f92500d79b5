"""The engine's own counters as a Prometheus page with the names that vLLM uses.

Knows nothing about requests; the engine counts here. Subtle: inter-token times are counted per
event with the bounds of vLLM, in nanoseconds, so that one bisect an event is all it costs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
           10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
          20.0, 40.0, 80.0)  # fmt: skip
_E2E_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
          240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip


class Buckets:
    """A histogram with fixed bounds; values in ns, exported in s."""

    __slots__ = ("bounds_ns", "bounds_s", "counts", "sum_ns")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s = tuple(bounds_s)
        self.bounds_ns = tuple(int(bound * 1e9) for bound in bounds_s)
        self.counts = [0] * (len(self.bounds_s) + 1)
        self.sum_ns = 0

    def record(self, value_ns: int) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds_ns, value_ns)] += 1
        self.sum_ns += value_ns

    def lines(self, name: str, labels: str) -> list[str]:
        """Its samples in the text format."""
        lines, total = [], 0
        for bound, count in zip([*self.bounds_s, "+Inf"], self.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}",{labels}}} {total}')
        lines.append(f"{name}_sum{{{labels}}} {self.sum_ns / 1e9}")
        lines.append(f"{name}_count{{{labels}}} {total}")
        return lines


class Metrics:
    """What the engine has done since it started."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.requests = 0
        self.events = 0
        self.connections = 0
        self.finished = {"length": 0, "stop": 0, "abort": 0}
        self.ttft = Buckets(_TTFT_S)
        self.itl = Buckets(_ITL_S)
        self.tpot = Buckets(_ITL_S)
        self.e2e = Buckets(_E2E_S)

    def page(
        self, model: str, running: int, waiting: int, kv_usage: float, cache: tuple[int, int]
    ) -> bytes:
        """The whole /metrics page."""
        escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        labels = f'engine="0",model_name="{escaped}"'
        plain = (
            ("num_requests_running", "gauge", "Requests in the batch.", running),
            ("num_requests_waiting", "gauge", "Requests in the queue.", waiting),
            ("kv_cache_usage_perc", "gauge", "KV cache in use; 1 is full.", kv_usage),
            ("prompt_tokens_total", "counter", "Prompt tokens processed.", self.prompt_tokens),
            ("generation_tokens_total", "counter", "Tokens sent.", self.generation_tokens),
            ("num_preemptions_total", "counter", "Preemptions.", 0),
            ("prefix_cache_queries_total", "counter", "Tokens looked up.", cache[0]),
            ("prefix_cache_hits_total", "counter", "Tokens found.", cache[1]),
        )
        lines = []
        for name, kind, about, value in plain:
            lines += [f"# HELP vllm:{name} {about}", f"# TYPE vllm:{name} {kind}"]
            lines.append(f"vllm:{name}{{{labels}}} {value}")
        lines.append("# HELP vllm:request_success_total Requests that ended.")
        lines.append("# TYPE vllm:request_success_total counter")
        lines += [
            f'vllm:request_success_total{{finished_reason="{reason}",{labels}}} {count}'
            for reason, count in self.finished.items()
        ]
        histograms = (
            ("time_to_first_token_seconds", self.ttft, "Arrival to first token."),
            ("inter_token_latency_seconds", self.itl, "Between token events."),
            ("request_time_per_output_token_seconds", self.tpot, "Time per token after the first."),
            ("e2e_request_latency_seconds", self.e2e, "Arrival to last token."),
        )
        for name, buckets, about in histograms:
            lines += [f"# HELP vllm:{name} {about}", f"# TYPE vllm:{name} histogram"]
            lines += buckets.lines(f"vllm:{name}", labels)
        return ("\n".join(lines) + "\n").encode()
