"""Prompts of wanted lengths cut from a corpus, whatever the corpus is.

Knows corpus, index, salts and the workload's `prompts` section. The subtle rule: the passage a
prompt starts at follows from the seed and its number alone, the salt from the nonce as well, so
another nonce gives other salts before the same text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenswarm.prompts import exact, index, salt
from tokenswarm.prompts.corpus import RULES as CORPUS_RULES
from tokenswarm.prompts.corpus import Corpus
from tokenswarm.prompts.prefix import Prefixes, context_of, popularity
from tokenswarm.prompts.source import Frame, Lengths, frame_of, option, recount, to_prompt
from tokenswarm.records import Prompt
from tokenswarm.tokens import Form, Tokenizer, digest_of

_AT_ONCE = 256  # searches that share a call of the tokenizer: bounds the memory of a batch
_PROBE_TOKENS = 40
_LEAST_BYTES = 1 << 17
_BYTES_PER_TOKEN = 16  # twice what a token takes, and text for two prompts
_SALTS_TRIED = 24
_MOST_TOKENS = 1 << 20  # longest prompt that text is made ready for
FROM_DATASET = "from-dataset"

Start = Callable[[int, int | None], tuple[int | None, int | None]]
"""(request, wanted tokens) -> (passage to start at, offset not to go beyond); None: any."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is known of a request before its text is searched."""

    number: int
    want: int | None
    output: int | None
    frame: Frame
    head: str
    search: exact.Counts


class Synthesis:
    """A `PromptSource` over a corpus.

    lengths and start replace what the workload draws and the choice by hash; salt_from is the
    shortest length that gets a salt.
    """

    distinct: int | None = None

    def __init__(
        self,
        workload: Any,
        tokenizer: Tokenizer,
        corpus: Corpus,
        warnings: list[str],
        *,
        lengths: Lengths | None = None,
        start: Start | None = None,
    ) -> None:
        prompts = workload.prompts
        self.tokenizer = tokenizer
        self.corpus = corpus
        self.index = index.open_index(corpus, tokenizer, warnings.append)
        self.frame: Frame = frame_of(workload, tokenizer)
        self.seed: int = workload.seed
        self.salter = salt.Salter(self.index.words, workload.seed, workload.nonce)
        self.salted: bool = option(workload, "salt", True)
        self.salt_from = 0
        self.as_ids: bool = prompts.as_token_ids
        self.lengths: Lengths = lengths or (lambda i: prompts.draw(workload.seed, i))
        self.start: Start = start or (lambda i, want: (None, None))
        self.recorded: bool = getattr(prompts, "output_tokens", None) == FROM_DATASET
        self.cutter = make_cutter(workload, tokenizer, self.frame, corpus, self.index)
        self.context = context_of(self.frame, "", self.cutter.lengths)
        exact.calibrate(self.cutter, self.context)
        self.prefixes: Prefixes | None = None
        if prompts.shared_prefix_tokens:
            self.prefixes = self._open_prefixes(workload)
            self.salter = salt.Salter(self.prefixes.members, workload.seed, workload.nonce)
        elif self.salted:
            some = [self.salter.probe(k) for k in range(_SALTS_TRIED)]
            self.context = exact.with_base(self.cutter, self.context, some)
        template = tokenizer.template.digest if tokenizer.template else ""
        self.digest = digest_of(
            *(CORPUS_RULES, index.RULES, salt.RULES, exact.RULES),
            *(corpus.digest, corpus.replies_digest, tokenizer.digest, template, self.index.digest),
        )
        self.warnings = (*corpus.warnings, *warnings)

    def _open_prefixes(self, workload: Any) -> Prefixes:
        prompts = workload.prompts
        return Prefixes(
            self.cutter,
            self.frame,
            self.salter,
            tokens=prompts.shared_prefix_tokens,
            weights=popularity(prompts.prefix_popularity, prompts.prefix_groups),
            place=option(workload, "prefix_in", "user"),
            seed=self.seed,
        )

    def prompt(self, index: int) -> Prompt:
        """Prompt of a request."""
        return self.prompts([index])[0]

    def prompts(self, indices: Sequence[int]) -> list[Prompt]:
        """Prompts of requests, in the order of the indices."""
        made: list[Prompt] = []
        for at in range(0, len(indices), _AT_ONCE):
            plans = [self._plan(i) for i in indices[at : at + _AT_ONCE]]
            cuts = exact.run((plan.search for plan in plans), self.cutter.lengths)
            for plan, cut in zip(plans, cuts, strict=True):
                output = self._reply_tokens(cut.start) if self.recorded else plan.output
                text = plan.head + cut.text
                made.append(
                    to_prompt(plan.frame, plan.number, text, cut.tokens, output, self.as_ids)
                )
        return made

    def _plan(self, number: int) -> _Plan:
        want, output = self.lengths(number)
        frame, head, context = self.frame, "", self.context
        if self.prefixes is not None:
            group = self.prefixes.group_of(number)
            frame, head, context = group.frame, group.head, group.context
        words = self.salt_of(number, want)
        passage, last = self.start(number, want)
        key = f"{self.seed}:{number}"
        if want is None:
            if passage is None:
                passage = salt.draw(f"{key}:0", len(self.corpus.starts))
            search = self.cutter.whole(passage, words, context)
        else:
            search = self.cutter.search(want, words, context, key, passage, last)
        return _Plan(number, want, output, frame, head, search)

    def probe_prompt(self) -> Prompt:
        """A short prompt with a salt that no request has."""
        want = _PROBE_TOKENS + self.cutter.lengths([self.context.wrap("")])[0]
        search = self.cutter.search(want, self.salter.probe(0), self.context, f"{self.seed}:probe")
        (cut,) = exact.run([search], self.cutter.lengths)
        return to_prompt(self.frame, -1, cut.text, want, 1, self.as_ids)

    def count(self, prompt: Prompt) -> int:
        """Count a prompt anew, in full."""
        return recount(self.tokenizer, prompt, self.frame.tools)

    def salt_of(self, number: int, want: int | None) -> str:
        """Salt of a request; empty when there is to be none."""
        if not self.salted or (want is not None and want < self.salt_from):
            return ""
        return self.salter.request(number)

    def floor(self, words: str) -> int:
        """The shortest length that a prompt with this salt can have."""
        return self.cutter.lengths([self.context.wrap(words.rstrip())])[0]

    def _reply_tokens(self, start: int) -> int:
        """Length of the answer recorded for the passage that a prompt starts with."""
        first = bisect_right(self.corpus.starts, start) - 1
        total = len(self.corpus.starts)
        for passage in range(first, first + total):  # the next answer, where there was none
            reply = self.corpus.reply(passage % total)
            if reply:
                return self.tokenizer.count_plain(reply)
        return 1


def make_cutter(
    workload: Any, tokenizer: Tokenizer, frame: Frame, corpus: Corpus, tokens: index.Index
) -> exact.Cutter:
    """A cutter that counts in the frame's form."""
    form: Form = frame.form
    return exact.Cutter(
        tokenizer.name,
        corpus,
        tokens,
        lambda texts: tokenizer.lengths(texts, form),
        splice=tokens.splice,
        verify_all=option(workload, "verify", "sampled") == "full",
    )


def least_bytes(workload: Any) -> int:
    """Bytes of text that the wanted lengths need at least, generously."""
    longest: int | None = workload.prompts.max_input_tokens
    return max(_LEAST_BYTES, min(longest or 0, _MOST_TOKENS) * _BYTES_PER_TOKEN)
