"""What the Grafana dashboard of a soak shows: the table ROWS, one line a panel.

It knows nothing of Grafana's JSON (build.py writes that) and of how metrics come about; their
names are interfaces. The one subtle rule: a master exports the merged figures of all its workers,
so histograms are filtered by their own labels and everything else by FROM, a join on the master
that runs the workload: counters and gauges need no labels of their own for that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

CHOSEN = '{workload=~"$workload", stage=~"$stage"}'
FROM = 'and on (job, instance) tokenswarm_run_info{workload=~"$workload"}'
MODEL = '{model_name=~"$model"}'
WINDOW = "[$__rate_interval]"
SLO_LINE = "SLO"


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: (legend, expression) pairs drawn as `kind` over `width` of 24 columns."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    description: str
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stack: bool = False
    limits: tuple[tuple[str, float], ...] = field(default=())  # (color, from this value on)


def quantile(q: float, name: str, labels: str) -> str:
    """The q-quantile of a histogram over the current window."""
    return f"histogram_quantile({q}, sum by (le) (rate({name}_bucket{labels}{WINDOW})))"


def quantiles(name: str, slo: str | None) -> tuple[tuple[str, str], ...]:
    """p50, p90 and p99 of one of our histograms, and the SLO as a line."""
    lines = [(f"p{q * 100:.0f}", quantile(q, name, CHOSEN)) for q in (0.5, 0.9, 0.99)]
    return (*lines, (SLO_LINE, f"vector(${slo})")) if slo else tuple(lines)


def latency(title: str, metric: str, slo: str | None, description: str) -> tuple[Panel, Panel]:
    """Quantiles and heatmap of one of our latency histograms, side by side."""
    name = f"tokenswarm_{metric}_seconds"
    bucket = f"sum by (le) (increase({name}_bucket{CHOSEN}{WINDOW}))"
    return (
        Panel(title, "s", quantiles(name, slo), description, width=14),
        Panel(f"{title}: heatmap", "s", (("{{le}}", bucket),), description, "heatmap", width=10),
    )


def rate(counter: str, labels: str = "", by: str = "") -> str:
    """A counter of ours per second, over the masters of the chosen workload."""
    return f"sum{f' by ({by})' if by else ''} (rate({counter}{labels}{WINDOW}) {FROM})"


def share(met: str, evaluated: str, by: str) -> str:
    """met / evaluated over the current window."""
    return f"{rate(met, by=by)} / {rate(evaluated, by=by)}"


FAILED = rate("tokenswarm_requests_total", '{outcome!~"ok|cancelled"}')
COUNTED = rate("tokenswarm_requests_total", '{outcome!="cancelled"}')
DROPPED = rate("tokenswarm_arrivals_dropped_total")
ERROR_RATIO = f"({FAILED} + {DROPPED}) / ({COUNTED} + {DROPPED})"
SATURATED = (("green", 0), ("orange", 0.8), ("red", 0.9))
TTFT, ITL = "tokenswarm_time_to_first_token_seconds", "tokenswarm_inter_token_latency_seconds"


def drift(name: str) -> str:
    """p99 of the last hour over p99 of the hour before it."""
    last, before = (
        f"histogram_quantile(0.99, sum by (le) (rate({name}_bucket{CHOSEN}{window})))"
        for window in ("[1h]", "[1h] offset 1h")
    )
    return f"{last} / {before}"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Verdict": (
        Panel(
            "State", "none",
            (("{{state}}", f"tokenswarm_run_state == 1 {FROM}"),),
            "The state that the run is in now.", "stat", 4, 5,
        ),
        Panel(
            "TTFT p99", "s", (("", quantile(0.99, TTFT, CHOSEN)),),
            "Time to the first token; the SLO is the dashboard's variable.", "stat", 4, 5,
        ),
        Panel(
            "ITL p99", "s", (("", quantile(0.99, ITL, CHOSEN)),),
            "Time between token events, pooled over all of them.", "stat", 4, 5,
        ),
        Panel(
            "Output tokens per second", "none", (("", rate("tokenswarm_output_tokens_total")),),
            "As the server counts them, over all workers.", "stat", 4, 5,
        ),
        Panel(
            "Error ratio", "percentunit", (("", ERROR_RATIO),),
            "(failed + dropped) / due, without what the end of the run cancelled.", "stat", 4, 5,
            limits=(("green", 0), ("red", 0.01)),
        ),
        Panel(
            "Workers lost", "none",
            (("", f'sum(tokenswarm_workers{{state=~"missing|lost"}} {FROM})'),),
            "A run that lost a worker is invalid.", "stat", 4, 5,
            limits=(("green", 0), ("red", 1)),
        ),
    ),
    "Latency, as the client sees it": (
        *latency(
            "Time to first token (TTFT)", "time_to_first_token", "slo_ttft",
            "First token minus sent; in open loop minus due.",
        ),
        *latency(
            "Inter-token latency (ITL)", "inter_token_latency", "slo_itl",
            "One sample a token event after the first.",
        ),
        *latency(
            "Time per output token (TPOT)", "time_per_output_token", "slo_tpot",
            "One sample a request: (last - first token) / (tokens - those of the first event).",
        ),
        *latency(
            "Request duration (E2E)", "request_duration", "slo_e2e",
            "Last token minus sent; in open loop minus due.",
        ),
    ),
    "SLOs": (
        Panel(
            "Share of requests that meet each SLO", "percentunit",
            (
                (
                    "{{slo}}",
                    share("tokenswarm_slo_met_total", "tokenswarm_slo_evaluated_total", "slo"),
                ),
            ),
            "Exact: counted on the workers, not read off a histogram.", width=12,
        ),
        Panel(
            "p99 of the last hour / p99 of the hour before", "none",
            (("TTFT", drift(TTFT)), ("ITL", drift(ITL))),
            "1 is steady; a soak that drifts upwards has a leak somewhere. Empty for two hours.",
            width=12,
        ),
    ),
    "Load": (
        Panel(
            "Arrivals per second, planned and achieved", "reqps",
            (
                ("planned", f"sum(tokenswarm_arrival_rate_planned {FROM})"),
                ("achieved", f"sum(tokenswarm_arrival_rate_achieved {FROM})"),
            ),
            "Open loop. A gap means that the generator, not the server, shaped the load.",
        ),
        Panel(
            "Requests in flight and users", "none",
            (
                ("in flight", f"sum(tokenswarm_requests_in_flight {FROM})"),
                ("users", f"sum(tokenswarm_users {FROM})"),
            ),
            "Streams open at the same time, over all workers.",
        ),
        Panel(
            "Tokens per second", "none",
            (
                ("output", rate("tokenswarm_output_tokens_total")),
                ("prompt", rate("tokenswarm_prompt_tokens_total")),
            ),
            "Counted when a request ends.",
        ),
        Panel(
            "Requests by outcome", "reqps",
            (("{{outcome}}", rate("tokenswarm_requests_total", by="outcome")),),
            "Every request that was sent has exactly one outcome.", width=8, stack=True,
        ),
        Panel(
            "Errors by outcome", "reqps",
            (
                ("{{outcome}}", rate("tokenswarm_requests_total", '{outcome!="ok"}', "outcome")),
                ("dropped", DROPPED),
            ),
            "Dropped arrivals were due and never sent.", width=8, stack=True,
        ),
        Panel(
            "Send delay", "s", quantiles("tokenswarm_send_delay_seconds", None),
            "Sent minus due: the generator's own lateness.", width=8,
        ),
    ),
    "Engine (vLLM) beside the client": (
        Panel(
            "TTFT p99: client and engine", "s",
            (
                ("client", quantile(0.99, TTFT, CHOSEN)),
                ("engine", quantile(0.99, "vllm:time_to_first_token_seconds", MODEL)),
            ),
            "The gap is network and whatever stands in front of the engine.",
        ),
        Panel(
            "ITL p99: client and engine", "s",
            (
                ("client", quantile(0.99, ITL, CHOSEN)),
                (
                    "engine",
                    quantile(0.99, "vllm:inter_token_latency_seconds", MODEL)
                    + " or "
                    + quantile(0.99, "vllm:time_per_output_token_seconds", MODEL),
                ),
            ),
            "vLLM's lowest bound is 10 ms: below it only the client's line means anything.",
        ),
        Panel(
            "Output tokens per second: client and engine", "none",
            (
                ("client", rate("tokenswarm_output_tokens_total")),
                ("engine", f"sum(rate(vllm:generation_tokens_total{MODEL}{WINDOW}))"),
            ),
            "Must agree over time; the engine counts tokens as they come, the client at the end.",
        ),
        Panel(
            "Requests in the engine", "none",
            (
                ("running", f"sum(vllm:num_requests_running{MODEL})"),
                ("waiting", f"sum(vllm:num_requests_waiting{MODEL})"),
            ),
            "Waiting that only grows: more is offered than the engine can serve.", stack=True,
        ),
        Panel(
            "KV cache in use", "percentunit",
            (
                (
                    "{{instance}}",
                    f"vllm:kv_cache_usage_perc{MODEL} or vllm:gpu_cache_usage_perc{MODEL}",
                ),
            ),
            "Near 1 the engine preempts or queues.", limits=SATURATED,
        ),
        Panel(
            "Preemptions and prefix-cache hits", "percentunit",
            (
                (
                    "prefix-cache hits",
                    f"sum(rate(vllm:prefix_cache_hits_total{MODEL}{WINDOW}))"
                    f" / sum(rate(vllm:prefix_cache_queries_total{MODEL}{WINDOW}))",
                ),
                (
                    "preemptions a request",
                    f"sum(rate(vllm:num_preemptions_total{MODEL}{WINDOW}))"
                    f" / sum(rate(vllm:request_success_total{MODEL}{WINDOW}))",
                ),
            ),
            "Without shared_prefix_tokens the hits must stay near zero.",
        ),
    ),
    "Generator health": (
        Panel(
            "CPU of each worker", "percentunit",
            (("{{worker}}", f"tokenswarm_worker_cpu_ratio {FROM}"),),
            "Of its one core. Past 90 % the run is invalid.", width=6, limits=SATURATED,
        ),
        Panel(
            "Loop lag of each worker", "s",
            (("{{worker}}", f"tokenswarm_worker_loop_lag_seconds {FROM}"),),
            "How late the event loop was. Kernel time stamps keep it out of the latencies.",
            width=6, limits=(("green", 0), ("red", 0.02)),
        ),
        Panel(
            "Coalesced reads", "percentunit",
            (("share", f"{rate('tokenswarm_coalesced_reads_total')} / {rate(ITL + '_count')}"),),
            "Token events whose time had to be spread because the loop lagged.", width=6,
            limits=(("green", 0), ("red", 0.05)),
        ),
        Panel(
            "Workers by state", "none",
            (("{{state}}", f"sum by (state) (tokenswarm_workers {FROM})"),),
            "Missing: no heartbeat. Lost: gone for good.", width=6, stack=True,
        ),
        Panel(
            "Throttled share of each pod", "percentunit",
            (
                (
                    "{{pod}}",
                    'rate(container_cpu_cfs_throttled_periods_total{container="locust"}'
                    f"{WINDOW})"
                    ' / rate(container_cpu_cfs_periods_total{container="locust"}'
                    f"{WINDOW})",
                ),
            ),
            "From the kubelet. More than nothing on a worker: its CPU limit is in the measurement.",
            width=12,
        ),
        Panel(
            "Memory of each pod", "bytes",
            (
                (
                    "{{pod}}",
                    'sum by (pod) (container_memory_working_set_bytes{container=~"locust|engine"})',
                ),
            ),
            "From the kubelet. A line that rises for hours is a leak.", width=12,
        ),
    ),
    "GPU (DCGM exporter)": (
        Panel(
            "GPU busy", "percent", (("{{gpu}}", "DCGM_FI_DEV_GPU_UTIL"),),
            "Share of time with a kernel running.", width=6,
        ),
        Panel(
            "Memory bandwidth in use", "percentunit", (("{{gpu}}", "DCGM_FI_PROF_DRAM_ACTIVE"),),
            "What decoding is bound by.", width=6,
        ),
        Panel(
            "Memory in use", "decmbytes", (("{{gpu}}", "DCGM_FI_DEV_FB_USED"),),
            "Weights and KV cache.", width=6,
        ),
        Panel(
            "Power", "watt", (("{{gpu}}", "DCGM_FI_DEV_POWER_USAGE"),),
            "A drop at full load is throttling.", width=6,
        ),
    ),
}  # fmt: skip
