"""Triton's generate extension: POST /v2/models/M/generate_stream, tensors by name in and out.

The names are the model's: TensorRT-LLM's ensemble has text_input, max_tokens and text_output,
FasterTransformer's has others, so all of them are options. There is no end mark: a clean end of
the body is the end of the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from tokenswarm.backends import openai_common as common
from tokenswarm.backends.base import Protocol
from tokenswarm.backends.cumulative import Growth
from tokenswarm.backends.options import Option
from tokenswarm.records import Prompt, TokenEvent, Usage

OPTIONS = {
    "prompt_field": Option(str, "text_input", "input tensor of the prompt"),
    "max_tokens_field": Option(str, "max_tokens", "input tensor of the output length"),
    "min_tokens_field": Option(str, None, "input tensor of the least output length, min_length"),
    "text_field": Option(str, "text_output", "output tensor of the generated text"),
    "prompt_tokens_field": Option(str, None, "output tensor with the number of prompt tokens"),
    "output_tokens_field": Option(str, None, "output tensor with the number of tokens so far"),
    "finish_field": Option(str, None, "output tensor of the finish reason"),
    "end_id": Option(int, None, "token that ends an answer; -1 lets it go on to its full length"),
    "cumulative": Option(bool, False, "each event repeats the text so far (accumulate_tokens)"),
}


class Triton(Protocol):
    """The generate extension for one workload; see backends.Backend."""

    known = OPTIONS
    health_path = "/v2/health/ready"
    closes = True

    def __init__(self, workload: Any) -> None:
        self.models_path = f"/v2/models/{quote(workload.backend.model, safe='')}"
        self.generate_path = f"{self.models_path}/generate_stream"
        super().__init__(workload)
        chosen = self.options
        self.stateless = not chosen["cumulative"]
        exact = workload.prompts.exact_output
        if exact and chosen["end_id"] is None and chosen["min_tokens_field"] is None:
            self.notes = (
                "backend.kind: triton: the output length is asked for, not forced, so answers may "
                "end early and count as short_output: set backend.options.end_id: -1 or "
                "min_tokens_field: min_length where the model has it, or prompts.exact_output: "
                "false",
            )

    def body(self, prompt: Prompt, length: int | None) -> dict[str, Any]:
        """What is asked; extra_body merges into it."""
        asked = self.text_or_ids(prompt)
        chosen = self.options
        body: dict[str, Any] = {chosen["prompt_field"]: asked, "stream": True}
        if length is not None:
            body[chosen["max_tokens_field"]] = length
            if self.workload.prompts.exact_output and chosen["min_tokens_field"]:
                body[chosen["min_tokens_field"]] = length
        if chosen["end_id"] is not None:
            body["end_id"] = chosen["end_id"]
        return common.merge(body, self.workload.backend.extra_body)

    def reader(self) -> Callable[[bytes, str], TokenEvent]:
        """A reader of one answer; it keeps the text so far where the model repeats it."""
        chosen = self.options
        text_field, finish_field = chosen["text_field"], chosen["finish_field"]
        counts = chosen["prompt_tokens_field"], chosen["output_tokens_field"]
        growth = Growth("backend.options.cumulative") if chosen["cumulative"] else None

        def event_of(chunk: dict[str, Any]) -> TokenEvent:
            text = _first(chunk.get(text_field))
            if text is None:
                return TokenEvent(usage=_usage(chunk, *counts))
            if not isinstance(text, str):
                raise ValueError(f"{text_field} is no text")
            event = TokenEvent(
                text=text if growth is None else growth.new(text), usage=_usage(chunk, *counts)
            )
            if finish_field is not None and (reason := _first(chunk.get(finish_field))):
                event.finish_reason = str(reason)
            return event

        return common.reads(event_of)


def _first(value: Any) -> Any:
    """A tensor's element: tensors of more than one dimension come as lists of lists."""
    while isinstance(value, list):
        value = value[0] if value else None
    return value


def _usage(
    chunk: dict[str, Any], prompt_field: str | None, output_field: str | None
) -> Usage | None:
    prompt = common.count(_first(chunk.get(prompt_field))) if prompt_field else None
    output = common.count(_first(chunk.get(output_field))) if output_field else None
    return Usage(prompt, output) if prompt is not None or output is not None else None
