"""What an embedded engine is: its model, its speed, its size and its faults.

ENGINES holds named engines; a YAML file and `--set key=value` say the same with the same keys.
The timing model, all of it:

    first token = start + (base_ms + prefill_ms_per_token * (prompt - cached tokens)) * jitter
    next token  = token before + (itl_ms + itl_ms_per_running * requests running) * jitter
    start       = arrival, or the moment a place in the batch and in the KV cache is free

The schedule is absolute: a send that comes late does not push the later ones back. Queueing is
first come, first served; a request holds prompt + output tokens of the KV cache from start to
end. So the capacity can be computed: see `capacity_per_s`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tokenswarm.records import BadInput

Tokenizer = dict[str, Any] | Literal["none"]


class Settings(BaseModel):
    """Everything about one engine; times in ms unless the name says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    model: str = "demo"
    base_path: str = Field("", pattern=r"^(/[^/?#]+)*$")
    check_model: bool = False
    tokenizer: Tokenizer = Field(default={"source": "tiktoken", "path": "cl100k_base"})
    tokenize: bool = True
    base_ms: float = Field(20.0, ge=0)
    prefill_ms_per_token: float = Field(0.05, ge=0)
    itl_ms: float = Field(10.0, ge=0)
    itl_ms_per_running: float = Field(0.0, ge=0)
    jitter: float = Field(0.0, ge=0, le=1)
    max_batch: int = Field(256, ge=1)
    max_queue: int | None = Field(None, ge=0)
    kv_tokens: int | None = Field(None, ge=1)
    block_size: int = Field(16, ge=1)
    prefix_caching: bool = True
    max_model_len: int = Field(131072, ge=2)
    default_output_tokens: int = Field(256, ge=1)
    eos_p: float = Field(0.0, ge=0, lt=1)
    tokens_per_event: int = Field(1, ge=1)
    coalesce: int = Field(1, ge=1)
    early_headers: bool = True
    api_key_env: str | None = None
    stall_at_s: float | None = Field(None, ge=0)
    stall_for_s: float = Field(0.0, ge=0)
    faults: dict[str, float] = Field(default={})
    fault_stall_s: float | None = Field(None, ge=0)
    fault_slow_ms: float = Field(500.0, ge=0)
    retry_after_s: int = Field(1, ge=0)
    max_body_bytes: int = Field(64 << 20, ge=1)
    seed: int = 1


ENGINES: dict[str, dict[str, Any]] = {
    "default": {},
    "fast": {"base_ms": 2, "prefill_ms_per_token": 0.002, "itl_ms": 1, "max_batch": 1024},
    "slow": {"base_ms": 200, "prefill_ms_per_token": 0.5, "itl_ms": 50, "max_batch": 16},
    "h100-like": {
        "base_ms": 25,
        "prefill_ms_per_token": 0.04,
        "itl_ms": 11,
        "itl_ms_per_running": 0.06,
        "kv_tokens": 480_000,
        "jitter": 0.05,
    },
    "a100-like": {
        "base_ms": 35,
        "prefill_ms_per_token": 0.1,
        "itl_ms": 19,
        "itl_ms_per_running": 0.1,
        "kv_tokens": 480_000,
        "jitter": 0.05,
    },
    "l4-like": {
        "base_ms": 50,
        "prefill_ms_per_token": 0.5,
        "itl_ms": 55,
        "itl_ms_per_running": 0.4,
        "max_batch": 64,
        "kv_tokens": 40_000,
        "jitter": 0.05,
    },
    "bench": {
        "base_ms": 100,
        "prefill_ms_per_token": 0,
        "itl_ms": 20,
        "max_batch": 65536,
        "tokenizer": "none",
        "prefix_caching": False,
    },
    "max-rate": {
        "base_ms": 0,
        "prefill_ms_per_token": 0,
        "itl_ms": 0,
        "max_batch": 65536,
        "tokenizer": "none",
        "prefix_caching": False,
    },
}


def load(engine: str = "default", sets: Sequence[str] = (), **overrides: Any) -> Settings:
    """Settings of a named engine or a YAML file, changed by `key=value` texts.

    BadInput with one line for each thing that is wrong.
    """
    values, where = _read(engine)
    places = dict.fromkeys(values, where)
    for text in sets:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise BadInput(f"--set {text}: expected key=value, for example --set itl_ms=20")
        try:
            parsed = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise BadInput(f"--set {text}: the value is not YAML: {error}") from None
        _assign(values, key, parsed, text)
        places[key.split(".")[0]] = f"--set {text}"
    values |= overrides
    return _validated(values, places, where)


def capacity_per_s(settings: Settings, prompt_tokens: int, output_tokens: int) -> float:
    """Requests per second that the engine serves when never idle, for requests of one size.

    capacity = running / (base + prompt * prefill + (output - 1) * (itl + running * per running)),
    running = min(max_batch, floor(kv_tokens / (prompt + output))). Without jitter it is exact;
    beyond it the queue grows without end.
    """
    running = settings.max_batch
    if settings.kv_tokens is not None:
        running = min(running, settings.kv_tokens // (prompt_tokens + output_tokens))
    itl_ms = settings.itl_ms + settings.itl_ms_per_running * running
    first_ms = settings.base_ms + settings.prefill_ms_per_token * prompt_tokens
    busy_ms = first_ms + (output_tokens - 1) * itl_ms
    return float("inf") if busy_ms == 0 else 1000.0 * running / busy_ms


def _read(engine: str) -> tuple[dict[str, Any], str]:
    if engine in ENGINES:
        return dict(ENGINES[engine]), f"engine {engine}"
    path = Path(engine)
    if path.suffix not in (".yaml", ".yml", ".json") and not path.exists():
        close = difflib.get_close_matches(engine, ENGINES, 1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise BadInput(
            f"--engine {engine}: no such engine or file. Engines: {', '.join(sorted(ENGINES))}."
            + hint
        )
    try:
        loaded = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--engine {engine}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise BadInput(f"--engine {engine}: not YAML: {error}") from None
    if not isinstance(loaded or {}, dict):
        raise BadInput(
            f"--engine {engine}: expected keys and values, got a {type(loaded).__name__}"
        )
    values = dict(loaded or {})
    base = values.pop("engine", "default")
    if base not in ENGINES:
        raise BadInput(f"{engine}: engine: unknown engine {base!r}: {', '.join(sorted(ENGINES))}")
    return {**ENGINES[base], **values}, engine


def _assign(values: dict[str, Any], key: str, value: Any, text: str) -> None:
    first, *rest = key.split(".")
    if not rest:
        values[first] = value
        return
    if len(rest) > 1 or first not in ("faults", "tokenizer"):
        raise BadInput(f"--set {text}: unknown key {key!r}")
    section = values.get(first)
    values[first] = {**(section if isinstance(section, dict) else {}), rest[0]: value}


def _validated(values: dict[str, Any], places: dict[str, str], where: str) -> Settings:
    problems = []
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        for item in error.errors():
            key = str(item["loc"][0]) if item["loc"] else ""
            problems.append(f"{places.get(key, where)}: {_explain(key, item)}")
        raise BadInput(*dict.fromkeys(problems)) from None
    problems = _fault_problems(settings, places.get("faults", where))
    if problems:
        raise BadInput(*problems)
    return settings


def _explain(key: str, item: Any) -> str:
    if item["type"] == "extra_forbidden":
        close = difflib.get_close_matches(key, Settings.model_fields, 1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        return f"unknown key '{key}'.{hint} Allowed: {', '.join(sorted(Settings.model_fields))}"
    return f"{key}: {item['msg']}, got {item['input']!r}"


def _fault_problems(settings: Settings, where: str) -> list[str]:
    from tokenswarm.simulator.faults import FAULTS  # faults need the nouns of this module

    problems = []
    for name, probability in settings.faults.items():
        if name not in FAULTS:
            close = difflib.get_close_matches(name, FAULTS, 1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            problems.append(
                f"{where}: faults: unknown fault '{name}'.{hint} Known: {', '.join(FAULTS)}"
            )
        elif not 0 <= probability <= 1:
            problems.append(f"{where}: faults.{name}: a probability from 0 to 1, got {probability}")
    if not problems and sum(settings.faults.values()) > 1 + 1e-9:
        total = sum(settings.faults.values())
        problems.append(
            f"{where}: faults: at most one a request, so they may sum to 1, not {total}"
        )
    return problems
