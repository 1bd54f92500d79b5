"""The engines' own protocols: TGI, Triton, SGLang, llama.cpp and DeepSpeed-MII.

Each is a parse, a stream and a whole, in the shapes those servers send. Knows nothing about
timing beyond the steps of a piece. Subtle: only SGLang and llama.cpp have a word for "exactly
this many tokens"; for the others a client that asks for n tokens gets n.
"""

from __future__ import annotations

from typing import Any

import orjson

from tokenswarm.simulator.answer import (
    Answer,
    Ask,
    Protocol,
    RequestError,
    Script,
    positive,
    single_prompt,
    stop_strings,
)


def _sse(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _section(body: dict[str, Any], name: str) -> dict[str, Any]:
    section = body.get(name) or {}
    if not isinstance(section, dict):
        raise RequestError(400, f"{name}: an object is needed.")
    return section


# --- TGI ---------------------------------------------------------------------------------------

_TGI_FINISH = {"length": "length", "stop": "eos_token"}


def parse_tgi(body: dict[str, Any], _path_model: str | None) -> Ask:
    """The body of TGI's /generate and /generate_stream."""
    parameters = _section(body, "parameters")
    return Ask(
        protocol="tgi",
        model=str(body.get("model") or ""),
        prompt=single_prompt(body.get("inputs"), "inputs"),
        max_tokens=positive(parameters, "max_new_tokens") or 100,
        exact=True,
        stop=stop_strings(parameters.get("stop")),
        options={"details": bool(parameters.get("details"))},
    )


def stream_tgi(answer: Answer) -> Script:
    """Events of /generate_stream: the last one repeats the whole text, there is no [DONE].

    An event is one token in TGI: with several tokens in an event only the last id is shown.
    """
    for text, count, done, last in answer.groups():
        if last:
            payload = _tgi_last(answer, text, done)
        else:
            payload = (
                b'data:{"index":%d,"token":{"id":%d,"text":"%b","logprob":-0.1,"special":false},'
                b'"generated_text":null,"details":null}\n\n'
            ) % (done, answer.token_id(done - 1), text.encode())
        yield payload, count, count
    if not answer.output_tokens:
        yield _tgi_last(answer, None, 1), 0, 1


def whole_tgi(answer: Answer) -> bytes:
    """The answer of /generate."""
    body: dict[str, Any] = {"generated_text": answer.text()}
    if answer.ask.options.get("details"):
        body["details"] = _tgi_details(answer) | {"prefill": [], "tokens": []}
    return orjson.dumps(body)


def _tgi_last(answer: Answer, text: str | None, index: int) -> bytes:
    token = {
        "id": answer.token_id(index - 1) if text is not None else 2,
        "text": "</s>" if text is None else text,
        "logprob": -0.1,
        "special": text is None,
    }
    wanted = answer.ask.options.get("details") and answer.shape.usage
    details = _tgi_details(answer) if wanted else None
    event = {"index": index, "token": token, "generated_text": answer.text(), "details": details}
    return b"data:" + orjson.dumps(event) + b"\n\n"


def _tgi_details(answer: Answer) -> dict[str, Any]:
    return {
        "finish_reason": _TGI_FINISH[answer.finish],
        "generated_tokens": answer.output_tokens,
        "seed": None,
        "input_length": answer.prompt_tokens,
    }


def _tgi_error(status: int, message: str) -> bytes:
    kind = {429: "overloaded", 422: "validation", 400: "validation"}.get(status, "generation")
    return orjson.dumps({"error": message, "error_type": kind})


def _tgi_error_event(message: str) -> bytes:
    return b"data:" + _tgi_error(500, message) + b"\n\n"


# --- Triton generate extension -----------------------------------------------------------------


def parse_triton(body: dict[str, Any], path_model: str | None) -> Ask:
    """The body of /v2/models/M/generate and generate_stream.

    TensorRT-LLM names its inputs text_input and max_tokens, FasterTransformer request_output_len.
    """
    prompt = next(
        (body[name] for name in ("text_input", "prompt", "input_ids", "PROMPT") if name in body),
        None,
    )
    return Ask(
        protocol="triton",
        model=path_model or "",
        prompt=single_prompt(prompt, "text_input"),
        max_tokens=positive(body, "max_tokens", "request_output_len", "max_new_tokens") or 16,
        exact=True,
        one_event=not body.get("stream"),
        stop=stop_strings(body.get("stop_words") or None),
    )


def stream_triton(answer: Answer) -> Script:
    """Events of generate_stream: no end mark, no usage, no finish reason."""
    head = (
        b'data: {"model_name":%b,"model_version":"1","sequence_end":false,"sequence_id":0,'
        b'"sequence_start":false,"text_output":"'
    ) % orjson.dumps(answer.ask.model)
    for text, count, _, _ in answer.groups():
        yield b'%b%b"}\n\n' % (head, text.encode()), count, count
    if not answer.output_tokens:
        yield head + b'"}\n\n', 0, 1


def whole_triton(answer: Answer) -> bytes:
    """The answer of /generate."""
    flags = {"sequence_end": False, "sequence_id": 0, "sequence_start": False}
    model = {"model_name": answer.ask.model, "model_version": "1"}
    return orjson.dumps(model | flags | {"text_output": answer.text()})


def _triton_error(_status: int, message: str) -> bytes:
    return orjson.dumps({"error": message})


def _triton_error_event(message: str) -> bytes:
    return _sse({"error": message})


# --- SGLang native -----------------------------------------------------------------------------


def parse_sglang(body: dict[str, Any], _path_model: str | None) -> Ask:
    """The body of SGLang's /generate."""
    sampling = _section(body, "sampling_params")
    limit = positive(sampling, "max_new_tokens") or 128
    minimum = sampling.get("min_new_tokens") or 0
    ignore_eos = bool(sampling.get("ignore_eos"))
    prompt = body.get("text") if body.get("text") is not None else body.get("input_ids")
    return Ask(
        protocol="sglang",
        model=str(body.get("model") or ""),
        prompt=single_prompt(prompt, "text"),
        max_tokens=limit,
        min_tokens=minimum,
        ignore_eos=ignore_eos,
        exact=ignore_eos or minimum == limit,
        stream=bool(body.get("stream")),
        stop=stop_strings(sampling.get("stop")),
    )


def stream_sglang(answer: Answer) -> Script:
    """Events of /generate: the text is cumulative."""
    text = ""
    for new, count, done, last in answer.groups():
        text += new
        yield _sse(_sglang_state(answer, text, done, last)), count, count
    if not answer.output_tokens:
        yield _sse(_sglang_state(answer, "", 0, True)), 0, 1
    if answer.shape.end_mark:
        yield b"data: [DONE]\n\n", 0, 0


def whole_sglang(answer: Answer) -> bytes:
    """The answer of /generate without stream."""
    return orjson.dumps(_sglang_state(answer, answer.text(), answer.output_tokens, True))


def _sglang_state(answer: Answer, text: str, done: int, last: bool) -> dict[str, Any]:
    finish: dict[str, Any] | None = None
    if last:
        finish = {"type": "length", "length": done}
        if answer.finish == "stop":
            finish = {"type": "stop", "matched": 2}
    meta: dict[str, Any] = {"id": f"r{answer.id}", "finish_reason": finish}
    if answer.shape.usage:
        meta |= {
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": done,
            "cached_tokens": answer.cached_tokens,
        }
    return {"text": text, "meta_info": meta}


def _sglang_error(_status: int, message: str) -> bytes:
    return orjson.dumps({"error": {"message": message}})


def _sglang_error_event(message: str) -> bytes:
    return b"data: " + _sglang_error(500, message) + b"\n\n"


# --- llama.cpp native --------------------------------------------------------------------------


def parse_llamacpp(body: dict[str, Any], _path_model: str | None) -> Ask:
    """The body of llama.cpp's /completion; n_predict -1 means "as long as the model likes"."""
    limit = None if body.get("n_predict") in (None, -1) else positive(body, "n_predict")
    ignore_eos = bool(body.get("ignore_eos"))
    return Ask(
        protocol="llamacpp",
        model=str(body.get("model") or ""),
        prompt=single_prompt(body.get("prompt"), "prompt"),
        max_tokens=limit,
        ignore_eos=ignore_eos,
        exact=ignore_eos,
        stream=bool(body.get("stream")),
        stop=stop_strings(body.get("stop")),
        options={"token_ids": bool(body.get("return_tokens"))},
    )


def stream_llamacpp(answer: Answer) -> Script:
    """Events of /completion: the last one has no text, stop:true and the counts."""
    ids = answer.ask.options.get("token_ids")
    for text, count, done, _ in answer.groups():
        tokens = [answer.token_id(i) for i in range(done - count, done)] if ids else []
        event: dict[str, Any] = {"index": 0, "content": text, "tokens": tokens, "stop": False}
        event |= {"id_slot": 0}
        if answer.shape.usage_each:
            event |= {"tokens_predicted": done, "tokens_evaluated": answer.prompt_tokens}
        yield _sse(event), count, count
    yield _sse(_llamacpp_final(answer, "")), 0, 0 if answer.output_tokens else 1


def whole_llamacpp(answer: Answer) -> bytes:
    """The answer of /completion without stream."""
    return orjson.dumps(_llamacpp_final(answer, answer.text()))


def _llamacpp_final(answer: Answer, content: str) -> dict[str, Any]:
    final: dict[str, Any] = {
        "index": 0,
        "content": content,
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": answer.ask.model,
        "has_new_line": False,
        "truncated": False,
        "stop_type": "limit" if answer.finish == "length" else "eos",
        "stopping_word": "",
    }
    if answer.shape.usage:
        final |= {
            "tokens_predicted": answer.output_tokens,
            "tokens_evaluated": answer.prompt_tokens,
            "tokens_cached": answer.prompt_tokens + answer.output_tokens - 1,
            "timings": {
                "prompt_n": answer.prompt_tokens - answer.cached_tokens,
                "predicted_n": answer.output_tokens,
            },
        }
    return final


def _llamacpp_error(status: int, message: str) -> bytes:
    kind = {400: "invalid_request_error", 503: "unavailable_error"}.get(status, "server_error")
    return orjson.dumps({"error": {"code": status, "message": message, "type": kind}})


def _llamacpp_error_event(message: str) -> bytes:
    return b"data: " + _llamacpp_error(500, message) + b"\n\n"


# --- DeepSpeed-MII -----------------------------------------------------------------------------


def parse_mii(body: dict[str, Any], path_model: str | None) -> Ask:
    """The body of POST /mii/NAME: no streams."""
    prompt = single_prompt(body.get("prompts"), "prompts")
    if not isinstance(prompt, str):
        raise RequestError(400, "prompts: a text is needed.")
    minimum = body.get("min_new_tokens") or 0
    limit = positive(body, "max_new_tokens")
    ignore_eos = bool(body.get("ignore_eos"))
    return Ask(
        protocol="mii",
        model=path_model or "",
        prompt=prompt,
        max_tokens=limit or positive(body, "max_length") or 1024,
        min_tokens=minimum,
        ignore_eos=ignore_eos,
        exact=ignore_eos or minimum == limit,
        stop=stop_strings(body.get("stop")),
    )


def whole_mii(answer: Answer) -> bytes:
    """The answer of POST /mii/NAME: a list with one generation a prompt."""
    return orjson.dumps(
        [
            {
                "generated_text": answer.text(),
                "prompt_length": answer.prompt_tokens,
                "generated_length": answer.output_tokens,
                "finish_reason": answer.finish,
            }
        ]
    )


TGI = Protocol("tgi", parse_tgi, stream_tgi, whole_tgi, _tgi_error, _tgi_error_event)
TRITON = Protocol(
    "triton", parse_triton, stream_triton, whole_triton, _triton_error, _triton_error_event
)
SGLANG = Protocol(
    "sglang",
    parse_sglang,
    stream_sglang,
    whole_sglang,
    _sglang_error,
    _sglang_error_event,
    b"data: [DONE]\n\n",
)
LLAMACPP = Protocol(
    "llamacpp",
    parse_llamacpp,
    stream_llamacpp,
    whole_llamacpp,
    _llamacpp_error,
    _llamacpp_error_event,
)
MII = Protocol("mii", parse_mii, None, whole_mii, _triton_error, _triton_error_event)
