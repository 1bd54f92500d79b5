"""llama.cpp's own protocol: POST /completion, `content` a token out, `stop: true` at the end.

PowerInfer's server is a fork of it and speaks the same, with an older way to say why it stopped.
The last event has no text and all counts; `tokens_evaluated` is the whole prompt, cached part
included. Token ids are asked for (`return_tokens`), so that an event with several counts so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenswarm.backends import openai_common as common
from tokenswarm.backends.base import Protocol
from tokenswarm.records import Prompt, TokenEvent, Usage

_OLD_REASONS = {"stopped_limit": "limit", "stopped_eos": "eos", "stopped_word": "word"}


class LlamaCpp(Protocol):
    """The /completion protocol for one workload; see backends.Backend."""

    generate_path = "/completion"

    def body(self, prompt: Prompt, length: int | None) -> dict[str, Any]:
        """What is asked; extra_body merges into it."""
        asked = self.text_or_ids(prompt)
        body: dict[str, Any] = {"prompt": asked, "stream": True, "return_tokens": True}
        if length is not None:
            body["n_predict"] = length
            body["ignore_eos"] = self.workload.prompts.exact_output
        return common.merge(body, self.workload.backend.extra_body)

    def reader(self) -> Callable[[bytes, str], TokenEvent]:
        """Events carry no state from one to the next."""
        return common.reads(event_of)


def event_of(chunk: dict[str, Any]) -> TokenEvent:
    """One event."""
    event = TokenEvent(text=common.text_of(chunk.get("content")))
    tokens = chunk.get("tokens")
    if isinstance(tokens, list) and tokens:
        event.tokens = len(tokens)
    if chunk.get("stop") is True:
        event.end = True
        event.finish_reason = _reason(chunk)
    predicted = common.count(chunk.get("tokens_predicted"))
    if predicted is not None:
        timings = chunk.get("timings")
        cached = timings.get("cache_n") if isinstance(timings, dict) else None
        event.usage = Usage(
            common.count(chunk.get("tokens_evaluated")), predicted, common.count(cached)
        )
    return event


def _reason(chunk: dict[str, Any]) -> str | None:
    """Why it stopped: a word at newer servers, one of several flags at older ones."""
    reason = chunk.get("stop_type")
    if reason and reason != "none":
        return str(reason)
    return next((word for flag, word in _OLD_REASONS.items() if chunk.get(flag) is True), None)
