"""What the engine answers besides generations: models, health, tokenize, metrics, log.

One table, GETS and POSTS by path below the base path. Knows nothing about sockets. Subtle: the
paths of all engines are served side by side, as a client may look for any of them.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import orjson

from tokenswarm.simulator.answer import Ask, RequestError
from tokenswarm.simulator.engine import Engine


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"


Endpoint = Callable[[Engine], Reply]


def _json(value: Any, status: int = 200) -> Reply:
    return Reply(orjson.dumps(value), status)


def _models(engine: Engine) -> Reply:
    settings = engine.settings
    card = {
        "id": settings.model,
        "object": "model",
        "created": engine.created,
        "owned_by": "tokenswarm",
        "root": settings.model,
        "parent": None,
        "max_model_len": settings.max_model_len,
    }
    return _json({"object": "list", "data": [card]})


def _health(_engine: Engine) -> Reply:
    return Reply(b"", 200, "text/plain")


def _version(_engine: Engine) -> Reply:
    from tokenswarm import __version__

    return _json({"version": __version__})


def _tgi_info(engine: Engine) -> Reply:
    settings = engine.settings
    return _json(
        {
            "model_id": settings.model,
            "model_sha": None,
            "max_concurrent_requests": settings.max_batch,
            "max_input_tokens": settings.max_model_len - 1,
            "max_total_tokens": settings.max_model_len,
            "max_client_batch_size": 1,
            "router": "text-generation-router",
            "version": "simulated",
        }
    )


def _sglang_model_info(engine: Engine) -> Reply:
    model = engine.settings.model
    return _json({"model_path": model, "tokenizer_path": model, "is_generation": True})


def _llamacpp_props(engine: Engine) -> Reply:
    settings = engine.settings
    return _json(
        {
            "default_generation_settings": {"n_ctx": settings.max_model_len},
            "total_slots": settings.max_batch,
            "model_path": settings.model,
            "build_info": "simulated",
        }
    )


def _triton_model(engine: Engine) -> Reply:
    return _json(
        {
            "name": engine.settings.model,
            "versions": ["1"],
            "platform": "ensemble",
            "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [-1]}],
            "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [-1]}],
        }
    )


def _metrics(engine: Engine) -> Reply:
    page = engine.metrics.page(
        engine.settings.model,
        engine.batch.running,
        len(engine.batch.waiting),
        engine.batch.kv_usage,
        (engine.cache.queries, engine.cache.hits),
    )
    return Reply(page, content_type="text/plain; version=0.0.4; charset=utf-8")


def _stats(engine: Engine) -> Reply:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return _json(
        {
            "requests": engine.metrics.requests,
            "prompt_tokens": engine.metrics.prompt_tokens,
            "tokens": engine.metrics.generation_tokens,
            "events": engine.metrics.events,
            "connections": engine.metrics.connections,
            "running": engine.batch.running,
            "waiting": len(engine.batch.waiting),
            "max_running": engine.max_running,
            "cpu_s": used.ru_utime + used.ru_stime,
            "max_rss_kib": used.ru_maxrss,
        }
    )


GETS: dict[str, Endpoint] = {
    "/v1/models": _models,
    "/models": _models,
    "/health": _health,
    "/health_generate": _health,
    "/ping": _health,
    "/v1/health": _health,
    "/v2/health/ready": _health,
    "/v2/health/live": _health,
    "/version": _version,
    "/info": _tgi_info,
    "/get_model_info": _sglang_model_info,
    "/props": _llamacpp_props,
    "/metrics": _metrics,
    "/stats": _stats,
}


def get(engine: Engine, path: str) -> Reply | None:
    """The answer to a GET; None for a path that is not here."""
    endpoint = GETS.get(path)
    if endpoint is not None:
        return endpoint(engine)
    if path.startswith("/v2/models/"):
        name, _, rest = path.removeprefix("/v2/models/").partition("/")
        if engine.settings.check_model and unquote(name) != engine.settings.model:
            return _json(
                {"error": f"Request for unknown model: '{unquote(name)}' is not found"}, 400
            )
        if rest == "ready":
            return _health(engine)
        if rest == "":
            return _triton_model(engine)
    return None


def tokenize(engine: Engine, body: dict[str, Any]) -> Reply:
    """POST /tokenize: vLLM's form (prompt or messages) and llama.cpp's (content)."""
    if "content" in body:
        special = bool(body.get("add_special", False))
        return _json({"tokens": engine.tokenizing.encode(str(body["content"]), special=special)})
    prompt = body.get("messages") or body.get("prompt")
    if not prompt or not isinstance(prompt, str | list):
        raise RequestError(400, "prompt, messages or content is needed.")
    ask = Ask("tokenize", "", prompt, add_special_tokens=bool(body.get("add_special_tokens", True)))
    counted = engine.tokenizing.count(ask)
    tokens = list(counted.units) if counted.units_per_token == 1 else []
    return _json(
        {
            "count": counted.tokens,
            "max_model_len": engine.settings.max_model_len,
            "tokens": tokens,
            "token_strs": None,
        }
    )
