"""OpenAI completions and chat completions, in the shapes that vLLM sends.

Knows nothing about timing beyond the steps of a piece. Subtle: vLLM sends the finish reason in
the same chunk as the last text, and the role-only chunk of a chat together with the first text;
`role_early` sends it with the headers, as some gateways do.
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

DONE = b"data: [DONE]\n\n"

_ERROR_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    413: "RequestEntityTooLarge",
    429: "rate_limit_error",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


def parse_completions(body: dict[str, Any], _path_model: str | None) -> Ask:
    """The body of POST /v1/completions."""
    ask = _common(body, "openai-completions", positive(body, "max_tokens") or 16)
    ask.prompt = single_prompt(body.get("prompt"), "prompt")
    return ask


def parse_chat(body: dict[str, Any], _path_model: str | None) -> Ask:
    """The body of POST /v1/chat/completions."""
    ask = _common(body, "openai-chat", positive(body, "max_completion_tokens", "max_tokens"))
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError(400, "messages: a non-empty list is needed.")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError(400, "messages: each one is an object with a role.")
    ask.prompt = [_plain_content(message) for message in messages]
    ask.tools = body.get("tools")
    return ask


def stream_completions(answer: Answer) -> Script:
    """Chunks of /v1/completions."""
    head = (
        b'data: {"id":"cmpl-%d","object":"text_completion","created":%d,"model":%b,"choices":[{'
        b'"index":0,"text":"'
    ) % (answer.id, answer.created, orjson.dumps(answer.ask.model))
    tail = b'","logprobs":null,"finish_reason":null,"stop_reason":null'
    last_tail = (
        b'","logprobs":null,"finish_reason":"%b","stop_reason":null' % answer.finish.encode()
    )
    yield from _chunks(answer, head, tail, last_tail, b'"text_completion"', b"cmpl")


def stream_chat(answer: Answer) -> Script:
    """Chunks of /v1/chat/completions: role first, then the text."""
    start = (
        b'data: {"id":"chatcmpl-%d","object":"chat.completion.chunk","created":%d,"model":%b,'
        b'"choices":[{"index":0,"delta":{'
    ) % (answer.id, answer.created, orjson.dumps(answer.ask.model))
    role = start + b'"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
    role += _usage_member(answer, 0) + b"}\n\n"
    yield role, 0, 0 if answer.shape.role_early else 1
    head = start + b'"content":"'
    tail = b'"},"logprobs":null,"finish_reason":null'
    last = b'"},"logprobs":null,"finish_reason":"%b","stop_reason":null' % answer.finish.encode()
    early = answer.shape.role_early
    yield from _chunks(
        answer, head, tail, last, b'"chat.completion.chunk"', b"chatcmpl", first_step=early
    )


def whole_completions(answer: Answer) -> bytes:
    """The answer of /v1/completions without stream."""
    choice = {"index": 0, "text": answer.text(), "logprobs": None}
    return _whole(answer, "cmpl", "text_completion", choice)


def whole_chat(answer: Answer) -> bytes:
    """The answer of /v1/chat/completions without stream."""
    message = {"role": "assistant", "content": answer.text()}
    choice = {"index": 0, "message": message, "logprobs": None}
    return _whole(answer, "chatcmpl", "chat.completion", choice)


def usage(answer: Answer, output_tokens: int) -> dict[str, Any]:
    """The usage object after output_tokens tokens."""
    figures: dict[str, Any] = {
        "prompt_tokens": answer.prompt_tokens,
        "total_tokens": answer.prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
    }
    if answer.cached_tokens:
        figures["prompt_tokens_details"] = {"cached_tokens": answer.cached_tokens}
    return figures


def error_body(status: int, message: str) -> bytes:
    """The body of an answer with an error status."""
    return orjson.dumps({"error": _error(status, message)})


def error_event(message: str) -> bytes:
    """An error in the middle of a stream."""
    return b"data: " + orjson.dumps({"error": _error(500, message)}) + b"\n\n"


def _error(status: int, message: str) -> dict[str, Any]:
    kind = _ERROR_TYPES.get(status, "BadRequestError")
    return {"message": message, "type": kind, "param": None, "code": status}


def _common(body: dict[str, Any], protocol: str, max_tokens: int | None) -> Ask:
    if body.get("n") not in (None, 1):
        raise RequestError(400, "n: this engine gives one answer a request.")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RequestError(400, "stream_options: an object is needed.")
    if options and not body.get("stream"):
        raise RequestError(400, "Stream options can only be defined when `stream=True`.")
    min_tokens = body.get("min_tokens") or 0
    if not isinstance(min_tokens, int) or min_tokens < 0:
        raise RequestError(400, f"min_tokens must be at least 0, got {min_tokens}.")
    if max_tokens is not None and min_tokens > max_tokens:
        raise RequestError(
            400, f"min_tokens must be at most max_tokens={max_tokens}, got {min_tokens}."
        )
    ignore_eos = bool(body.get("ignore_eos"))
    return Ask(
        protocol=protocol,
        model=str(body.get("model") or ""),
        prompt="",
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=ignore_eos,
        exact=ignore_eos or (max_tokens is not None and min_tokens == max_tokens),
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        usage_each=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
        stop=stop_strings(body.get("stop")),
        add_special_tokens=bool(body.get("add_special_tokens", True)),
        options={
            "token_ids": bool(body.get("return_token_ids")),
            "logprobs": body.get("logprobs") not in (None, False),
        },
    )


def _plain_content(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its content as one text: content may come as a list of text parts."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text", "") for part in content if isinstance(part, dict)]
        return {**message, "content": "".join(parts)}
    return message


def _chunks(
    answer: Answer,
    head: bytes,
    tail: bytes,
    last_tail: bytes,
    kind: bytes,
    prefix: bytes,
    *,
    first_step: bool = True,
) -> Script:
    """Token chunks, then usage and the end mark; first_step is False when the role took it."""
    shape, options = answer.shape, answer.ask.options
    plain = not (shape.usage_each or options["token_ids"] or options["logprobs"])
    close, last_close = tail + b"}]}\n\n", last_tail + b"}]}\n\n"
    taken = 0 if first_step else 1
    for text, count, done, last in answer.groups():
        if plain:
            payload = head + text.encode() + (last_close if last else close)
        else:
            end = _with_extras(answer, last_tail if last else tail, done - count, done)
            payload = head + text.encode() + end
        yield payload, count, count - taken
        taken = 0
    if not answer.output_tokens:
        yield head + last_close, 0, 1 - taken
    if shape.usage and answer.ask.include_usage:
        yield _usage_chunk(answer, kind, prefix), 0, 0
    if shape.end_mark:
        yield DONE, 0, 0


def _with_extras(answer: Answer, tail: bytes, start: int, end: int) -> bytes:
    """The end of a chunk with what was asked for beside the text of tokens start to end."""
    options = answer.ask.options
    if options["logprobs"]:
        tail = tail.replace(b"null", orjson.dumps(_logprobs(answer, start, end)), 1)
    if options["token_ids"]:
        tail += b',"token_ids":' + orjson.dumps([answer.token_id(i) for i in range(start, end)])
    return tail + b"}]" + _usage_member(answer, end) + b"}\n\n"


def _logprobs(answer: Answer, start: int, end: int) -> dict[str, Any]:
    tokens = [answer.word(i) for i in range(start, end)]
    if answer.ask.protocol == "openai-chat":
        entry: dict[str, Any] = {"logprob": -0.1, "bytes": None, "top_logprobs": []}
        return {"content": [{"token": token, **entry} for token in tokens]}
    figures = {"token_logprobs": [-0.1] * len(tokens), "top_logprobs": None, "text_offset": None}
    return {"tokens": tokens, **figures}


def _usage_member(answer: Answer, output_tokens: int) -> bytes:
    if not answer.shape.usage_each:
        return b""
    return b',"usage":' + orjson.dumps(usage(answer, output_tokens))


def _usage_chunk(answer: Answer, kind: bytes, prefix: bytes) -> bytes:
    return (
        b'data: {"id":"%b-%d","object":%b,"created":%d,"model":%b,"choices":[],"usage":%b}\n\n'
    ) % (
        prefix,
        answer.id,
        kind,
        answer.created,
        orjson.dumps(answer.ask.model),
        orjson.dumps(usage(answer, answer.output_tokens)),
    )


def _whole(answer: Answer, prefix: str, kind: str, choice: dict[str, Any]) -> bytes:
    choice |= {"finish_reason": answer.finish, "stop_reason": None}
    if answer.ask.options["logprobs"]:
        choice["logprobs"] = _logprobs(answer, 0, answer.output_tokens)
    if answer.ask.options["token_ids"]:
        choice["token_ids"] = [answer.token_id(i) for i in range(answer.output_tokens)]
    body = {
        "id": f"{prefix}-{answer.id}",
        "object": kind,
        "created": answer.created,
        "model": answer.ask.model,
        "choices": [choice],
    }
    if answer.shape.usage:
        body["usage"] = usage(answer, answer.output_tokens)
    return orjson.dumps(body)


COMPLETIONS = Protocol(
    "openai-completions",
    parse_completions,
    stream_completions,
    whole_completions,
    error_body,
    error_event,
    DONE,
)
CHAT = Protocol("openai-chat", parse_chat, stream_chat, whole_chat, error_body, error_event, DONE)
