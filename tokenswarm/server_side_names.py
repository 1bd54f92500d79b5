"""What engines call their metrics, and what we call them: the table ENGINES.

A Prometheus page (bytes) goes in, a Reading comes out: plain numbers and histograms under neutral
names, whatever engine wrote the page. It knows nothing of sockets or of runs. A new engine is one
row. Where a metric has had several names, the first one found counts.

The one subtle rule: a page may hold a metric once for each model, rank or engine. Counts and
histograms are added up over them, shares (KV cache in use) are averaged, of temperatures the
highest counts, and what an engine does not publish is absent, never 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

GAUGES = ("running", "waiting", "kv_use", "gpu_use", "gpu_power_w", "gpu_memory_bytes",
          "gpu_temperature_c")  # fmt: skip
COUNTERS = ("requests", "prompt_tokens", "output_tokens", "prefix_cache_hits",
            "prefix_cache_queries", "preemptions", "gpu_energy_j")  # fmt: skip
GPU_NAMES = tuple(name for name in (*GAUGES, *COUNTERS) if name.startswith("gpu_"))
HISTOGRAMS = ("ttft_s", "itl_s", "e2e_s", "queue_s")
MEANS = frozenset({"kv_use", "gpu_use"})  # shares: averaged over ranks and GPUs
MAXIMA = frozenset({"gpu_temperature_c"})
GPU_EXPORTERS = ("dcgm", "nvml")  # they stand beside an engine and are none themselves

# Colons are read as underscores, so that pages that went through a proxy are understood as well.
# name+name adds two metrics up, name{label=value} takes one value of a label, name*x scales.
ENGINES: dict[str, dict[str, tuple[str, ...]]] = {
    "vllm": {
        "running": ("vllm_num_requests_running",),
        "waiting": ("vllm_num_requests_waiting",),
        "kv_use": ("vllm_kv_cache_usage_perc", "vllm_gpu_cache_usage_perc"),
        "requests": ("vllm_request_success_total",),
        "prompt_tokens": ("vllm_prompt_tokens_total",),
        "output_tokens": ("vllm_generation_tokens_total",),
        "prefix_cache_hits": ("vllm_prefix_cache_hits_total",
                              "vllm_gpu_prefix_cache_hits_total"),
        "prefix_cache_queries": ("vllm_prefix_cache_queries_total",
                                 "vllm_gpu_prefix_cache_queries_total"),
        "preemptions": ("vllm_num_preemptions_total",),
        "ttft_s": ("vllm_time_to_first_token_seconds",),
        "itl_s": ("vllm_inter_token_latency_seconds", "vllm_time_per_output_token_seconds"),
        "e2e_s": ("vllm_e2e_request_latency_seconds",),
        "queue_s": ("vllm_request_queue_time_seconds",),
    },
    "sglang": {
        "running": ("sglang_num_running_reqs",),
        "waiting": ("sglang_num_queue_reqs",),
        "kv_use": ("sglang_token_usage",),
        "requests": ("sglang_num_requests_total",),
        "prompt_tokens": ("sglang_prompt_tokens_total",),
        "output_tokens": ("sglang_generation_tokens_total",),
        "prefix_cache_hits": ("sglang_cached_tokens_total",),
        "prefix_cache_queries": ("sglang_prompt_tokens_total",),
        "preemptions": ("sglang_num_retracted_requests_total", "sglang_num_retracted_reqs_total"),
        "ttft_s": ("sglang_time_to_first_token_seconds",),
        "itl_s": ("sglang_inter_token_latency_seconds", "sglang_time_per_output_token_seconds"),
        "e2e_s": ("sglang_e2e_request_latency_seconds",),
        "queue_s": ("sglang_queue_time_seconds",),
    },
    "tgi": {  # token counts exist only as sums of histograms, and there is no TTFT
        "running": ("tgi_batch_current_size",),
        "waiting": ("tgi_queue_size",),
        "requests": ("tgi_request_success_total", "tgi_request_success"),
        "prompt_tokens": ("tgi_request_input_length_sum",),
        "output_tokens": ("tgi_request_generated_tokens_sum",),
        "e2e_s": ("tgi_request_duration",),
        "queue_s": ("tgi_request_queue_duration",),
    },
    "llamacpp": {  # prompt_tokens_total leaves out what came from the cache; older ones have none
        "running": ("llamacpp_requests_processing",),
        "waiting": ("llamacpp_requests_deferred",),
        "kv_use": ("llamacpp_kv_cache_usage_ratio",),
        "prompt_tokens": ("llamacpp_prompt_tokens_total+llamacpp_prompt_tokens_cached_total",
                          "llamacpp_prompt_tokens_total"),
        "output_tokens": ("llamacpp_tokens_predicted_total",),
        "prefix_cache_hits": ("llamacpp_prompt_tokens_cached_total",),
        "prefix_cache_queries": ("llamacpp_prompt_tokens_total"
                                 "+llamacpp_prompt_tokens_cached_total",),
    },
    "tensorrt-llm": {  # trtllm-serve
        "running": ("trtllm_num_requests_running",),
        "waiting": ("trtllm_num_requests_waiting",),
        "kv_use": ("trtllm_kv_cache_utilization",),
        "requests": ("trtllm_request_success_total",),
        "ttft_s": ("trtllm_time_to_first_token_seconds",),
        "itl_s": ("trtllm_time_per_output_token_seconds",),
        "e2e_s": ("trtllm_e2e_request_latency_seconds",),
        "queue_s": ("trtllm_request_queue_time_seconds",),
    },
    "triton": {
        "running": ("nv_trt_llm_request_metrics{request_type=scheduled}",
                    "nv_trt_llm_request_metrics{request_type=active}"),
        "waiting": ("nv_trt_llm_request_metrics{request_type=waiting}",
                    "nv_inference_pending_request_count"),
        "kv_use": ("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",),
        "requests": ("nv_inference_request_success",),
        "gpu_use": ("nv_gpu_utilization",),
        "gpu_power_w": ("nv_gpu_power_usage",),
        "gpu_memory_bytes": ("nv_gpu_memory_used_bytes",),
        "gpu_energy_j": ("nv_energy_consumption",),
    },
    "dcgm": {  # the GPUs themselves, from NVIDIA's DCGM exporter
        "gpu_use": ("DCGM_FI_DEV_GPU_UTIL*0.01",),
        "gpu_power_w": ("DCGM_FI_DEV_POWER_USAGE",),
        "gpu_memory_bytes": ("DCGM_FI_DEV_FB_USED*1048576",),
        "gpu_temperature_c": ("DCGM_FI_DEV_GPU_TEMP",),
        "gpu_energy_j": ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION*0.001",),
    },
}  # fmt: skip

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?[ \t]+([^\s#]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_TERM = re.compile(r"(\w+)(?:\{(\w+)=(\w+)\})?(?:\*([\d.]+))?")


@dataclass(slots=True)
class Distribution:
    """A histogram as Prometheus has it: counts up to and including each bound, cumulative."""

    buckets: dict[float, float] = field(default_factory=dict)
    sum: float = 0.0
    count: float = 0.0

    def since(self, earlier: Distribution | None) -> Distribution:
        """What was counted after an earlier state; all of it when the counts were reset."""
        if earlier is None or earlier.count > self.count:
            return self
        buckets = {le: n - earlier.buckets.get(le, 0.0) for le, n in self.buckets.items()}
        return Distribution(buckets, self.sum - earlier.sum, self.count - earlier.count)

    def add(self, other: Distribution) -> None:
        """Add another engine's."""
        for le, n in other.buckets.items():
            self.buckets[le] = self.buckets.get(le, 0.0) + n
        self.sum += other.sum
        self.count += other.count

    @property
    def mean(self) -> float | None:
        """Exact, for sum and count are; None without a value."""
        return self.sum / self.count if self.count > 0 else None

    def quantile(self, q: float) -> float | None:
        """As Prometheus's histogram_quantile, linear inside a bucket.

        None without a value, and where only one edge of the bucket is known, the lowest and the
        highest: a number made up from the other edge would look like a measurement.
        """
        rank = q * self.count
        edges = sorted(self.buckets.items())
        for (low, before), (high, upto) in pairwise(edges):
            if before < rank <= upto and not math.isinf(high):
                return low + (high - low) * (rank - before) / (upto - before)
        return None


@dataclass(slots=True)
class Reading:
    """One look at an engine: what it publishes, under neutral names. engine is None: none known."""

    engine: str | None = None
    values: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Distribution] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """True when nothing in the page was known."""
        return not (self.values or self.histograms)


Samples = dict[str, list[tuple[dict[str, str], float]]]


def samples(page: bytes) -> Samples:
    """The samples of a page by name, colons as underscores; lines that are none are skipped."""
    found: Samples = {}
    for line in page.decode("utf-8", "replace").splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        name, labels, text = match.groups()
        try:
            value = float(text)
        except ValueError:
            continue
        pairs = dict(_LABEL.findall(labels)) if labels else {}
        found.setdefault(name.replace(":", "_"), []).append((pairs, value))
    return found


def read(page: bytes) -> Reading:
    """What a page says, by the engine that fits it best."""
    found = samples(page)
    readings = (_read_as(engine, found) for engine in ENGINES)
    best = max(readings, key=lambda r: len(r.values) + len(r.histograms))
    return Reading() if best.empty else best


def together(readings: Iterable[Reading]) -> Reading:
    """Several engines behind one run as one: counts added up, shares averaged.

    What an engine says of its GPUs is left out where an exporter of GPUs stands beside it: the
    same GPU must not count twice.
    """
    whole, found = Reading(), dict[str, list[float]]()
    known = [reading for reading in readings if not reading.empty]
    is_measured = any(reading.engine in GPU_EXPORTERS for reading in known)
    for reading in known:
        is_exporter = reading.engine in GPU_EXPORTERS
        if whole.engine is None or whole.engine in GPU_EXPORTERS:
            whole.engine = reading.engine
        for name, value in reading.values.items():
            if name not in GPU_NAMES or is_exporter or not is_measured:
                found.setdefault(name, []).append(value)
        for name, histogram in reading.histograms.items():
            whole.histograms.setdefault(name, Distribution()).add(histogram)
    whole.values.update((name, combined(name, values)) for name, values in found.items())
    return whole


def combined(name: str, values: Sequence[float]) -> float:
    """One value for several of a metric, see the module docstring."""
    if name in MAXIMA:
        return max(values)
    return sum(values) / (len(values) if name in MEANS else 1)


def _read_as(engine: str, found: Samples) -> Reading:
    reading = Reading(engine)
    for neutral, names in ENGINES[engine].items():
        for name in names:
            if neutral in HISTOGRAMS:
                histogram = _histogram(found, name)
                if histogram is not None:
                    reading.histograms[neutral] = histogram
                    break
            elif (value := _value(found, name, neutral)) is not None:
                reading.values[neutral] = value
                break
    return reading


def _value(found: Samples, expression: str, neutral: str) -> float | None:
    total = 0.0
    for term in expression.split("+"):
        values = list(_term(found, term))
        if not values:
            return None
        total += combined(neutral, values)
    return total


def _term(found: Samples, term: str) -> Iterator[float]:
    match = _TERM.fullmatch(term)
    assert match is not None, term
    name, label, wanted, factor = match.groups()
    for labels, value in found.get(name, ()):
        if (label is None or labels.get(label) == wanted) and math.isfinite(value):
            yield value * float(factor or 1)


def _histogram(found: Samples, name: str) -> Distribution | None:
    if f"{name}_count" not in found:
        return None
    histogram = Distribution(
        sum=sum(_term(found, f"{name}_sum")), count=sum(_term(found, f"{name}_count"))
    )
    for labels, value in found.get(f"{name}_bucket", ()):
        try:
            le = float(labels["le"])
        except (KeyError, ValueError):
            continue
        histogram.buckets[le] = histogram.buckets.get(le, 0.0) + value
    return histogram
