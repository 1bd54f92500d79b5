"""OpenAI completions: POST /v1/completions, text in, a stream of `choices[0].text` out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenswarm.backends import openai_common as common
from tokenswarm.records import Prompt, TokenEvent


class OpenAICompletions(common.OpenAI):
    """The completions protocol for one workload; see backends.Backend."""

    generate_path = "/v1/completions"

    def body(self, prompt: Prompt, length: int | None) -> dict[str, Any]:
        """Fields in common, and the prompt; extra_body merges into it."""
        asked = self.text_or_ids(prompt)
        body = common.fields(self.workload, length)
        body["prompt"] = asked
        return common.merge(body, self.workload.backend.extra_body)

    def reader(self) -> Callable[[bytes, str], TokenEvent]:
        """Events carry no state from one to the next."""
        return common.reads(event_of)


def event_of(chunk: dict[str, Any]) -> TokenEvent:
    """One completions chunk."""
    event = TokenEvent(usage=common.usage_of(chunk))
    choices = chunk.get("choices")
    if choices and isinstance(choices, list) and isinstance(choices[0], dict):
        choice = choices[0]
        event.text = common.text_of(choice.get("text"))
        event.finish_reason = choice.get("finish_reason") or None
        event.tokens = common.token_count(choice)
    return event
