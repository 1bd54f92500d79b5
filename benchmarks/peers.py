"""The tools that are compared, each as one row: how its own documentation runs it, and where it
says what it measured.

Knows each tool's command line and result file; knows nothing about truth. The subtle rule: every
tool gets the same job (closed loop, chat, the same lengths) and its own definitions; the figure
that goes as TPOT is (last - first) / (tokens - 1), whatever the tool calls it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import product
from benchmarks.ground_truth.truth import cache

_VENVS = cache() / "venvs"


@dataclass(frozen=True)
class Job:
    """The same for every tool."""

    url: str
    streams: int
    requests: int
    input_tokens: int
    output_tokens: int
    folder: Path


@dataclass(frozen=True)
class Reported:
    """What a tool says it measured, in milliseconds."""

    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float


@dataclass(frozen=True)
class Peer:
    """A tool: its command for a job, and its figures from the files it wrote."""

    version: str
    program: Path
    command: Callable[[Job], list[str]]
    read: Callable[[Path], Reported]
    environment: Mapping[str, str] = field(default_factory=dict)
    checks_prompts: bool = False  # against a server that does not tokenise it would cry foul


def _aiperf(job: Job) -> list[str]:
    return [
        "profile", "--model", "oracle", "--url", job.url, "--endpoint-type", "chat",
        "--streaming", "--tokenizer", str(product.TOKENIZER),
        "--isl", str(job.input_tokens), "--isl-stddev", "0",
        "--osl", str(job.output_tokens), "--osl-stddev", "0",
        "--extra-inputs", "ignore_eos:true", "--use-server-token-count",
        "--concurrency", str(job.streams), "--request-count", str(job.requests),
        "--num-dataset-entries", str(job.requests), "--random-seed", "0",
        "--ui", "none", "--artifact-dir", str(job.folder / "aiperf"),
    ]  # fmt: skip


def _read_aiperf(folder: Path) -> Reported:
    export = _json(next((folder / "aiperf").rglob("profile_export_aiperf.json")))
    ttft, itl = export["time_to_first_token"], export["inter_token_latency"]
    return Reported(ttft["p50"], ttft["p99"], itl["p50"], itl["p99"])


def _guidellm(job: Job) -> list[str]:
    backend = f"kind=openai_http,target={job.url},model=oracle"
    return [
        "run", "--backend", f"{backend},request_format=/v1/chat/completions",
        "--profile", f"kind=concurrent,streams={job.streams}",
        "--constraint", f"kind=max_requests,count={job.requests}",
        "--tokenizer", f"kind=huggingface_auto,model={product.TOKENIZER}",
        "--data", f"kind=synthetic_text,prompt_tokens={job.input_tokens},"
                  f"output_tokens={job.output_tokens}",
        "--output", f"kind=json,path={job.folder / 'guidellm.json'}",
        "--disable-console-interactive",
    ]  # fmt: skip


def _read_guidellm(folder: Path) -> Reported:
    metrics = _json(folder / "guidellm.json")["benchmarks"][0]["metrics"]
    ttft = metrics["time_to_first_token_ms"]["successful"]["percentiles"]
    itl = metrics["inter_token_latency_ms"]["successful"]["percentiles"]
    return Reported(ttft["p50"], ttft["p99"], itl["p50"], itl["p99"])


def _vllm_bench(job: Job) -> list[str]:
    return [
        "bench", "serve", "--backend", "openai-chat", "--base-url", job.url,
        "--endpoint", "/v1/chat/completions", "--model", "oracle",
        "--tokenizer", str(product.TOKENIZER), "--dataset-name", "random",
        "--random-input-len", str(job.input_tokens),
        "--random-output-len", str(job.output_tokens), "--random-range-ratio", "0",
        "--num-prompts", str(job.requests), "--max-concurrency", str(job.streams),
        "--ignore-eos", "--seed", "0", "--ready-check-timeout-sec", "0", "--disable-tqdm",
        "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99",
        "--save-result", "--result-dir", str(job.folder), "--result-filename", "vllm.json",
    ]  # fmt: skip


def _read_vllm_bench(folder: Path) -> Reported:
    found = _json(folder / "vllm.json")
    return Reported(*(found[f"p{q}_{name}_ms"] for name in ("ttft", "tpot") for q in (50, 99)))


def _tokenswarm(job: Job) -> list[str]:
    content = product.workload(
        kind="openai-chat", users=job.streams, requests=job.requests,
        input_tokens=job.input_tokens, output_tokens=job.output_tokens,
    )  # fmt: skip
    return product.command(content, job.url, job.folder)[1:]


def _read_tokenswarm(folder: Path) -> Reported:
    metrics = product.summary(folder)["metrics"]
    return Reported(
        *(metrics[name][q] * 1e3 for name in ("ttft_s", "tpot_s") for q in ("p50", "p99"))
    )


def _json(file: Path) -> Any:
    return json.loads(file.read_text())


# In the order of running. Versions are those of benchmarks/setup.
PEERS: dict[str, Peer] = {
    "tokenswarm": Peer("", product.PROGRAM, _tokenswarm, _read_tokenswarm,
                       checks_prompts=True),
    "aiperf": Peer("0.13.0", _VENVS / "aiperf/bin/aiperf", _aiperf, _read_aiperf),
    "guidellm": Peer("0.8.1", _VENVS / "guidellm/bin/guidellm", _guidellm, _read_guidellm),
    "vllm bench": Peer(
        "0.32.0", _VENVS / "vllm/bin/vllm", _vllm_bench, _read_vllm_bench,
        {"VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
    ),
}  # fmt: skip


def environment(peer: Peer) -> dict[str, str]:
    """The environment a tool runs in."""
    return {**os.environ, **peer.environment}
