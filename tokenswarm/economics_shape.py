"""What follows from the shape of a model: its parameters, its KV cache, its experts.

It knows the keys of Hugging Face's config.json, under all their names, and no files. The one
subtle rule: what does not follow is left out, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenswarm.records import BadInput

SHAPE: dict[str, tuple[str, ...]] = {  # what it is: its names in config.json
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "head": ("head_dim",),
    "latent": ("kv_lora_rank",),
    "rope": ("qk_rope_head_dim",),
    "inner": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocabulary": ("vocab_size",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_inner": ("moe_intermediate_size",),
    "top_k": ("num_experts_per_tok", "moe_top_k"),
}
NUMBERS = tuple(name for names in SHAPE.values() for name in names)
OTHERS = ("model_type", "tie_word_embeddings")  # the rest of what is looked at
NO_CACHE = "num_hidden_layers, num_key_value_heads and head_dim"


def joined(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A config with keys that are given beside it, which hold over it under any name."""
    hidden = {name for names in SHAPE.values() if any(n in given for n in names) for name in names}
    return {**{k: v for k, v in config.items() if k not in hidden}, **given}


def from_config(config: Mapping[str, Any], kv_element: float = 2.0) -> dict[str, float]:
    """Parameters, KV bytes a token and experts from a Hugging Face config.json, or a part of one.

    Decoders of the Llama kind (gated MLP, grouped queries, maybe experts) and of the GPT-2 kind.
    Latent attention (MLA) has its KV size here, but not its parameters.
    """
    n = {what: _first(config, *names) for what, names in SHAPE.items()}
    n["head"] = n["head"] or (n["hidden"] / n["heads"] if n["heads"] else 0.0)
    n["kv_heads"] = n["kv_heads"] or n["heads"]
    cache = _cache(n, kv_element)
    inner = n["inner"] or (4 * n["hidden"] if "n_embd" in config else 0.0)
    expert_inner = n["expert_inner"] or inner
    known = all(n[what] for what in ("hidden", "layers", "heads", "vocabulary"))
    if n["latent"] or not known or not (expert_inner if n["experts"] else inner):
        return cache
    attention = n["hidden"] * n["head"] * (2 * n["heads"] + 2 * n["kv_heads"])
    matrices = 2 if "n_embd" in config or config.get("model_type") in ("opt", "gpt_neox") else 3
    expert = n["experts"] * 3 * n["hidden"] * expert_inner
    mlp = expert + n["hidden"] * n["experts"] if n["experts"] else matrices * n["hidden"] * inner
    tied = config.get("tie_word_embeddings", "n_embd" in config)
    vocabulary = n["hidden"] * n["vocabulary"] * (1 if tied else 2)
    total = n["layers"] * (attention + mlp + 2 * n["hidden"]) + n["hidden"] + vocabulary
    found = {"parameters": total, **cache}
    if not (n["experts"] and n["top_k"]):
        return found
    return {
        **found,
        "expert_share": n["layers"] * expert / total,
        "experts": n["experts"],
        "top_k": n["top_k"],
    }


def _cache(n: Mapping[str, float], kv_element: float) -> dict[str, float]:
    """Bytes of KV cache a token; nothing where they do not follow."""
    if n["latent"]:
        width, known = n["latent"] + n["rope"], bool(n["rope"])
    else:
        width = 2 * n["kv_heads"] * n["head"]
        known = bool(width)
    return {"kv_bytes": n["layers"] * width * kv_element} if known and n["layers"] else {}


def _first(config: Mapping[str, Any], *keys: str) -> float:
    key = next((k for k in keys if config.get(k) is not None), None)
    if key is None:
        return 0.0
    try:
        return float(config[key])
    except (TypeError, ValueError):
        raise BadInput(f"hardware.model: {key} must be a number, got {config[key]!r:.60}") from None
