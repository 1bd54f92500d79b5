"""The PromQL of dashboard and rules, made ready for a plain Prometheus."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

import yaml

from exporters.grafana import build
from exporters.rules import operator

METRICS = (
    "tokenswarm_time_to_first_token_seconds",
    "tokenswarm_inter_token_latency_seconds",
    "tokenswarm_time_per_output_token_seconds",
    "tokenswarm_request_duration_seconds",
    "tokenswarm_send_delay_seconds",
    "tokenswarm_requests_total",
    "tokenswarm_prompt_tokens_total",
    "tokenswarm_output_tokens_total",
    "tokenswarm_arrivals_dropped_total",
    "tokenswarm_coalesced_reads_total",
    "tokenswarm_slo_evaluated_total",
    "tokenswarm_slo_met_total",
    "tokenswarm_users",
    "tokenswarm_requests_in_flight",
    "tokenswarm_arrival_rate_planned",
    "tokenswarm_arrival_rate_achieved",
    "tokenswarm_workers",
    "tokenswarm_worker_cpu_ratio",
    "tokenswarm_worker_loop_lag_seconds",
    "tokenswarm_run_state",
    "tokenswarm_run_info",
)
VLLM_METRICS = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:time_per_output_token_seconds_bucket",
}
_NAME = re.compile(r"(?<![\w:$\"])(?:tokenswarm_|vllm:|container_|DCGM_)[\w:]+")


class Expression(NamedTuple):
    """One query and where it stands."""

    where: str
    text: str


def names(expression: str) -> set[str]:
    """The metrics that an expression reads (recorded ones, which hold a colon, are not meant)."""
    return set(_NAME.findall(re.sub(r"\b(stage|instance|slo):tokenswarm_[\w:]+", "", expression)))


def plain(expression: str, rate_interval: str) -> str:
    """Grafana's variables replaced by what they would be with everything chosen."""
    board = json.loads(build.FILE.read_text())
    values = {"__rate_interval": rate_interval}
    for variable in board["templating"]["list"]:
        values[variable["name"]] = (
            variable["query"] if variable["type"] == "textbox" else variable.get("allValue", "")
        )
    for name in sorted(values, key=len, reverse=True):
        expression = expression.replace(f"${name}", values[name])
    assert "$" not in expression, expression
    return expression


def of_dashboard(rate_interval: str) -> list[Expression]:
    """Every query of every panel, variable and annotation."""
    board = json.loads(build.FILE.read_text())
    found = [
        Expression(f"{panel['title']} / {target['refId']}", target["expr"])
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]
    found += [Expression(note["name"], note["expr"]) for note in board["annotations"]["list"]]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert match, variable["name"]
            found.append(
                Expression(f"variable {variable['name']}", f"count by ({match[2]}) ({match[1]})")
            )
    return [Expression(where, plain(text, rate_interval)) for where, text in found]


def of_rules(kind: str) -> list[Expression]:
    """Every expression of the rules of a kind: record or alert."""
    groups = yaml.safe_load(operator.RULES.read_text())["groups"]
    return [
        Expression(rule[kind], rule["expr"])
        for group in groups
        for rule in group["rules"]
        if kind in rule
    ]
