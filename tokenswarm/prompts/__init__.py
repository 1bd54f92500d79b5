"""Prompts by number: the table of sources, and the way to open one.

Knows the names of sources; knows nothing about how they work. The subtle rule: nothing is
loaded at import; a source's module, its data and the tokenizer are loaded by open_source.

A new source is one module with an opener and one line in `PROMPTS`.
"""

from __future__ import annotations

import importlib
from typing import Any

from tokenswarm import tokens
from tokenswarm.prompts.source import PromptSource, check_options
from tokenswarm.records import BadInput

__all__ = ["PROMPTS", "WITHOUT_TOKENIZER", "PromptSource", "open_source"]

# Name -> (module, opener(workload, tokenizer) -> PromptSource).
PROMPTS: dict[str, tuple[str, str]] = {
    "sharegpt": ("tokenswarm.prompts.conversational", "open_sharegpt"),
    "sharegpt-questions": ("tokenswarm.prompts.conversational", "open_questions"),
    "conversations": ("tokenswarm.prompts.sessions", "open_conversations"),
    "trace": ("tokenswarm.prompts.trace", "open_trace"),
    "jsonl": ("tokenswarm.prompts.jsonl", "open_jsonl"),
    "random": ("tokenswarm.prompts.noise", "open_random"),
    "text": ("tokenswarm.prompts.text", "open_text"),
}

# Sources that work without a tokenizer: lengths are then the server's to count.
WITHOUT_TOKENIZER = frozenset({"jsonl"})


def open_source(workload: Any, *, tokenizer: tokens.Tokenizer | None = None) -> PromptSource:
    """Open the source that a workload asks for, loading its tokenizer unless one is given.

    The first time this reads the data set and indexes it (seconds); later it maps what is in the
    cache. Raises BadInput for data or a tokenizer that cannot be used.
    """
    name = workload.prompts.source
    if name not in PROMPTS:
        raise BadInput(
            f"prompts.source: unknown source {name!r}. Expected one of: {', '.join(PROMPTS)}."
        )
    check_options(workload)
    if tokenizer is None and workload.tokenizer is not None:
        tokenizer = tokens.load(workload.tokenizer)
    if tokenizer is None and name not in WITHOUT_TOKENIZER:
        raise BadInput(
            f"tokenizer: is not set, and prompts.source {name!r} needs it to cut prompts to"
            " length. Name the model's tokenizer (source: hf, path: folder or hub id; or source:"
            " tiktoken, path: cl100k_base)."
        )
    if tokenizer is not None:
        extra = getattr(workload.backend, "extra_body", None) or {}
        tokenizer = tokens.with_template_kwargs(tokenizer, extra.get("chat_template_kwargs"))
    module, opener = PROMPTS[name]
    source: PromptSource = getattr(importlib.import_module(module), opener)(workload, tokenizer)
    return source
