"""A prefix cache as engines have it: chained hashes of full blocks of tokens, least recent out.

Knows nothing about requests. Subtle: a prompt that is wholly cached still has its last token
computed, so a hit never covers the whole prompt.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

UNLIMITED_BLOCKS = 1 << 17


def block_hashes(units: Sequence[int] | bytes, size: int, parent: int = 0) -> list[int]:
    """One hash for each full block of `size` units; each depends on all blocks before it."""
    hashes = []
    for start in range(0, len(units) - size + 1, size):
        parent = hash((parent, *units[start : start + size]))
        hashes.append(parent)
    return hashes


class PrefixCache:
    """Which blocks are held; queries and hits in tokens, as vLLM counts them."""

    def __init__(self, block_size: int, kv_tokens: int | None) -> None:
        self.block_size = block_size
        self.queries = 0
        self.hits = 0
        self._capacity = UNLIMITED_BLOCKS if kv_tokens is None else max(1, kv_tokens // block_size)
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def look_up(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        """How many leading tokens of a prompt are cached; counts the query."""
        blocks = 0
        usable = (prompt_tokens - 1) // self.block_size
        for block in hashes[:usable]:
            if block not in self._blocks:
                break
            self._blocks.move_to_end(block)
            blocks += 1
        cached = blocks * self.block_size
        self.queries += prompt_tokens
        self.hits += cached
        return cached

    def insert(self, hashes: Sequence[int]) -> None:
        """Hold these blocks; the least recently used ones make room."""
        for block in hashes:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
