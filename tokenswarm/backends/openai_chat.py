"""OpenAI chat: POST /v1/chat/completions, messages in, a stream of `choices[0].delta` out.

A delta has up to three channels: the answer (`content`), reasoning (`reasoning_content`, or
`reasoning` at newer servers) and tool calls. The first token of any of them is the first token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenswarm.backends import openai_common as common
from tokenswarm.records import BadInput, Prompt, TokenEvent


class OpenAIChat(common.OpenAI):
    """The chat protocol for one workload; see backends.Backend."""

    generate_path = "/v1/chat/completions"

    def body(self, prompt: Prompt, length: int | None) -> dict[str, Any]:
        """Fields in common, and the prompt; extra_body merges into it."""
        messages = prompt.messages
        if messages is None:
            if prompt.text is None:
                raise BadInput(
                    "prompts.as_token_ids: a chat endpoint takes text only: use backend.kind: "
                    "openai-completions, or leave as_token_ids out"
                )
            messages = ({"role": "user", "content": prompt.text},)
        body = common.fields(self.workload, length)
        body["messages"] = messages
        kwargs = getattr(self.workload.tokenizer, "chat_template_kwargs", None)
        if kwargs:
            body["chat_template_kwargs"] = dict(kwargs)
        return common.merge(body, self.workload.backend.extra_body)

    def reader(self) -> Callable[[bytes, str], TokenEvent]:
        """Events carry no state from one to the next."""
        return common.reads(event_of)


def event_of(chunk: dict[str, Any]) -> TokenEvent:
    """One chat chunk."""
    event = TokenEvent(usage=common.usage_of(chunk))
    choices = chunk.get("choices")
    if choices and isinstance(choices, list) and isinstance(choices[0], dict):
        choice = choices[0]
        event.finish_reason = choice.get("finish_reason") or None
        delta = choice.get("delta")
        if isinstance(delta, dict):
            event.text = common.text_of(delta.get("content"))
            event.reasoning = common.text_of(
                delta.get("reasoning_content") or delta.get("reasoning")
            )
            event.tool = _tool_text(delta)
            event.tokens = common.token_count(choice)
    return event


def _tool_text(delta: dict[str, Any]) -> str:
    """Names and arguments of tool calls: generated tokens like any others."""
    calls = delta.get("tool_calls")
    if calls is None and isinstance(delta.get("function_call"), dict):
        calls = [{"function": delta["function_call"]}]
    if not isinstance(calls, list):
        return ""
    functions = [c["function"] for c in calls if isinstance(c, dict) and c.get("function")]
    return "".join(
        common.text_of(f.get("name")) + common.text_of(f.get("arguments"))
        for f in functions
        if isinstance(f, dict)
    )
