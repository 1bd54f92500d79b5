"""Text Generation Inference: POST /generate_stream, `inputs` in, one event a token out.

The last event repeats the whole answer in `generated_text`, which is the end mark, and carries
`details` when they were asked for. There is no [DONE]. TGI has no word for "go on after the end
of sequence", so an exact length can be asked for but not forced: see notes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenswarm.backends import openai_common as common
from tokenswarm.backends.base import Protocol
from tokenswarm.records import BadInput, Prompt, TokenEvent, Usage


class Tgi(Protocol):
    """TGI's own protocol for one workload; see backends.Backend."""

    generate_path = "/generate_stream"
    models_path = "/info"

    def __init__(self, workload: Any) -> None:
        super().__init__(workload)
        if workload.prompts.exact_output:
            self.notes = (
                "backend.kind: tgi: TGI cannot be told to go on after the model's end of "
                "sequence; answers that end before prompts.output_tokens count as short_output "
                "(prompts.exact_output: false accepts them)",
            )

    def body(self, prompt: Prompt, length: int | None) -> dict[str, Any]:
        """What is asked; extra_body merges into it."""
        if prompt.text is None:
            raise BadInput(
                "backend.kind: 'tgi' sends one text, but this prompt source makes messages or "
                "token ids: use backend.kind: openai-chat, or leave prompts.as_token_ids out"
            )
        parameters: dict[str, Any] = {"details": self.workload.backend.include_usage}
        if length is not None:
            parameters["max_new_tokens"] = length
        common.merge(parameters, self.workload.backend.extra_body)
        return {"inputs": prompt.text, "parameters": parameters}

    def reader(self) -> Callable[[bytes, str], TokenEvent]:
        """Events carry no state from one to the next."""
        return common.reads(event_of)


def event_of(chunk: dict[str, Any]) -> TokenEvent:
    """One event. Special tokens, such as the end of sequence, are no text of the answer."""
    event = TokenEvent(end=chunk.get("generated_text") is not None)
    token = chunk.get("token")
    if isinstance(token, dict) and not token.get("special"):
        event.text = common.text_of(token.get("text"))
    details = chunk.get("details")
    if isinstance(details, dict):
        event.finish_reason = details.get("finish_reason") or None
        event.usage = Usage(
            common.count(details.get("input_length")), common.count(details.get("generated_tokens"))
        )
    return event
