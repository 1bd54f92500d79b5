"""The `hardware:` section of a workload: what the server runs on, and the model that it serves.

It knows the keys and what they need of one another; what is reckoned from them is economics.py's
business. The one subtle rule: a model's config.json is not opened here, since workers read the
workload too and need not have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, PlainValidator, create_model

from tokenswarm import economics_gpus, economics_shape, spec
from tokenswarm.spec import Count, Flag, NotNegative, Positive, Problem, Section, Share, Text

_EXPERTS = ("expert_share", "experts", "top_k")
_NO_PARAMETERS = (
    "is required: give the number of parameters, or config: a model's config.json or its folder"
)


class _ModelNumbers(Section):
    """What a model weighs, in numbers; the shape keys are added below, from their table."""

    config: Text | None = None
    parameters: Positive | None = None
    kv_bytes_per_token: Positive | None = None
    weight_bits: Positive | None = None
    kv_bits: Positive | None = None
    expert_share: Share | None = None
    experts: Count | None = None
    top_k: Count | None = None
    tensor_parallel: Count | None = None
    pipeline_parallel: Count | None = None
    model_type: Text | None = None
    tie_word_embeddings: Flag | None = None

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Refuse a model of unknown size, half a mixture of experts, and one thing said twice."""
        for names in economics_shape.SHAPE.values():
            first, *more = [name for name in names if name in raw] or [""]
            for name in more:
                yield (name,), f"says the same as {first}: give one of the two"
        mixture = [name for name in _EXPERTS if name in raw]
        if mixture and "config" not in raw and not _follows(raw, "experts"):
            for name in _EXPERTS:
                if name not in raw:
                    yield (name,), f"is required beside {' and '.join(mixture)}"
        if raw and not {"config", "parameters"} & raw.keys() and not _follows(raw, "parameters"):
            yield ("parameters",), _NO_PARAMETERS


_Model = create_model(  # type: ignore[call-overload]
    "Model",
    __base__=_ModelNumbers,
    **dict.fromkeys(economics_shape.NUMBERS, (Positive | None, None)),
)


def _follows(raw: Mapping[str, Any], what: str) -> bool:
    """Whether it follows from the shape keys, those that are no numbers aside."""
    shape = {k: v for k, v in raw.items()
             if k in economics_shape.OTHERS
             or (k in economics_shape.NUMBERS and spec.is_number(v))}  # fmt: skip
    return bool(economics_shape.from_config(shape).get(what))


def _model(value: Any) -> dict[str, Any]:
    """The keys that are given, as they are given, all of them checked."""
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping of keys, got {spec.show(value)}")
    _Model.model_validate(value)
    return {key: part for key, part in value.items() if part is not None}


class Hardware(Section):
    """What the server runs on; for figures a GPU, a dollar, and a share of what is possible."""

    gpu: Text | None = None
    count: Count = 1
    usd_per_hour: NotNegative | None = None
    utilization: Share = 1.0
    peak_tflops: Positive | None = None
    memory_bandwidth_gb_per_s: Positive | None = None
    memory_gb: Positive | None = None
    model: Annotated[dict[str, Any], PlainValidator(_model)] = Field(default_factory=dict)

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Refuse hardware that is never used, and peaks or copies that cannot be worked out."""
        if raw.get("utilization") == 0:  # its price a token would be infinite
            yield ("utilization",), "must be above 0"
        gpu, model = raw.get("gpu"), raw.get("model")
        peaks = "peak_tflops" in raw and "memory_bandwidth_gb_per_s" in raw
        if isinstance(model, Mapping) and model:  # without one, a price needs no peaks
            named = isinstance(gpu, str) and bool(gpu.strip())
            if named and not peaks and not economics_gpus.find(str(gpu)):
                yield ("gpu",), economics_gpus.unknown(str(gpu))
            if gpu is None and not peaks:
                yield ("model",), economics_gpus.NO_PEAKS
            yield from _copies(raw.get("count", 1), model)


def _copies(count: Any, model: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with how many GPUs hold a copy of the model."""
    given = [model.get(f"{kind}_parallel") for kind in ("tensor", "pipeline")]
    sizes = [1 if size is None else size for size in given]
    if not all(spec.is_number(n) and n >= 1 for n in (count, *sizes)):
        return
    replica = int(sizes[0] * sizes[1])
    if any(size is not None for size in given) and count % replica:
        key = "tensor_parallel" if given[0] is not None else "pipeline_parallel"
        yield ("model", key), economics_gpus.uneven(int(count), replica)
