"""What a run's speed is worth: dollars a million tokens, and how much of the hardware it uses.

    price = usd_per_hour / (tokens a second * 3600 * utilization) * 1e6
    MBU   = (bytes of parameters read + KV-cache bytes of the running batch) / TPOT / peak bandwidth
    MFU   = operations / time / peak operations a second

Peaks are those of the GPUs of one replica together; all sizes are bytes, all rates a second.
Source of MBU: "LLM Inference Performance Engineering: Best Practices" (Databricks, 2023); of MFU:
PaLM (Chowdhery et al. 2022), 2 operations a parameter and token in a forward pass.

The one subtle rule: the formula sees what must be read once a step. Caches, paging and
activations are not in it, nor are sliding windows, so it is a share of what is possible at best,
comparable between runs rather than exact.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tokenswarm import economics_gpus, economics_shape
from tokenswarm.records import BadInput

QUADRANTS = ("leader", "challenger", "follower", "laggard")
"""Cheap and fast; fast but dear; cheap but slow; neither."""

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Hardware:
    """The peaks of one GPU, how many there are, and how many hold one copy of the model."""

    name: str
    count: int
    bandwidth: float  # bytes a second of one GPU
    flops: float  # operations a second of one GPU, at the precision of the weights
    replica: int  # GPUs that share one copy: tensor times pipeline parallelism
    memory: float | None = None  # bytes of one GPU

    @property
    def replicas(self) -> float:
        """Copies of the model that serve side by side."""
        return self.count / self.replica


@dataclass(frozen=True, slots=True)
class Model:
    """What a model weighs; expert_share and top_k are 0 for one that is not a mixture of experts.

    parameters: all of them; expert_share: the part of them that is in experts, of which each
    token uses top_k of experts.
    """

    parameters: float
    weight_bytes: float  # a parameter
    kv_bytes: float  # a token of context
    expert_share: float = 0.0
    experts: int = 0
    top_k: int = 0

    @property
    def active(self) -> float:
        """Parameters that compute for one token."""
        if not self.experts:
            return self.parameters
        return self.parameters * (1 - self.expert_share * (1 - self.top_k / self.experts))

    def bytes_read(self, batch: float) -> float:
        """Bytes of parameters that a step over `batch` sequences reads.

        Of a mixture of experts those that some token of the batch is sent to, if each were
        equally likely: 1 - (1 - k/E)^batch of them.
        """
        share = 1.0
        if self.experts:
            touched = 1 - (1 - self.top_k / self.experts) ** max(1.0, batch)
            share = 1 - self.expert_share * (1 - touched)
        return self.parameters * self.weight_bytes * share


def price_per_million(
    usd_per_hour: float, tokens_per_s: float | None, utilization: float = 1.0
) -> float | None:
    """Dollars a million tokens; utilization is the share of the hour in which there is load."""
    if not tokens_per_s or not utilization:
        return None
    return usd_per_hour / (tokens_per_s * 3600 * utilization) * _MILLION


def cost(spec: Mapping[str, Any], throughput: Mapping[str, Any]) -> dict[str, float | None] | None:
    """`cost` of a summary, from the workload's hardware section; None without an hourly price."""
    usd_per_hour = spec.get("usd_per_hour")
    if usd_per_hour is None:
        return None
    used = float(spec.get("utilization") or 1.0)
    output, total = throughput.get("output_tokens_per_s"), throughput.get("total_tokens_per_s")
    inputs = total - output if total is not None and output is not None else None
    return {
        "usd_per_hour": usd_per_hour,
        "utilization": used,
        **{
            f"usd_per_million_{kind}_tokens": price_per_million(usd_per_hour, rate, used)
            for kind, rate in (("input", inputs), ("output", output), ("total", total))
        },
    }


def mbu(weights: float, kv_cache: float, tpot_s: float, bandwidth: float) -> float:
    """Share of the memory bandwidth in use: bytes read each step over what could be read.

    7e9 parameters of 2 bytes, no cache, 14 ms a token, 2 TB/s: 0.5.
    """
    return (weights + kv_cache) / tpot_s / bandwidth


def mfu(operations: float, seconds: float, flops: float) -> float:
    """Share of the arithmetic in use."""
    return operations / seconds / flops


def hardware(spec: Mapping[str, Any]) -> Hardware | None:
    """Hardware from the workload's section of that name; None where it says too little.

    A GPU of the table GPUS, or any with `peak_tflops` and `memory_bandwidth_gb_per_s`. Its
    `model` may hold `weight_bits` (16 or 8) and `tensor_parallel`, `pipeline_parallel`.
    Raises BadInput for an unknown GPU without numbers.
    """
    name, model = spec.get("gpu"), spec.get("model") or {}
    bandwidth, tflops = spec.get("memory_bandwidth_gb_per_s"), spec.get("peak_tflops")
    memory_gb = spec.get("memory_gb")
    if (bandwidth is None or tflops is None) and name is not None:
        known = economics_gpus.find(str(name))
        if known is None:
            raise BadInput(f"hardware.gpu: {economics_gpus.unknown(str(name))}")
        bits = 8 if model.get("weight_bits") == 8 and known.tflops_8 else 16
        bandwidth = known.bandwidth_gb_per_s if bandwidth is None else bandwidth
        tflops = (known.tflops_8 if bits == 8 else known.tflops_16) if tflops is None else tflops
        memory_gb = known.memory_gb if memory_gb is None else memory_gb
    if bandwidth is None or tflops is None:
        return None
    count = int(spec.get("count") or 1)
    parallel = [model.get(f"{kind}_parallel") for kind in ("tensor", "pipeline")]
    replica = math.prod(int(p) for p in parallel if p) if any(parallel) else count
    if count % replica:
        raise BadInput(f"hardware: {economics_gpus.uneven(count, replica)}")
    memory = memory_gb * 1e9 if memory_gb is not None else None
    return Hardware(str(name or "GPU"), count, bandwidth * 1e9, tflops * 1e12, replica, memory)


def model(spec: Mapping[str, Any]) -> Model | None:
    """A model from `hardware.model`: `config` (a config.json or its folder) and/or numbers.

    Numbers: `parameters`, `kv_bytes_per_token`, `weight_bits`, `kv_bits` (both 16), and for a
    mixture of experts `expert_share`, `experts`, `top_k`. They hold over what the shape says: keys
    of config.json beside them (economics_shape.SHAPE), which hold over those of config. None
    where there is nothing. Raises BadInput when the parameters cannot be worked out.
    """
    if not spec:
        return None
    weight_bytes = float(spec.get("weight_bits") or 16) / 8
    kv_element = float(spec.get("kv_bits") or 16) / 8
    shape = economics_shape.from_config(_shape(spec), kv_element)
    for key in ("parameters", "expert_share", "experts", "top_k"):
        if spec.get(key) is not None:
            shape[key] = spec[key]
    if spec.get("kv_bytes_per_token") is not None:
        shape["kv_bytes"] = spec["kv_bytes_per_token"]
    if not shape.get("parameters"):
        raise BadInput("hardware.model: give `parameters`, they do not follow from what is there")
    return Model(
        float(shape["parameters"]), weight_bytes, float(shape.get("kv_bytes") or 0.0),
        float(shape.get("expert_share") or 0.0), int(shape.get("experts") or 0),
        int(shape.get("top_k") or 0),
    )  # fmt: skip


def _shape(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of config.json: those of the file and those beside it, which hold over them."""
    config = _config(spec["config"]) if spec.get("config") else {}
    keys = (*economics_shape.NUMBERS, *economics_shape.OTHERS)
    given = {key: spec[key] for key in keys if spec.get(key) is not None}
    return economics_shape.joined(config, given)


def _config(where: Any) -> dict[str, Any]:
    path = Path(str(where))
    path = path / "config.json" if path.is_dir() else path
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"hardware.model.config: {path}: cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise BadInput(f"hardware.model.config: {path}: not a model's config.json")
    return dict(found.get("text_config") or found)


def unknowns(model: Model, spec: Mapping[str, Any]) -> list[str]:
    """What the description of a model leaves open, and what that does to MBU and MFU.

    spec: the workload's hardware section.
    """
    shape, found = _shape(spec.get("model") or {}), []
    if not model.kv_bytes:
        found.append(
            "hardware.model: the size of the KV cache is not known, so MBU counts the parameters "
            f"alone and is too low: give kv_bytes_per_token, or {economics_shape.NO_CACHE}"
        )
    if not model.experts and any(shape.get(k) for k in economics_shape.SHAPE["experts"]):
        found.append(
            "hardware.model: which part of the parameters is in experts is not known, so MBU and "
            "MFU count all of them for every token: give expert_share, experts and top_k"
        )
    return found


def utilization(
    summary: Mapping[str, Any], hardware: Hardware, model: Model, running: Mapping[str, float]
) -> dict[str, Any]:
    """`utilization` of a summary: MBU, MFU and everything that went into them.

    running: time averages over the measured window, see `running`. MBU is at the median TPOT,
    `mfu` over all tokens of the window, `mfu_prefill` of a median prompt within the median TTFT,
    waiting included, so it is a lower bound.
    """
    metrics, through = summary.get("metrics") or {}, summary.get("throughput") or {}
    tpot, ttft, prompt = (
        (metrics.get(name) or {}).get("p50") for name in ("tpot_s", "ttft_s", "prompt_tokens")
    )
    batch = running.get("sequences", 0.0) / hardware.replicas
    kv_cache = running.get("context_tokens", 0.0) / hardware.replicas * model.kv_bytes
    weights = model.bytes_read(batch)
    bandwidth = hardware.bandwidth * hardware.replica
    tokens = through.get("total_tokens_per_s")
    return {
        "mbu": mbu(weights, kv_cache, tpot, bandwidth) if tpot else None,
        "mfu": mfu(2 * model.active * tokens, 1.0, hardware.flops * hardware.count)
        if tokens else None,
        "mfu_prefill": mfu(2 * model.active * prompt, ttft, hardware.flops * hardware.replica)
        if ttft and prompt else None,
        "inputs": {
            "gpu": hardware.name, "count": hardware.count, "replicas": hardware.replicas,
            "peak_bandwidth_bytes_per_s": bandwidth,
            "peak_flops": hardware.flops * hardware.replica,
            "parameters": model.parameters, "active_parameters": model.active,
            "weight_bytes_read": weights, "kv_cache_bytes": kv_cache,
            "kv_bytes_per_token": model.kv_bytes, "batch": batch, "tpot_p50_s": tpot,
            "gpus_per_replica": hardware.replica, "memory_bytes_per_gpu": hardware.memory,
            "weight_bytes_per_parameter": model.weight_bytes, "expert_share": model.expert_share,
            "experts": model.experts, "experts_per_token": model.top_k,
        },
    }  # fmt: skip


def context_of(inputs: Mapping[str, Any]) -> float:
    """Tokens that a running sequence holds on average, from `utilization.inputs`; 0 if unknown."""
    held = inputs["batch"] * inputs["kv_bytes_per_token"]
    return float(inputs["kv_cache_bytes"] / held) if held else 0.0


def roof_of(inputs: Mapping[str, Any]) -> tuple[Hardware, Model, float] | None:
    """Hardware, model and context behind `utilization.inputs`; None for those of older runs.

    With these a roofline needs neither the workload nor the model's config.json.
    """
    replica = inputs.get("gpus_per_replica")
    if not replica:
        return None
    hardware = Hardware(
        str(inputs["gpu"]), int(inputs["count"]), inputs["peak_bandwidth_bytes_per_s"] / replica,
        inputs["peak_flops"] / replica, int(replica), inputs["memory_bytes_per_gpu"],
    )  # fmt: skip
    model = Model(
        inputs["parameters"], inputs["weight_bytes_per_parameter"], inputs["kv_bytes_per_token"],
        inputs["expert_share"], inputs["experts"], inputs["experts_per_token"],
    )  # fmt: skip
    return hardware, model, context_of(inputs)


def described(spec: Mapping[str, Any]) -> tuple[Hardware, Model] | None:
    """Hardware and model of the workload's hardware section; None where no model is described.

    Raises BadInput for what is wrong or missing.
    """
    model_ = model(spec.get("model") or {})
    if model_ is None:
        return None
    hardware_ = hardware(spec)
    if hardware_ is None:
        raise BadInput(f"hardware.model: {economics_gpus.NO_PEAKS}")
    return hardware_, model_


def running_of(summary: Mapping[str, Any], requests: Any) -> dict[str, float]:
    """`running` of a run, or what its means say where it kept no request log (requests: None).

    Little's law: requests a second times the mean time from first to last token; on average a
    sequence holds its prompt and half of its answer.
    """
    if requests is not None:
        return running(requests, summary.get("window") or {})
    rate = (summary.get("throughput") or {}).get("requests_per_s")
    metrics = summary.get("metrics") or {}
    e2e, ttft, prompt, output = (
        (metrics.get(name) or {}).get("mean")
        for name in ("e2e_s", "ttft_s", "prompt_tokens", "output_tokens")
    )
    if rate is None or e2e is None or ttft is None or prompt is None or output is None:
        return {}
    sequences = rate * (e2e - ttft)
    return {"sequences": sequences, "context_tokens": sequences * (prompt + output / 2)}


def running(requests: Any, window: Mapping[str, Any]) -> dict[str, float]:
    """Sequences that decode, and tokens of context they hold, as time averages in the window.

    requests: run_files.Requests. A sequence runs from its first to its last token; its context is
    the prompt and, growing evenly, its answer.
    """
    import numpy as np

    start, end = window.get("start"), window.get("end")
    if start is None or end is None or end <= start:
        return {}
    first, last = requests["first_token"], requests["last_token"]
    prompt, output = requests["prompt_tokens"], requests["output_tokens"]
    known = ~(np.isnan(first) | np.isnan(last) | np.isnan(prompt) | np.isnan(output))
    first, last, prompt, output = (c[known] for c in (first, last, prompt, output))
    begin, stop = np.maximum(first, start), np.minimum(last, end)
    inside = stop > begin
    first, last, prompt, output = (c[inside] for c in (first, last, prompt, output))
    begin, stop = begin[inside], stop[inside]
    middle = ((begin + stop) / 2 - first) / np.maximum(last - first, 1e-9)
    seconds, stride = stop - begin, requests.stride
    context = prompt + output * middle
    return {
        "sequences": float(seconds.sum()) * stride / (end - start),
        "context_tokens": float((seconds * context).sum()) * stride / (end - start),
    }


@dataclass(frozen=True, slots=True)
class Roof:
    """What a replica could deliver at most at a batch, in output tokens a second."""

    batch: float
    by_bandwidth: float
    by_compute: float

    @property
    def best(self) -> float:
        """The lower roof: what is possible."""
        return min(self.by_bandwidth, self.by_compute)


def roofline(
    hardware: Hardware, model: Model, context: float, batches: Sequence[float]
) -> list[Roof]:
    """The two roofs over decoding at several batches, each sequence holding `context` tokens."""
    bandwidth, flops = hardware.bandwidth * hardware.replica, hardware.flops * hardware.replica
    compute = flops / (2 * model.active)
    return [
        Roof(b, b * bandwidth / (model.bytes_read(b) + b * context * model.kv_bytes), compute)
        for b in batches
    ]


def largest_batch(hardware: Hardware, model: Model, context: float) -> float | None:
    """Sequences of `context` tokens whose cache fits beside the parameters in a replica's memory.

    None where memory or cache size is not known; 0 when the parameters alone do not fit.
    """
    if hardware.memory is None or not model.kv_bytes or not context:
        return None
    room = hardware.memory * hardware.replica - model.parameters * model.weight_bytes
    return max(0.0, room / (context * model.kv_bytes))


def split_of(prices: Sequence[float], speeds: Sequence[float]) -> tuple[float, float]:
    """Where the quadrants meet unless somebody says otherwise: the median price and speed."""
    return median(prices), median(speeds)


def quadrant(price: float, speed: float, split: tuple[float, float]) -> str:
    """One of QUADRANTS; on a border counts as the better side."""
    cheap, fast = price <= split[0], speed >= split[1]
    return QUADRANTS[(0 if cheap else 1) if fast else (2 if cheap else 3)]


def value_for_money(price: float, speed: float) -> float:
    """Slope from the origin of the price-speed chart: tokens a second of one user for a dollar a
    million tokens."""
    return speed / price


def answer_time(summary: Mapping[str, Any], tokens: int, figure: str = "p50") -> float | None:
    """How long an answer of so many tokens takes: TTFT + TPOT x (tokens - 1)."""
    metrics = summary.get("metrics") or {}
    ttft, tpot = ((metrics.get(name) or {}).get(figure) for name in ("ttft_s", "tpot_s"))
    return None if ttft is None or tpot is None else ttft + tpot * (tokens - 1)
