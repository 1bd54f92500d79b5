"""What the two OpenAI protocols share: request fields, usage, errors, the end mark.

The engines' own protocols use its general parts: merging bodies, reading objects, counts, errors.

Server quirks seen in practice, each with its rule: an `error` member of null is no error; a
string is one; objects without choices and without error (pings) mean nothing; usage may come in
its own chunk, in the finish chunk, or in every chunk (the last one counts, and reasoning tokens
are already inside completion_tokens).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from tokenswarm.backends.base import Protocol
from tokenswarm.backends.options import Option
from tokenswarm.records import Prompt, Request, TokenEvent, Usage

DONE = b"[DONE]"
OPTIONS = {
    "max_tokens_field": Option(str, "max_tokens", "name of the limit, e.g. max_completion_tokens"),
}


class OpenAI(Protocol):
    """What completions and chat have in common; see backends.Backend."""

    known = OPTIONS

    def probe(self, prompt: Prompt) -> Request:
        """The same request for exactly one output token, whatever extra_body says."""
        body = one_token(self.body(prompt, prompt.output_tokens), self.workload)
        return Request(self.path, orjson.dumps(body))


def fields(workload: Any, length: int | None) -> dict[str, Any]:
    """Request members that completions and chat have in common."""
    backend, prompts = workload.backend, workload.prompts
    body: dict[str, Any] = {"model": backend.model, "stream": True}
    if backend.include_usage:
        body["stream_options"] = {"include_usage": True}
    if length is not None:
        body[backend.options.get("max_tokens_field", "max_tokens")] = length
        if prompts.exact_output:
            body["min_tokens"] = length
            body["ignore_eos"] = True
    return body


def merge(body: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """extra laid over body, objects inside objects; a null in extra removes the member."""
    for key, value in extra.items():
        if value is None:
            body.pop(key, None)
        elif isinstance(value, dict) and isinstance(body.get(key), dict):
            merge(body[key], value)
        else:
            body[key] = value
    return body


def one_token(body: dict[str, Any], workload: Any) -> dict[str, Any]:
    """The body of the probe: the same request for exactly one output token."""
    body[workload.backend.options.get("max_tokens_field", "max_tokens")] = 1
    if "min_tokens" in body:
        body["min_tokens"] = 1
    return body


def usage_of(chunk: dict[str, Any]) -> Usage | None:
    """The usage member, if it is one; counts that are not whole numbers are not counts."""
    usage = chunk.get("usage")
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(
        count(usage.get("prompt_tokens")), count(usage.get("completion_tokens")), count(cached)
    )


def count(value: Any) -> int | None:
    """A count that a server gave; None for anything that is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def reads(of_chunk: Callable[[dict[str, Any]], TokenEvent]) -> Callable[[bytes, str], TokenEvent]:
    """A reader of events that are JSON objects; end marks and errors it knows by itself.

    of_chunk gives what any other object means; see backends.Backend.reader.
    """

    def parse(data: bytes, name: str) -> TokenEvent:
        if data.strip() == DONE:
            return TokenEvent(end=True)
        chunk = load_chunk(data)
        return failed(chunk, name) or of_chunk(chunk)

    return parse


def load_chunk(data: bytes) -> dict[str, Any]:
    """One chunk as an object. Raises ValueError for anything else."""
    chunk = orjson.loads(data)
    if not isinstance(chunk, dict):
        raise ValueError(f"expected a JSON object, got {data[:80].decode('utf-8', 'replace')!r}")
    return chunk


def error_text(value: Any) -> str:
    """The message of an error member, whatever its shape."""
    if isinstance(value, dict):
        for key in ("message", "detail", "error", "msg"):
            if value.get(key):
                return str(value[key])
        return orjson.dumps(value).decode()
    return str(value)


def failed(chunk: dict[str, Any], name: str) -> TokenEvent | None:
    """A TokenEvent that carries the chunk's error; None when it carries none."""
    error = chunk.get("error")
    if error:
        return TokenEvent(error=error_text(error), usage=usage_of(chunk))
    if name == "error":
        return TokenEvent(error=error_text(chunk) or "error event")
    return None


def text_of(value: Any) -> str:
    """A text member that may be missing, null or, at some gateways, a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(p.get("text") or "" for p in value if isinstance(p, dict))
    return ""


def token_count(choice: dict[str, Any]) -> int | None:
    """How many tokens a choice carries, where token ids or logprobs say so."""
    ids = choice.get("token_ids")
    if isinstance(ids, list) and ids:
        return len(ids)
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, dict):
        for key in ("content", "tokens"):
            if isinstance(logprobs.get(key), list) and logprobs[key]:
                return len(logprobs[key])
    return None
