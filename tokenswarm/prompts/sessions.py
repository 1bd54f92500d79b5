"""Multi-turn sessions: recorded conversations replayed turn by turn with their history.

Knows conversations and how a history is put before the next message. The subtle rule: every turn
adds exactly its drawn number of tokens to what came before: the last prompt and the answer to it,
as it stands in the history (a recorded answer is cut to the length that is asked of the model).
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Generator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

from tokenswarm.backends import speaks_chat
from tokenswarm.prompts import exact
from tokenswarm.prompts.conversational import sharegpt_corpus
from tokenswarm.prompts.prefix import context_of
from tokenswarm.prompts.source import Frame, chat_frame, option, to_prompt
from tokenswarm.prompts.synthesis import Synthesis
from tokenswarm.records import BadInput, Prompt
from tokenswarm.tokens import Form, Tokenizer

_KEPT = 256  # sessions whose turns are kept: neighbours in the plan belong together
Turns = Generator[list[str], list[int], list[Prompt]]


def open_conversations(workload: Any, tokenizer: Tokenizer) -> Sessions:
    """Sessions from a ShareGPT file.

    prompts.options: max_turns (requests of a session at most), min_turns (shorter conversations
    are left out), replies (which answers stand in the history: recorded, or the model's own).
    """
    if workload.prompts.shared_prefix_tokens:
        raise BadInput(
            "prompts.shared_prefix_tokens: a session shares its own history; use another source,"
            " or system_prompt for what all sessions share."
        )
    warnings: list[str] = []
    corpus = sharegpt_corpus(workload, warnings, with_replies=True)
    return Sessions(workload, Synthesis(workload, tokenizer, corpus, warnings))


class Sessions:
    """A `PromptSource` of sessions; request numbers run through their turns one after another.

    live: the workload wants the model's own answers in the history; whoever leads the sessions
    then asks `session` for them, since `prompt` knows only the recorded ones.
    """

    def __init__(self, workload: Any, synthesis: Synthesis) -> None:
        self._workload = workload
        self._synthesis = synthesis
        self._chat: bool = speaks_chat(workload)
        self._system: str | None = workload.prompts.system_prompt
        firsts = synthesis.corpus.firsts
        if firsts is None:
            raise AssertionError("a corpus of conversations keeps replies")
        ends = [*firsts[1:], len(synthesis.corpus.starts)]
        most = option(workload, "max_turns", None)
        least = option(workload, "min_turns", 1)
        found = [
            (first, min(end - first, most or end - first))
            for first, end in zip(firsts, ends, strict=True)
            if end - first >= least
        ]
        if not found:
            raise BadInput(f"prompts.options.min_turns: no conversation has {least} turns.")
        random.Random(workload.seed).shuffle(found)
        self._found = found
        self._sums = list(accumulate(turns for _, turns in found))
        self._scripted = lru_cache(maxsize=_KEPT)(self._solve)
        self.live: bool = option(workload, "replies", "recorded") == "model"
        self.distinct: int | None = None
        self.digest = synthesis.digest
        self.warnings = synthesis.warnings

    def __len__(self) -> int:
        """Number of different conversations; later sessions replay them with other salts."""
        return len(self._found)

    def session(self, number: int) -> Session:
        """A session to be led turn by turn."""
        return Session(self, number)

    def prompt(self, index: int) -> Prompt:
        """Prompt of a request, with the recorded answers in its history."""
        number, turn = self.locate(index)
        return self._scripted(number)[turn]

    def prompts(self, indices: Sequence[int]) -> list[Prompt]:
        """Prompts of requests."""
        return [self.prompt(i) for i in indices]

    def probe_prompt(self) -> Prompt:
        """A short prompt outside the plan."""
        return self._synthesis.probe_prompt()

    def count(self, prompt: Prompt) -> int:
        """Count a prompt anew."""
        return self._synthesis.count(prompt)

    def locate(self, index: int) -> tuple[int, int]:
        """(session, turn) of a request."""
        rounds, rest = divmod(index, self._sums[-1])
        place = bisect_right(self._sums, rest)
        return rounds * len(self._found) + place, rest - (self._sums[place - 1] if place else 0)

    def first_index(self, number: int) -> int:
        """Number of the request that opens a session."""
        rounds, place = divmod(number, len(self._found))
        return rounds * self._sums[-1] + (self._sums[place - 1] if place else 0)

    def turns_of(self, number: int) -> int:
        """Number of turns of a session."""
        return self._found[number % len(self._found)][1]

    def _solve(self, number: int) -> tuple[Prompt, ...]:
        solver = Solver(self, number)
        return tuple(solver.solve(()) for _ in range(self.turns_of(number)))


class Session:
    """One session: ask for turn 0, 1, 2, ... in order."""

    def __init__(self, source: Sessions, number: int) -> None:
        self.number = number
        self.turns = source.turns_of(number)
        self._solver = Solver(source, number)

    def prompt(self, replies: Sequence[str] = ()) -> Prompt:
        """The next turn's prompt.

        replies are the model's own answers so far, to be in the history; for those that are
        missing the recorded answers stand in.
        """
        if self._solver.turn >= self.turns:
            raise IndexError(f"session {self.number} has {self.turns} turns")
        return self._solver.solve(replies)


class Solver:
    """Finds the texts of a session's turns, each after the other."""

    def __init__(self, source: Sessions, number: int) -> None:
        self._source = source
        self._synthesis = source._synthesis
        self._number = number
        self._first = source.first_index(number)
        self._passage = source._found[number % len(source._found)][0]
        self._said: list[str] = []
        self._answers: list[str] = []
        self._total = 0
        self._output: int | None = None
        self.turn = 0

    def solve(self, replies: Sequence[str]) -> Prompt:
        """The next prompt."""
        source, synthesis, turn = self._source, self._synthesis, self.turn
        index = self._first + turn
        want, output = synthesis.lengths(index)
        if turn:
            self._answer(replies)
        salt = synthesis.salter.request(self._number) if synthesis.salted and not turn else ""
        frame = history_frame(source, self._said, self._answers, synthesis)
        context = context_of(frame, "", synthesis.cutter.lengths)
        passage = self._passage + turn
        if want is None:
            search = synthesis.cutter.whole(passage, salt, context)
        else:
            key = f"{synthesis.seed}:session:{self._number}:{turn}"
            search = synthesis.cutter.search(self._total + want, salt, context, key, passage)
        (cut,) = exact.run([search], synthesis.cutter.lengths)
        recorded = source._synthesis.corpus.reply(passage)
        if output is None and recorded and synthesis.recorded:
            output = max(1, synthesis.tokenizer.count_plain(recorded))
        self._said.append(cut.text)
        self._total = cut.tokens
        self._output = output
        self.turn += 1
        made = to_prompt(frame, index, cut.text, cut.tokens, output, synthesis.as_ids)
        return Prompt(
            index,
            made.input_tokens,
            output,
            made.text,
            made.messages,
            made.token_ids,
            session=self._number,
            turn=turn,
        )

    def _answer(self, replies: Sequence[str]) -> None:
        """Put the answer to the last turn into the history."""
        synthesis, turn = self._synthesis, self.turn
        if turn <= len(replies):
            answer = replies[turn - 1].strip()
        else:
            answer = synthesis.corpus.reply(self._passage + turn - 1) or "Yes."
            if self._output is not None:
                answer = first_tokens(synthesis.tokenizer, answer, self._output)
        self._total += synthesis.tokenizer.count_plain(answer)
        self._answers.append(answer)


def history_frame(
    source: Sessions, said: Sequence[str], answers: Sequence[str], synthesis: Synthesis
) -> Frame:
    """The frame of the next message after these."""
    tokenizer = synthesis.tokenizer
    if source._chat:
        messages = [{"role": "system", "content": source._system}] if source._system else []
        for text, answer in zip(said, answers, strict=True):
            messages.append({"role": "user", "content": text})
            messages.append({"role": "assistant", "content": answer})
        return chat_frame(tokenizer, tuple(messages), synthesis.frame.tools)
    before = f"{source._system}\n\n" if source._system else ""
    for text, answer in zip(said, answers, strict=True):
        before += f"User: {text}\n\nAssistant: {answer}\n\n"
    return Frame(tokenizer, Form.COMPLETION, before=f"{before}User: ", after="\n\nAssistant:")


def first_tokens(tokenizer: Tokenizer, text: str, tokens: int) -> str:
    """The beginning of a text, at most that many tokens, cut at a token's start."""
    (starts,) = tokenizer.codec.starts([text])
    if len(starts) <= tokens:
        return text
    return text.encode()[: starts[tokens]].decode().rstrip()
