"""What the protocols have in common: where they are asked, how a request and the probe are made.

A protocol says its paths and what its body holds; a request is that body as JSON, and the probe
is the same for exactly one output token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import orjson

from tokenswarm.backends import options
from tokenswarm.backends.options import Option
from tokenswarm.records import BadInput, Prompt, Request


class Protocol(ABC):
    """One protocol for one workload; see backends.Backend.

    generate_path is what backend.path replaces. known are the keys of backend.options.
    """

    generate_path = ""
    health_path = "/health"
    models_path = "/v1/models"
    metrics_path = "/metrics"
    streams = True
    stateless = True
    closes = False
    lines = False
    notes: tuple[str, ...] = ()
    known: ClassVar[Mapping[str, Option]] = {}

    def __init__(self, workload: Any) -> None:
        self.workload = workload
        self.options = options.read(workload, self.known)
        self.path: str = workload.backend.path or self.generate_path

    def build(self, prompt: Prompt) -> Request:
        """The request for a prompt. Raises BadInput for a prompt it cannot carry."""
        return Request(self.path, orjson.dumps(self.body(prompt, prompt.output_tokens)))

    def probe(self, prompt: Prompt) -> Request:
        """The same for exactly one output token."""
        return Request(self.path, orjson.dumps(self.body(prompt, 1)))

    @abstractmethod
    def body(self, prompt: Prompt, length: int | None) -> dict[str, Any]:
        """What is asked: the prompt, for an answer of that many tokens (None: as it likes)."""

    def text_or_ids(self, prompt: Prompt) -> str | tuple[int, ...]:
        """The prompt of a protocol that takes either. Raises BadInput for messages."""
        asked = prompt.text if prompt.token_ids is None else prompt.token_ids
        if asked is None:
            raise BadInput(
                f"backend.kind: '{self.workload.backend.kind}' sends one text, but this prompt "
                "source makes messages: use backend.kind: openai-chat"
            )
        return asked
