"""Shared prefixes: the first P tokens are the same for all requests of a group, exactly P.

Knows how a group's text is found and which group a request belongs to. The subtle rule: how many
tokens two prompts share depends on what follows the shared text, so a prefix is counted by what
three continuations with different first words have in common, template included.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenswarm.prompts import exact
from tokenswarm.prompts.salt import Salter, Words, draw
from tokenswarm.prompts.source import Frame, chat_frame
from tokenswarm.records import BadInput
from tokenswarm.tokens import Form

_DRAW = 1 << 53


@dataclass(frozen=True, slots=True)
class Group:
    """A shared text: what a member's frame is, and what its text begins with."""

    frame: Frame
    head: str
    context: exact.Context


class Prefixes:
    """The groups of a workload, found when they are first needed.

    members are the salt words of the requests: no two of the first words begin with the same
    token, so members of a group part right behind what they share, while the words last.
    """

    def __init__(
        self,
        cutter: exact.Cutter,
        frame: Frame,
        salter: Salter,
        *,
        tokens: int,
        weights: Sequence[float],
        place: str,
        seed: int,
    ) -> None:
        if place == "system" and (frame.form is not Form.RENDERED or frame.messages):
            raise BadInput(
                "prompts.options.prefix_in: system needs a chat backend and no system_prompt."
            )
        self._cutter = cutter
        self._frame = frame
        self._salter = salter
        self._tokens = tokens
        self._place = place
        self._seed = seed
        self._sums = list(itertools.accumulate(weights))
        self.members = Words(self._apart(), salter.words.other)
        # Threads may find a group twice, but never differently: the first entry stays.
        self._found: dict[int, Group] = {}

    def group_of(self, request: int) -> Group:
        """The group that a request belongs to."""
        at = draw(f"{self._seed}:{request}:group", _DRAW) / _DRAW * self._sums[-1]
        number = min(bisect_left(self._sums, at), len(self._sums) - 1)
        group = self._found.get(number)
        return group if group is not None else self._found.setdefault(number, self._find(number))

    def _apart(self) -> tuple[str, ...]:
        frame, head = self._member("A text that all share")
        if frame.messages is not None:
            frame = chat_frame(frame.tokenizer, frame.messages, frame.tools)
        words = self._salter.words.first
        many = [
            frame.tokenizer.encode(frame.wrap(f"{head}{word} and more: Hello"), frame.form)
            for word in words
        ]
        place = common(many)
        seen: dict[int, str] = {}
        for word, ids in zip(words, many, strict=True):
            seen.setdefault(ids[place], word)
        return tuple(seen.values())

    def _find(self, number: int) -> Group:
        probes = [self._salter.probe(1 + i) for i in range(3)]

        def shared(texts: Sequence[str]) -> list[int]:
            return [common([self._ids(text, probe) for probe in probes]) for text in texts]

        base = self._cutter
        cutter = exact.Cutter(
            base.name, base.corpus, base.index, shared, splice=False, fillers=base.fillers
        )
        whole = exact.plain_context(lambda text: text, "what all prompts begin with")
        search = cutter.search(
            self._tokens, self._salter.group(number), whole, f"{self._seed}:prefix:{number}"
        )
        try:
            (cut,) = exact.run([search], shared)
        except exact.ExactLengthError as error:
            raise exact.ExactLengthError(f"prompts.shared_prefix_tokens: {error}") from error
        return self._group(cut.text)

    def _ids(self, text: str, probe: str) -> list[int]:
        frame, head = self._member(text)
        return frame.tokenizer.encode(frame.render(head + probe + "Hello"), frame.form)

    def _member(self, text: str) -> tuple[Frame, str]:
        """(frame, beginning of the last message) of prompts that share a text."""
        if self._place == "user":
            return self._frame, f"{text} "
        system = {"role": "system", "content": text}
        frame = self._frame
        return Frame(frame.tokenizer, frame.form, (system,), before=None, tools=frame.tools), ""

    def _group(self, text: str) -> Group:
        frame, head = self._member(text)
        if self._place == "system":
            frame = chat_frame(frame.tokenizer, frame.messages or (), frame.tools)
        return Group(frame, head, context_of(frame, head, self._cutter.lengths, self._tokens))


def context_of(frame: Frame, head: str, lengths: exact.Lengths, shared: int = 0) -> exact.Context:
    """The surroundings of a text that comes after `head` in the last message."""
    name = f"shared prefix of {shared} tokens and {exact.AROUND}" if shared else exact.AROUND

    def wrap(text: str) -> str:
        return frame.render(head + text)

    if frame.before is None:
        return exact.plain_context(wrap, name)
    return exact.surrounded(wrap, frame.before + head, frame.after, lengths, name)


def common(lists: Sequence[Sequence[int]]) -> int:
    """Length of the common prefix."""
    shortest = min(len(ids) for ids in lists)
    first = lists[0]
    for i in range(shortest):
        if any(ids[i] != first[i] for ids in lists):
            return i
    return shortest


def popularity(kind: str, groups: int) -> list[float]:
    """How often each group is drawn, relative to the others."""
    return [POPULARITY[kind](rank) for rank in range(1, groups + 1)]


# Name -> weight of the group of that rank, counted from 1.
POPULARITY: dict[str, Callable[[int], float]] = {
    "uniform": lambda _: 1.0,
    "zipf": lambda rank: 1.0 / rank,
}
