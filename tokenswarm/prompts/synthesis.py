"""Prompts of wanted lengths cut from a corpus, whatever the corpus is.

Knows corpus, index, salts and the workload's `prompts` section. The subtle rule: the passage a
prompt starts at follows from the seed and its number alone, the salt from the nonce as well, so
another nonce gives other salts before the same text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tokenswarm.prompts import exact, index, salt
from tokenswarm.prompts.corpus import RULES as CORPUS_RULES
from tokenswarm.prompts.corpus import Corpus
from tokenswarm.prompts.source import Frame, Lengths, frame_of, option, recount, to_prompt
from tokenswarm.records import BadInput, Prompt
from tokenswarm.tokens import Tokenizer, digest_of

_AT_ONCE = 256  # searches that share a call of the tokenizer: bounds the memory of a batch
_PROBE_TOKENS = 40
DEFAULT_LEAST_BYTES = 1 << 17
BYTES_PER_TOKEN = 16  # twice what a token of the widest scripts takes, and twice the length


class Synthesis:
    """A `PromptSource` over a corpus."""

    distinct: int | None = None

    def __init__(
        self, workload: Any, tokenizer: Tokenizer, corpus: Corpus, warnings: list[str]
    ) -> None:
        self.tokenizer = tokenizer
        self.corpus = corpus
        self.index = index.open_index(corpus, tokenizer, warnings.append)
        self.frame: Frame = frame_of(workload, tokenizer)
        self.seed: int = workload.seed
        self.salter = salt.Salter(self.index.words, workload.seed, workload.nonce)
        self.salted: bool = option(workload, "salt", True)
        self.as_ids: bool = workload.prompts.as_token_ids
        self.lengths: Lengths = lambda i: workload.prompts.draw(workload.seed, i)
        self.cutter = exact.Cutter(
            tokenizer,
            corpus,
            self.index,
            self.frame.form,
            verify_all=option(workload, "verify", "sampled") == "full",
        )
        self.context = self.context_for("")
        exact.calibrate(self.cutter, self.context)
        template = tokenizer.template.digest if tokenizer.template else ""
        self.digest = digest_of(
            *(CORPUS_RULES, index.RULES, salt.RULES, exact.RULES),
            *(corpus.digest, tokenizer.digest, template, self.index.digest),
        )
        self.warnings = (*corpus.warnings, *warnings)

    def prompt(self, index: int) -> Prompt:
        """Prompt of a request."""
        return self.prompts([index])[0]

    def prompts(self, indices: Sequence[int]) -> list[Prompt]:
        """Prompts of requests, in the order of the indices."""
        made: list[Prompt] = []
        for at in range(0, len(indices), _AT_ONCE):
            part = indices[at : at + _AT_ONCE]
            lengths = [self.lengths(i) for i in part]
            texts = self.texts(part, [n for n, _ in lengths])
            made += [
                to_prompt(self.frame, i, text, (n, m), self.as_ids)
                for i, text, (n, m) in zip(part, texts, lengths, strict=True)
            ]
        return made

    def texts(self, indices: Sequence[int], wanted: Sequence[int | None]) -> list[str]:
        """The texts of these requests, without template and system prompt."""
        searches = [
            self.search(i, self.need(n), self.salt_of(i))
            for i, n in zip(indices, wanted, strict=True)
        ]
        return [cut.text for cut in self.cutter.run(searches)]

    def search(self, number: int, want: int, words: str) -> exact.Counts:
        """The search for one request."""
        return self.cutter.search(want, words, self.context, f"{self.seed}:{number}")

    def probe_prompt(self) -> Prompt:
        """A short prompt with a salt that no request has."""
        want = _PROBE_TOKENS + self.cutter.lengths([self.context.wrap("")])[0]
        search = self.cutter.search(want, self.salter.probe(0), self.context, f"{self.seed}:probe")
        (cut,) = self.cutter.run([search])
        return to_prompt(self.frame, -1, cut.text, (want, 1), self.as_ids)

    def count(self, prompt: Prompt) -> int:
        """Count a prompt anew, in full."""
        return recount(self.tokenizer, prompt)

    def salt_of(self, number: int) -> str:
        """Salt of a request; empty when the workload wants none."""
        return self.salter.request(number) if self.salted else ""

    def need(self, want: int | None) -> int:
        """The wanted length, which this source cannot do without."""
        if want is None:
            raise BadInput(
                "prompts.input_tokens: is not set, and prompts cut from a corpus need a length."
                " Set a number or a distribution."
            )
        return want

    def context_for(self, head: str) -> exact.Context:
        """The surroundings of a text that comes after `head` in the user's message."""
        frame = self.frame
        if frame.before is None:
            return exact.plain_context(lambda text: frame.wrap(head + text))
        return exact.shortened(frame.before + head, frame.after, self.cutter.lengths)


def with_index(prompt: Prompt, index: int) -> Prompt:
    """The same prompt under another number."""
    return dataclasses.replace(prompt, index=index)


def least_bytes(workload: Any) -> int:
    """Bytes of text that the wanted lengths need at least, generously."""
    longest = getattr(workload.prompts, "max_input_tokens", None)
    if callable(longest):
        longest = longest()
    if not isinstance(longest, int):
        drawn = [workload.prompts.draw(workload.seed, i)[0] or 0 for i in range(1000)]
        longest = 2 * max(drawn)
    return max(DEFAULT_LEAST_BYTES, longest * BYTES_PER_TOKEN)
