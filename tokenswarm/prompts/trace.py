"""Prompts with the lengths of recorded traffic; the text is cut from ShareGPT conversations.

Knows lengths; when requests are due is the business of arrivals, which reads the same file. The
subtle rule: row i of the trace is request i for both; after the last row the first follows.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from tokenswarm.prompts.conversational import sharegpt_corpus
from tokenswarm.prompts.source import option
from tokenswarm.prompts.synthesis import Synthesis
from tokenswarm.records import BadInput
from tokenswarm.tokens import Tokenizer
from tokenswarm.traces import read_trace


def open_trace(workload: Any, tokenizer: Tokenizer) -> Synthesis:
    """Prompts and answers as long as the trace says.

    prompts.options.corpus names the ShareGPT file to cut from, instead of the packaged one. A
    row too short for a salt goes without; one too short for the chat template is lengthened.
    """
    path = workload.prompts.path or getattr(workload.load, "trace", None)
    if not path:
        raise BadInput("prompts.path: is not set. Name the trace (CSV or JSON lines).")
    rows = [(inputs, outputs) for _, inputs, outputs in read_trace(Path(path).expanduser())]
    warnings: list[str] = []
    longest = max((n for n, _ in rows if n is not None), default=None)
    corpus = sharegpt_corpus(_with_corpus(workload, longest), warnings, with_replies=False)
    source = Synthesis(workload, tokenizer, corpus, warnings)
    bare = source.floor("") + 1
    source.salt_from = source.floor(source.salter.request(0)) + 2

    def lengths(request: int) -> tuple[int | None, int | None]:
        inputs, outputs = rows[request % len(rows)]
        drawn = workload.prompts.draw(workload.seed, request)
        inputs = drawn[0] if inputs is None else max(inputs, bare)
        return inputs, drawn[1] if outputs is None else outputs

    source.lengths = lengths
    source.warnings = (*source.warnings, *_short_rows(rows, bare, source.salt_from))
    return source


class _Prompts:
    """The prompts section with another file and longest length."""

    def __init__(self, prompts: Any, path: Any, longest: int | None) -> None:
        self._prompts = prompts
        self.path = path
        self.max_input_tokens = longest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._prompts, name)


def _with_corpus(workload: Any, longest: int | None) -> Any:
    changed = copy.copy(workload)
    prompts = workload.prompts
    longest = longest or prompts.max_input_tokens
    view = _Prompts(prompts, option(workload, "corpus", None), longest)
    object.__setattr__(changed, "prompts", view)
    return changed


def _short_rows(rows: list[tuple[int | None, int | None]], bare: int, salt_from: int) -> list[str]:
    lengthened = sum(n is not None and n < bare for n, _ in rows)
    unsalted = sum(n is not None and n < salt_from for n, _ in rows)
    notes = []
    if unsalted:
        notes.append(
            f"{unsalted:,} of {len(rows):,} rows are shorter than {salt_from} tokens: their"
            " prompts have no words that make them unique."
        )
    if lengthened:
        notes.append(
            f"{lengthened:,} of {len(rows):,} rows ask for less than the {bare} tokens that the"
            f" template and one word take: these prompts have {bare}."
        )
    return notes
