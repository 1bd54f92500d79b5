"""OpenAI completions: POST /v1/completions, text in, a stream of `choices[0].text` out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from tokenswarm.backends import openai_common as common
from tokenswarm.backends import options
from tokenswarm.records import BadInput, Prompt, Request, TokenEvent


class OpenAICompletions:
    """The completions protocol for one workload; see backends.Backend."""

    health_path = "/health"
    models_path = "/v1/models"
    metrics_path = "/metrics"
    streams = True
    stateless = True
    closes = False
    lines = False
    notes: tuple[str, ...] = ()

    def __init__(self, workload: Any) -> None:
        options.read(workload, common.OPTIONS)
        self.workload = workload
        self.path: str = workload.backend.path or "/v1/completions"

    def build(self, prompt: Prompt) -> Request:
        """A streaming request for the prompt's text or token ids."""
        return Request(self.path, orjson.dumps(self._body(prompt)))

    def probe(self, prompt: Prompt) -> Request:
        """The same for exactly one output token."""
        return Request(self.path, orjson.dumps(common.one_token(self._body(prompt), self.workload)))

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        asked: Any = prompt.text if prompt.token_ids is None else prompt.token_ids
        if asked is None:
            raise BadInput(
                "backend.kind: 'openai-completions' sends one text, but this prompt source makes "
                "messages: use backend.kind: openai-chat"
            )
        body = common.fields(self.workload, prompt)
        body["prompt"] = asked
        return common.merge(body, self.workload.backend.extra_body)

    def reader(self) -> Callable[[bytes, str], TokenEvent]:
        """Events carry no state from one to the next."""
        return parse


def parse(data: bytes, name: str) -> TokenEvent:
    """One completions chunk."""
    if data.strip() == common.DONE:
        return TokenEvent(end=True)
    chunk = common.load_chunk(data)
    if (error := common.failed(chunk, name)) is not None:
        return error
    event = TokenEvent(usage=common.usage_of(chunk))
    choices = chunk.get("choices")
    if choices and isinstance(choices, list) and isinstance(choices[0], dict):
        choice = choices[0]
        event.text = common.text_of(choice.get("text"))
        event.finish_reason = choice.get("finish_reason") or None
        event.tokens = common.token_count(choice)
    return event
