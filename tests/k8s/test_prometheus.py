"""Every expression of dashboard and rules against a real Prometheus that scrapes a real run.

The overlay `soak` is executed: master and workers stream from the embedded engine, Prometheus
scrapes the master's merged metrics and the engine's own and evaluates the rules.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from expressions import METRICS, VLLM_METRICS, Expression, names, of_dashboard, of_rules
from manifests import of_kind
from run_rendered import Rendered, edited, free_port

from exporters.rules import operator

pytestmark = pytest.mark.e2e

NUMBERS = {
    "WORKERS": "2",
    "WORKLOAD": "edited.yaml",
    "MODEL": "demo",
    "TOKENIZER_SOURCE": "tiktoken",
    "TOKENIZER": "cl100k_base",
    "WAIT_READY": "60",
    "LINGER": "6",
}
LOAD = {
    "mode": "open",
    "arrivals": "poisson",
    "stages": [
        {"name": "warmup", "duration": "3s", "rate_per_s": 10, "warmup": True},
        {"name": "main", "duration": "20s", "rate_per_s": 20},
    ],
}
SLO = {"ttft": "<2s", "tpot": "<200ms", "error_ratio": "<1%"}
# Reasons that a machine with better things to do may give: this run's numbers are compared with
# themselves, so they may be bad ones.
BUSY = {"worker_late", "rate_not_reached", "generator_saturated", "reads_coalesced"}
# What a healthy run of half a minute in processes, not pods, cannot show: two hours of history,
# the kubelet's and the GPU exporter's metrics.
EMPTY_PANELS = {
    "p99 of the last hour / p99 of the hour before / A",
    "p99 of the last hour / p99 of the hour before / B",
    "Throttled share of each pod / A",
    "Memory of each pod / A",
    "GPU busy / A",
    "Memory bandwidth in use / A",
    "Memory in use / A",
    "Power / A",
}


@dataclass(frozen=True)
class Observed:
    """A finished run and the Prometheus that watched it."""

    url: str
    start: float
    end: float
    summary: dict[str, Any]

    def ask(self, path: str, **parameters: str | float) -> Any:
        """An answer of Prometheus' API; a wrong expression is an error."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}{path}?{query}", timeout=30) as answer:
            return json.loads(answer.read())["data"]

    def over_the_run(self, expression: str) -> list[float]:
        """Every value of every series at every second of the run; NaN left out."""
        data = self.ask(
            "/api/v1/query_range", query=expression, start=self.start, end=self.end, step=1
        )
        values = [float(v) for series in data["result"] for _, v in series["values"]]
        return [value for value in values if not math.isnan(value)]

    def last(self, expression: str) -> dict[str, float]:
        """The last value of each series of the run, by the label that tells them apart."""
        data = self.ask(
            "/api/v1/query", query=f"last_over_time({expression}[5m])", time=self.end + 30
        )
        return {
            "".join(
                v for k, v in sorted(series["metric"].items()) if k not in ("job", "instance")
                and k != "__name__"
            ): float(series["value"][1])
            for series in data["result"]
        }  # fmt: skip


@contextmanager
def prometheus(folder: Path, targets: dict[str, int]) -> Iterator[str]:
    """A Prometheus on a free port with our rules, scraping each target every second."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian package prometheus)")
    folder.mkdir()
    shutil.copy(operator.RULES, folder / "rules.yaml")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s", "scrape_timeout": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            for name, port in targets.items()
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"{url}/-/ready", timeout=2).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="module")
def observed(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache: Path
) -> Iterator[Observed]:
    """A run of the overlay `soak`, scraped from before its start to after its end."""
    folder = tmp_path_factory.mktemp("prometheus")
    prompts = {"source": "sharegpt", "path": str(corpus), "input_tokens": 64, "output_tokens": 16}
    text = yaml.safe_dump(
        {
            "name": "watched",
            "backend": {"kind": "openai-completions", "model": "demo"},
            "tokenizer": {"source": "tiktoken", "path": "cl100k_base"},
            "prompts": prompts,
            "load": LOAD,
            "slo": SLO,
            "validity": {"cpu": 1.0, "loop_lag_p99_s": 5, "coalesced_share": 1.0},
        }
    )
    objects = edited("soak", folder / "source", NUMBERS, text)
    engine = ["tokenswarm", "simulate", "--host", "0.0.0.0", "--port", "8000"]
    with Rendered(objects, folder / "run", replace={"engine": engine}, cache=cache) as rendered:
        # As the two PodMonitors would: the port that each names, of the pods that each selects.
        assert len(of_kind(objects, "PodMonitor")) == 2
        targets = {"tokenswarm": rendered.port(9646), "engine": rendered.port(8000)}
        with prometheus(folder / "prometheus", targets) as url:
            start = time.time()
            rendered.start("engine")
            rendered.wait_ready("engine", 60)
            rendered.start("worker", "master")
            rendered.finish(120)
            summary = json.loads((rendered.results() / "summary.json").read_text())
            reasons = {reason["code"] for reason in summary["invalid_reasons"]}
            assert reasons <= BUSY, rendered.logs()
            assert summary["slo"]["checks"], rendered.logs()
            yield Observed(url, start, time.time(), summary)


def test_the_last_scrape_equals_the_summary(observed: Observed) -> None:
    """Conservation up to Prometheus' own storage, after the master is gone."""
    summary = observed.summary
    outcomes = observed.last("tokenswarm_requests_total")
    assert {k: v for k, v in outcomes.items() if v} == summary["requests"]["by_outcome"]
    assert sum(outcomes.values()) == summary["requests"]["sent"] > 300
    assert observed.last("tokenswarm_output_tokens_total") == {"": summary["tokens"]["output"]}
    assert observed.last("tokenswarm_prompt_tokens_total") == {"": summary["tokens"]["prompt"]}
    stages = observed.last("tokenswarm_time_to_first_token_seconds_count")
    assert sum(stages.values()) == summary["requests"]["ok"]
    assert observed.last("tokenswarm_run_state")["done"] == 1
    # The engine counts what waited for it and probed it too: one token each.
    tokens = sum(observed.last("vllm:generation_tokens_total").values())
    assert 1 <= tokens - summary["tokens"]["output"] <= 5


def test_quantiles_agree_with_the_summary(observed: Observed) -> None:
    """Within the width of a bucket, a tenth of a decade."""
    name = "tokenswarm_time_to_first_token_seconds"
    at_end = f'last_over_time({name}_bucket{{stage="main"}}[5m])'
    data = observed.ask(
        "/api/v1/query",
        query=f"histogram_quantile(0.5, sum by (le) ({at_end}))",
        time=observed.end + 30,
    )
    (series,) = data["result"]
    exact = observed.summary["metrics"]["ttft_due_s"]["p50"]
    assert float(series["value"][1]) == pytest.approx(exact, rel=0.26)


def test_every_metric_is_there(observed: Observed) -> None:
    known = set(observed.ask("/api/v1/label/__name__/values"))
    for name in METRICS:
        assert name in known or f"{name}_bucket" in known, name
    engines = VLLM_METRICS - {  # older names of the same things
        "vllm:gpu_cache_usage_perc",
        "vllm:time_per_output_token_seconds_bucket",
    }
    assert engines <= known


@pytest.mark.parametrize("expression", of_dashboard("5s"), ids=lambda e: e.where)
def test_the_dashboard_shows_something(observed: Observed, expression: Expression) -> None:
    values = observed.over_the_run(expression.text)
    if expression.where in EMPTY_PANELS:
        assert not values
    else:
        assert values, expression.text
        assert all(math.isfinite(value) for value in values), expression.text


@pytest.mark.parametrize("expression", of_rules("record"), ids=lambda e: e.where)
def test_recorded_figures_are_recorded(observed: Observed, expression: Expression) -> None:
    assert observed.over_the_run(expression.text)
    values = observed.over_the_run(expression.where)
    assert values, "the rule is evaluated but records nothing"
    assert min(values) >= 0


@pytest.mark.parametrize("expression", of_rules("alert"), ids=lambda e: e.where)
def test_alerts_stay_silent_in_a_healthy_run(observed: Observed, expression: Expression) -> None:
    """The expression is right (it is evaluated), what it compares exists, and nothing fires."""
    for name in names(expression.text):
        assert observed.over_the_run(name), name
    # On a busy machine a worker may well lag for a moment: only firing alerts count.
    quoted = f'ALERTS{{alertname="{expression.where}", alertstate="firing"}}'
    assert observed.over_the_run(quoted) == []
    observed.over_the_run(expression.text)


def test_rules_have_no_errors(observed: Observed) -> None:
    groups = observed.ask("/api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(of_rules("record")) + len(of_rules("alert"))
    assert {rule["health"] for rule in rules} == {"ok"}, [
        (rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"
    ]


def test_a_wrong_expression_would_be_noticed(observed: Observed) -> None:
    assert observed.over_the_run("tokenswarm_no_such_metric") == []
    ask: Callable[[str], list[float]] = observed.over_the_run
    with pytest.raises(urllib.error.HTTPError):
        ask("rate(tokenswarm_requests_total)")
