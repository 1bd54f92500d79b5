"""A few words at the start of each prompt that no other prompt, and no other run, starts with.

Knows words and numbers. The subtle rule: the words come from a bijection of the request's
number, keyed by seed and nonce, so two requests can never draw the same, whichever worker sends
them; and all words cost the tokenizer the same number of tokens, so that another nonce leaves
the rest of the prompt as it is.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from tokenswarm.tokens import Form, Tokenizer

RULES = "salt-3"
_ENOUGH = 1 << 30  # different salts that a word list must give
_ROUNDS = 4


@lru_cache(maxsize=1)
def all_words() -> tuple[str, ...]:
    """The fixed list: 4,096 everyday words of four to nine letters."""
    text = resources.files("tokenswarm.prompts").joinpath("salt_words.txt").read_text("ascii")
    return tuple(text.split())


@dataclass(frozen=True, slots=True)
class Words:
    """The words of the list that may come first, and those that may follow."""

    first: tuple[str, ...]
    other: tuple[str, ...]

    @classmethod
    def of(cls, first: Sequence[int], other: Sequence[int]) -> Words:
        """From positions in the list."""
        words = all_words()
        return cls(tuple(words[i] for i in first), tuple(words[i] for i in other))


def even_words(tokenizer: Tokenizer) -> tuple[array[int], array[int]]:
    """Positions of words that cost one number of tokens: at the start, and after a blank.

    Each kind has its most frequent cost. When that leaves too few different salts, all words are
    taken: prompts are exact all the same.
    """
    words = all_words()
    at_start = tokenizer.lengths(words, Form.PLAIN)
    inside = tokenizer.lengths([f"word {word}" for word in words], Form.PLAIN)
    (usual, _), *_ = Counter(inside).most_common(1)
    other = array("I", (i for i, cost in enumerate(inside) if cost == usual))
    (usual, _), *_ = Counter(at_start[i] for i in other).most_common(1)
    first = array("I", (i for i in other if at_start[i] == usual))
    if len(first) * len(other) ** 2 < _ENOUGH:
        every = array("I", range(len(words)))
        return every, every
    return first, other


class Salter:
    """Gives every number its own salt."""

    def __init__(self, words: Words, seed: int, nonce: object) -> None:
        self.words = words
        self._key = hashlib.blake2b(f"{seed}\0{nonce}".encode(), digest_size=32).digest()
        self.size = len(words.first) * len(words.other) ** 2

    def request(self, number: int) -> str:
        """Salt of a request, ending in a blank: "general deferred calcium: "."""
        return self._salt(number)

    def group(self, number: int) -> str:
        """Salt of a shared prefix; no request has it."""
        return self._salt(self.size - 1 - number)

    def probe(self, number: int) -> str:
        """Salt of a request outside the plan."""
        return self._salt(self.size // 2 + number)

    def _salt(self, number: int) -> str:
        firsts, others = len(self.words.first), len(self.words.other)
        rest, residue = divmod(number % self.size, firsts)
        # Neighbours differ in their first word already: an engine's prefix tree splits at once.
        first = permute(residue, firsts, self._key + b"first")
        rest = permute(rest, others * others, self._key + first.to_bytes(4, "little"))
        second, third = divmod(rest, others)
        words = self.words
        return f"{words.first[first]} {words.other[second]} {words.other[third]}: "


def permute(value: int, size: int, key: bytes) -> int:
    """A bijection of range(size), fixed by key: a Feistel network, walked until in range."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = value >> half, value & mask
        for turn in range(_ROUNDS):
            mixed = hashlib.blake2b(
                turn.to_bytes(1, "little") + right.to_bytes(8, "little"),
                key=key[:64],
                digest_size=8,
            ).digest()
            left, right = right, left ^ (int.from_bytes(mixed, "little") & mask)
        value = (left << half) | right
        if value < size:
            return value


def draw(key: str, size: int) -> int:
    """A number below size that follows from key alone."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % size
