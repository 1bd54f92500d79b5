"""DeepSpeed-MII's REST gateway: POST /mii/NAME, `prompts` in, one document out, no stream.

The answer is measured as one token event: TTFT is the time of the whole answer, and ITL and TPOT
are not defined. The gateway encodes its JSON twice (a JSON text that holds JSON); a gateway that
was mended is read as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import orjson

from tokenswarm.backends import openai_common as common
from tokenswarm.backends.base import Protocol
from tokenswarm.records import BadInput, Prompt, TokenEvent, Usage


class Mii(Protocol):
    """The REST gateway for one workload; backend.model is the deployment's name."""

    health_path = "/"
    models_path = "/"
    streams = False
    closes = True
    notes: tuple[str, ...] = (
        "backend.kind: mii: the REST gateway does not stream, so an answer is one event: TTFT is "
        "the time of the whole answer, ITL and TPOT are not defined; its OpenAI server streams "
        "(backend.kind: openai-completions)",
    )

    def __init__(self, workload: Any) -> None:
        self.generate_path = f"/mii/{quote(workload.backend.model, safe='')}"
        super().__init__(workload)

    def body(self, prompt: Prompt, length: int | None) -> dict[str, Any]:
        """What is asked; extra_body merges into it."""
        if prompt.text is None:
            raise BadInput(
                "backend.kind: 'mii' sends one text, but this prompt source makes messages or "
                "token ids: use its OpenAI server with backend.kind: openai-chat"
            )
        body: dict[str, Any] = {"prompts": [prompt.text]}
        if length is not None:
            body["max_new_tokens"] = length
            if self.workload.prompts.exact_output:
                body["min_new_tokens"] = length
                body["ignore_eos"] = True
        return common.merge(body, self.workload.backend.extra_body)

    def reader(self) -> Callable[[bytes, str], TokenEvent]:
        """One document, so no state."""
        return parse


def parse(data: bytes, name: str) -> TokenEvent:
    """The whole answer: a list with one generation for the one prompt."""
    document: Any = orjson.loads(data)
    if isinstance(document, str):
        document = orjson.loads(document)
    if isinstance(document, dict) and (error := common.failed(document, name)) is not None:
        return error
    answer = document[0] if isinstance(document, list) and document else document
    if not isinstance(answer, dict) or not isinstance(answer.get("generated_text"), str):
        raise ValueError("no generated_text in the answer")
    reason = answer.get("finish_reason")
    usage = Usage(
        common.count(answer.get("prompt_length")), common.count(answer.get("generated_length"))
    )
    return TokenEvent(
        text=answer["generated_text"],
        tokens=usage.output_tokens,
        usage=usage,
        finish_reason=str(reason) if reason else None,
        end=True,
    )
