"""Where every token of the corpus starts, for one tokenizer: built once, mapped by everyone.

Knows the corpus and the tokenizer. The subtle rule: the corpus is tokenised in chunks that
overlap, and only the tokens away from a chunk's edges are kept, because text tokenises
differently at the ends of a string; counting by splicing (exact.py) is switched off when a
self-test over 400 spans finds a single difference.
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenswarm.prompts import cache, salt
from tokenswarm.prompts.corpus import Corpus
from tokenswarm.records import BadInput
from tokenswarm.tokens import Form, Tokenizer, all_cores

_log = logging.getLogger(__name__)
RULES = "index-3"
_CHUNK_BYTES = 1 << 15
_OVERLAP_BYTES = 512
_CHUNKS_AT_ONCE = 16
_PROGRESS_S = 2.0
_KEPT_CHARS = 128  # at each end of a spliced text, at least
_EDGE_CHARS = (256, 4096)  # that much further in a word edge is looked for; code has few
_SHORTEST_CHARS = 768  # of a text that is worth splicing
_SPANS = 400
_GUESS_ERROR = 0.1  # of a span's tokens; beyond it the starts are not offsets into this text
WORD_EDGE = re.compile(r"[^\W\d_] (?=[^\W\d_])")


@dataclass(frozen=True, slots=True)
class Index:
    """Token starts (offsets into the corpus), the first token of every passage, salt words.

    splice tells whether counts may be put together from parts (the self-test passed).
    """

    digest: str
    starts: memoryview[int]
    firsts: memoryview[int]
    words: salt.Words
    splice: bool

    def token_at(self, offset: int) -> int:
        """Number of the first token that starts at or behind an offset."""
        return bisect_left(self.starts, offset)


def open_index(corpus: Corpus, tokenizer: Tokenizer, warn: Callable[[str], None]) -> Index:
    """The index of a corpus for a tokenizer, from the cache or built now."""
    parts = (corpus.digest, tokenizer.digest, tokenizer.codec.version)
    name = f"index-{cache.key(RULES, salt.RULES, *parts)}"
    entry = cache.entry(name, lambda folder: _build(folder, corpus, tokenizer), warn)
    if not entry.facts["splice"]:
        _log.info("%s: prompts are counted in full (slower): parts do not add up", tokenizer.name)
    return Index(
        digest=entry.facts["digest"],
        starts=entry.numbers("starts"),
        firsts=entry.numbers("firsts"),
        words=salt.Words.of(entry.numbers("first_words"), entry.numbers("other_words")),
        splice=entry.facts["splice"],
    )


def _build(folder: Path, corpus: Corpus, tokenizer: Tokenizer) -> dict[str, Any]:
    _check_counts(tokenizer)
    digest = hashlib.sha256()
    with all_cores():
        starts = _starts(corpus, tokenizer)
        first_words, other_words = salt.even_words(tokenizer)
    firsts = array("I", (bisect_left(starts, at) for at in corpus.starts))
    parts = {
        "starts": starts,
        "firsts": firsts,
        "first_words": first_words,
        "other_words": other_words,
    }
    for name, numbers in parts.items():
        (folder / name).write_bytes(numbers.tobytes())
        digest.update(numbers.tobytes())
    splice = _self_test(corpus, tokenizer, starts)
    return {"digest": digest.hexdigest(), "splice": splice}


def _starts(corpus: Corpus, tokenizer: Tokenizer) -> array[int]:
    began = last = time.monotonic()
    size = len(corpus.text)
    starts = array("I")
    chunks = list(_chunks(corpus.text))
    for i in range(0, len(chunks), _CHUNKS_AT_ONCE):
        batch = chunks[i : i + _CHUNKS_AT_ONCE]
        texts, froms = [], []
        for low, high in batch:
            start = _character(corpus.text, max(0, low - _OVERLAP_BYTES))
            end = _character(corpus.text, min(size, high + _OVERLAP_BYTES))
            texts.append(corpus.cut(start, end))
            froms.append(start)
        for (low, high), start, found in zip(
            batch, froms, tokenizer.codec.starts(texts), strict=True
        ):
            kept = found[bisect_left(found, low - start) : bisect_left(found, high - start)]
            starts.extend(start + at for at in kept) if start else starts.extend(kept)
        now = time.monotonic()
        if now - last > _PROGRESS_S:
            last = now
            _log.info(
                "indexing the corpus for %s: %d %% after %.0f s; kept in the cache",
                tokenizer.name,
                100 * batch[-1][1] // size,
                now - began,
            )
    return starts


def _chunks(text: memoryview) -> Iterator[tuple[int, int]]:
    """(start, end) of pieces that cover the text, cut at blanks where there are some."""
    at, size = 0, len(text)
    while at < size:
        end = min(size, at + _CHUNK_BYTES)
        if end < size:
            window = bytes(text[end - _OVERLAP_BYTES : end])
            blank = window.rfind(b" ")
            end = end - len(window) + blank if blank > 0 else _character(text, end)
        yield at, end
        at = end


def _character(text: memoryview, at: int) -> int:
    """Back to the first byte of the character at an offset."""
    while 0 < at < len(text) and text[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _check_counts(tokenizer: Tokenizer) -> None:
    text = "The same text must give the same number of tokens, every time it is counted. " * 20
    if len({tokenizer.count_plain(text) for _ in range(5)}) > 1:
        raise BadInput(
            f"tokenizer {tokenizer.name}: counts the same text differently each time (dropout or"
            " sampling is switched on), so no length can be exact. Use it without."
        )


def _self_test(corpus: Corpus, tokenizer: Tokenizer, starts: array[int]) -> bool:
    """Compare the index with real counts; False when splicing is not exact on every span."""
    draw = random.Random(1)
    plain, spliced, expected, guessed = [], [], [], []
    for _ in range(_SPANS):
        a = corpus.starts[draw.randrange(len(corpus.starts))]
        b = _character(corpus.text, min(len(corpus.text), a + draw.randrange(1500, 6000)))
        text = corpus.cut(a, b)
        parts = splice(text, a)
        guess = bisect_left(starts, b) - bisect_left(starts, a)
        plain.append(text)
        guessed.append(guess)
        if parts is not None:
            spliced.append(parts[0])
            expected.append((len(plain) - 1, parts[1], parts[2]))
    full = tokenizer.lengths(plain, Form.PLAIN)
    short = tokenizer.lengths(spliced, Form.PLAIN)
    wrong = sum(
        full[i] != count + bisect_left(starts, z) - bisect_left(starts, q)
        for (i, q, z), count in zip(expected, short, strict=True)
    )
    far = sum(abs(f - g) > 3 + _GUESS_ERROR * f for f, g in zip(full, guessed, strict=True))
    if far > _SPANS // 4:
        _log.warning(
            "%s: the places of its tokens are only roughly known (%d of %d spans); prompts stay"
            " exact but take longer to find",
            tokenizer.name,
            far,
            _SPANS,
        )
    return wrong == 0


def splice(text: str, start: int) -> tuple[str, int, int] | None:
    """Leave out the middle of a text between two word edges.

    text stands at offset `start` of the corpus. The result is (text without its middle, corpus
    offsets of the middle's start and end), or None when the text is short or has no word edge
    where one is needed. Both edges are blanks between letters, where no tokenizer joins.
    """
    if len(text) < _SHORTEST_CHARS:
        return None
    middle, last = len(text) // 2, len(text) - _KEPT_CHARS
    head = WORD_EDGE.search(text, _KEPT_CHARS, min(middle, _KEPT_CHARS + _EDGE_CHARS[-1]))
    if head is None:
        return None
    tails: list[re.Match[str]] = []
    for within in _EDGE_CHARS:
        tails = list(WORD_EDGE.finditer(text, max(middle, last - within), last))
        if tails:
            break
    else:
        return None
    q, z = head.start() + 1, tails[-1].start() + 1
    kept = text[:q] + text[z:]
    if text.isascii():
        return kept, start + q, start + z
    q_offset = start + len(text[:q].encode())
    return kept, q_offset, q_offset + len(text[q:z].encode())
