"""How the engine counts prompts, and words that are one token each for its answers.

Knows nothing about HTTP or timing. Subtle: with `tokenizer: none` a token is four bytes, so
that huge rates are not bound by tokenising, and the words of the answers are four bytes long:
the text of n tokens still has exactly n of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokenswarm.records import BadInput
from tokenswarm.simulator.answer import Ask, RequestError, Vocabulary
from tokenswarm.simulator.settings import Settings

BYTES_PER_TOKEN = 4

_WORDS = """
the and for are but not you all any can had her was one our out day get has him his how man new now
old see two way who its did yes let put say she too use time year people take good some could them
other than then look only come over think also back after work first well even want because these
give most house water light place small great again never world still found where those under might
while along story river month night paper group music
"""
CANDIDATES = _WORDS.split()


@dataclass(frozen=True, slots=True)
class Counted:
    """A prompt as the engine sees it: its length, and what prefix blocks are hashed from."""

    tokens: int
    units: Sequence[int] | bytes
    units_per_token: int = 1


class Tokenizing(Protocol):
    """What the engine needs of a tokenizer."""

    vocabulary: Vocabulary

    def count(self, ask: Ask) -> Counted:
        """Count the prompt of a request; called from a thread for long prompts."""
        ...

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids of a text, for /tokenize."""
        ...


def open_tokenizing(settings: Settings) -> Tokenizing:
    """The tokenizer that the settings name; BadInput when there is none."""
    if settings.tokenizer == "none" or not settings.tokenize:
        return ByBytes()
    return ByTokenizer(settings.tokenizer)


def chatml(messages: Sequence[dict[str, Any]]) -> str:
    """Messages as one text for tokenizers that have no chat template of their own."""
    turns = [f"<|im_start|>{m['role']}\n{m.get('content') or ''}<|im_end|>\n" for m in messages]
    return "".join(turns) + "<|im_start|>assistant\n"


class ByBytes:
    """Four bytes are a token."""

    def __init__(self) -> None:
        words = tuple(" " + word for word in CANDIDATES if len(word) == BYTES_PER_TOKEN - 1)
        self.vocabulary = Vocabulary(words, tuple(range(len(words))))

    def count(self, ask: Ask) -> Counted:
        """Prompt length by bytes; token ids count as they are."""
        prompt = ask.prompt
        if isinstance(prompt, str):
            units = prompt.encode()
        elif isinstance(prompt[0], int):
            return Counted(len(prompt), prompt)
        else:
            units = chatml(prompt).encode()
        return Counted(-(-len(units) // BYTES_PER_TOKEN), units, BYTES_PER_TOKEN)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Ids that stand for four bytes each."""
        del special
        data = text.encode()
        size = BYTES_PER_TOKEN
        return [int.from_bytes(data[i : i + size], "big") for i in range(0, len(data), size)]


class ByTokenizer:
    """A real tokenizer, loaded by tokenswarm.tokens."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from tokenswarm.tokens import Form, TokenizerSpec, load  # heavy, and not always needed

        try:
            named = TokenizerSpec(**spec)
        except TypeError as error:
            raise BadInput(f"tokenizer: {str(error).split(') ')[-1]}: {spec}") from None
        self._tokenizer = load(named)
        self._form = Form
        self.vocabulary = self._words()

    def count(self, ask: Ask) -> Counted:
        """Prompt length as the endpoint of the request counts it."""
        prompt = ask.prompt
        if isinstance(prompt, str):
            ids = self.encode(prompt, special=ask.add_special_tokens)
        elif isinstance(prompt[0], int):
            ids = prompt
        else:
            ids = self._encode_chat(prompt, ask.tools)
        return Counted(len(ids), ids)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids of a text, with or without BOS and its like."""
        form = self._form.COMPLETION if special else self._form.PLAIN
        return self._tokenizer.encode(text, form)

    def _encode_chat(self, messages: list[dict[str, Any]], tools: list[Any] | None) -> list[int]:
        if self._tokenizer.template is None:
            return self._tokenizer.encode(chatml(messages), self._form.RENDERED)
        try:
            text = self._tokenizer.render(messages, tools)
        except Exception as error:
            raise RequestError(400, f"chat template: {error}") from error
        return self._tokenizer.encode(text, self._form.RENDERED)

    def _words(self) -> Vocabulary:
        """Candidates that are one token wherever they stand."""
        words, ids = [], []
        for word in CANDIDATES:
            text = " " + word
            one, two = (self.encode(text * n, special=False) for n in (1, 2))
            if len(two) - len(one) == 1:
                words.append(text)
                ids.append(two[-1])
        lengths = [len(self.encode("".join(words * n), special=False)) for n in (1, 2)]
        if not words or lengths[1] - lengths[0] != len(words):
            raise BadInput("tokenizer: no English words of one token each were found in it")
        return Vocabulary(tuple(words), tuple(ids))
