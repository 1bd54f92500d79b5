"""What is asked of the engine and what it answers, in words that every protocol shares.

An Ask is a parsed request, an Answer is the generation that follows from it, and a script is
the answer as bytes with its pacing. This module knows nothing about sockets, HTTP or clocks.

The one subtle rule is a piece's third number, `steps`: how many token times the engine works
before the piece exists. 0 means "at once, after the piece before". The first piece with steps
waits for the first token as well. So a script fully says when each byte is due, and a fault
is a function from script to script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Piece = tuple[bytes, int, int]
"""(payload, tokens in it, steps to wait for); payload is one event, or part of one."""


class End(Enum):
    """How a script may end other than in order."""

    HANG = "send nothing more, keep the connection"
    RESET = "reset the connection"
    CUT = "close the connection in the middle of the body"


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing for ns. With shift the engine stands still: all that follows is late as well."""

    ns: int
    shift: bool = True


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes outside of the framing of the body; the script ends with them."""

    data: bytes


Script = Iterator[Piece | Wait | Raw | End]


class RequestError(Exception):
    """The request cannot be served: answered with `status` in the error shape of its protocol."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(slots=True)
class Ask:
    """A request in the engine's own words. prompt is text, token ids or chat messages.

    exact says that the client can rely on exactly max_tokens tokens (ignore_eos or its like,
    or a protocol that has no such word).
    """

    protocol: str
    model: str
    prompt: str | list[int] | list[dict[str, Any]]
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    exact: bool = False
    stream: bool = False
    one_event: bool = False
    include_usage: bool = False
    usage_each: bool = False
    stop: tuple[str, ...] = ()
    add_special_tokens: bool = True
    tools: list[Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    fault: str | None = None


@dataclass(slots=True)
class Shape:
    """How the answer is cut into events; faults and settings change it."""

    tokens_per_event: int = 1
    coalesce: int = 1
    usage_each: bool = False
    usage: bool = True
    role_early: bool = False
    end_mark: bool = True
    unfinished: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words of exactly one token each, so that n words are n tokens; escaped for JSON."""

    words: tuple[str, ...]
    ids: tuple[int, ...]


@dataclass(slots=True)
class Answer:
    """A generation: output_tokens words of the vocabulary, from a place that depends on id."""

    id: int
    created: int
    ask: Ask
    vocabulary: Vocabulary
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    finish: str = "length"
    shape: Shape = field(default_factory=Shape)
    texts: list[str] | None = None

    @property
    def events(self) -> int:
        """Number of token events."""
        return -(-self.output_tokens // self.shape.tokens_per_event)

    def word(self, i: int) -> str:
        """Text of the i-th output token."""
        if self.texts is not None:
            return self.texts[i] if i < len(self.texts) else ""
        words = self.vocabulary.words
        return words[(self.id * 7 + i) % len(words)]

    def token_id(self, i: int) -> int:
        """Id of the i-th output token in the engine's tokenizer."""
        ids = self.vocabulary.ids
        return ids[(self.id * 7 + i) % len(ids)]

    def text(self) -> str:
        """The whole answer."""
        return "".join(self.word(i) for i in range(self.output_tokens))

    def groups(self) -> Iterator[tuple[str, int, int, bool]]:
        """Text, number of tokens, tokens so far and "is the last" of every token event."""
        total, size = self.output_tokens, self.shape.tokens_per_event
        done = 0
        while done < total:
            count = min(size, total - done)
            text = (
                self.word(done)
                if count == 1
                else "".join(map(self.word, range(done, done + count)))
            )
            done += count
            yield text, count, done, done == total and not self.shape.unfinished

    def stop_at(self, stops: tuple[str, ...]) -> None:
        """End the answer where one of the stop strings appears; the string itself is left out."""
        text = self.text()
        found = [m.start() for s in stops if s and (m := re.search(re.escape(s), text))]
        if not found:
            return
        keep, texts, position = min(found), [], 0
        for i in range(self.output_tokens):
            word = self.word(i)
            texts.append(word[: max(0, keep - position)])
            position += len(word)
            if position > keep:
                break
        self.texts, self.output_tokens, self.finish = texts, len(texts), "stop"


@dataclass(frozen=True, slots=True)
class Protocol:
    """How one API reads a request and writes an answer.

    parse gets the body and what the path said of the model. stream is None where the API has
    no streams. error_event is an error in the middle of a stream that began with status 200.
    """

    name: str
    parse: Callable[[dict[str, Any], str | None], Ask]
    stream: Callable[[Answer], Script] | None
    whole: Callable[[Answer], bytes]
    error_body: Callable[[int, str], bytes]
    error_event: Callable[[str], bytes]
    end_mark: bytes = b""


def coalesced(script: Script, size: int) -> Script:
    """Hold token events back until `size` of them exist and write them together."""
    held, tokens, steps, events = b"", 0, 0, 0
    for item in script:
        if not isinstance(item, tuple):
            if held:
                yield held, tokens, steps
                held, tokens, steps, events = b"", 0, 0, 0
            yield item
            continue
        payload, count, wait = item
        if not wait and not held:
            yield item
            continue
        held, tokens, steps, events = held + payload, tokens + count, steps + wait, events + 1
        if events >= size:
            yield held, tokens, steps
            held, tokens, steps, events = b"", 0, 0, 0
    if held:
        yield held, tokens, steps


def positive(body: Mapping[str, Any], *names: str) -> int | None:
    """The first of the named limits that is present; RequestError unless a whole number >= 1."""
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise RequestError(400, f"{name} must be at least 1, got {value}.")
        return value
    return None


def single_prompt(value: Any, name: str) -> str | list[int]:
    """A prompt as text or token ids, also when wrapped in a list of one."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return value
    if isinstance(value, list) and len(value) > 1:
        raise RequestError(400, f"{name}: this engine takes one prompt a request.")
    raise RequestError(400, f"{name}: a non-empty text or list of token ids is needed.")


def stop_strings(value: Any) -> tuple[str, ...]:
    """The stop strings of a request: none, one or several."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(str(item) for item in value)
