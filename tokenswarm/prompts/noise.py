"""Random words of the tokenizer's vocabulary, as other tools send them, for comparison.

Knows the vocabulary. The subtle rule: the noise is an ordinary corpus, so that its prompts are
exact and unique by the same search as real text.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tokenswarm.prompts.corpus import Passage, open_corpus
from tokenswarm.prompts.synthesis import Synthesis, least_bytes
from tokenswarm.records import BadInput
from tokenswarm.tokens import Tokenizer, digest_of

_RULES = "noise-1"
_PASSAGE_WORDS = 64
_BYTES_PER_WORD = 6
_FEWEST_PASSAGES = 4096
_FEWEST_WORDS = 100


def open_random(workload: Any, tokenizer: Tokenizer) -> Synthesis:
    """Prompts of random one-token words."""
    warnings: list[str] = []
    passages = least_bytes(workload) // (_BYTES_PER_WORD * _PASSAGE_WORDS)
    passages = 1 << (max(_FEWEST_PASSAGES, passages) - 1).bit_length()
    corpus = open_corpus(
        digest_of(_RULES, tokenizer.digest, str(passages)),
        lambda: noise(tokenizer, passages),
        list,
        warn=warnings.append,
    )
    return Synthesis(workload, tokenizer, corpus, warnings)


def noise(tokenizer: Tokenizer, passages: int) -> Iterator[Passage]:
    """Passages of words drawn at random, the same each time."""
    words = tokenizer.codec.vocabulary()
    if len(words) < _FEWEST_WORDS:
        raise BadInput(
            f"prompts.source: random needs words in the tokenizer's vocabulary; {tokenizer.name}"
            f" has {len(words)}. Use another source."
        )
    draw = random.Random(0)
    for _ in range(passages):
        yield Passage(" ".join(draw.choices(words, k=_PASSAGE_WORDS)))
