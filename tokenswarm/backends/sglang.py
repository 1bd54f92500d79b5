"""SGLang's own protocol: POST /generate, `text` and `sampling_params` in, cumulative text out.

Every event repeats the text so far and the counts so far (`meta_info`); the end is a finish
reason, an object, and then [DONE]. A finish reason of type "abort" is a failure although the
stream ends well. `--stream-output` (newer: `--incremental-streaming-output`) makes servers send
only new text: options.cumulative false.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenswarm.backends import openai_common as common
from tokenswarm.backends.base import Protocol
from tokenswarm.backends.cumulative import Growth
from tokenswarm.backends.options import Option
from tokenswarm.records import BadInput, Prompt, TokenEvent, Usage

OPTIONS = {"cumulative": Option(bool, True, "each event repeats the text so far")}


class SGLang(Protocol):
    """The /generate protocol for one workload; see backends.Backend."""

    generate_path = "/generate"
    known = OPTIONS
    stateless = False

    def body(self, prompt: Prompt, length: int | None) -> dict[str, Any]:
        """What is asked; extra_body merges into it."""
        sampling: dict[str, Any] = {}
        if length is not None:
            sampling["max_new_tokens"] = length
            if self.workload.prompts.exact_output:
                sampling["min_new_tokens"] = length
                sampling["ignore_eos"] = True
        common.merge(sampling, self.workload.backend.extra_body)
        body: dict[str, Any] = {"sampling_params": sampling, "stream": True}
        if prompt.token_ids is not None:
            body["input_ids"] = prompt.token_ids
        elif prompt.text is not None:
            body["text"] = prompt.text
        else:
            raise BadInput(
                "backend.kind: 'sglang' sends one text, but this prompt source makes messages: "
                "use backend.kind: openai-chat"
            )
        return body

    def reader(self) -> Callable[[bytes, str], TokenEvent]:
        """A reader of one answer, which knows its text and token count so far."""
        growth = Growth("backend.options.cumulative") if self.options["cumulative"] else None
        counted = 0

        def event_of(chunk: dict[str, Any]) -> TokenEvent:
            nonlocal counted
            event = TokenEvent()
            text = chunk.get("text")
            if isinstance(text, str):
                event.text = text if growth is None else growth.new(text)
            meta = chunk.get("meta_info")
            if isinstance(meta, dict):
                event.usage = usage = Usage(
                    common.count(meta.get("prompt_tokens")),
                    common.count(meta.get("completion_tokens")),
                    common.count(meta.get("cached_tokens")),
                )
                if usage.output_tokens is not None:
                    event.tokens = max(0, usage.output_tokens - counted) or None
                    counted = usage.output_tokens
                _finish(event, meta.get("finish_reason"))
            return event

        return common.reads(event_of)


def _finish(event: TokenEvent, reason: Any) -> None:
    """The finish reason: an object with a type at newer servers, a word at older ones."""
    if isinstance(reason, dict):
        event.finish_reason = str(reason.get("type") or "") or None
        if event.finish_reason == "abort":
            event.error = common.error_text(reason)
    elif reason:
        event.finish_reason = str(reason)
