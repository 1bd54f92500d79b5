"""The user's own prompts, one JSON object a line, sent as they are.

Knows the lines; the server's view of them is counted when a tokenizer is given. The subtle rule:
nothing is changed or made unique, so repeated lines hit the server's prefix cache (the warnings
say so).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenswarm.backends import speaks_chat
from tokenswarm.prompts import cache
from tokenswarm.prompts.source import recount, tools_of
from tokenswarm.records import BadInput, Prompt
from tokenswarm.tokens import Form, Tokenizer, digest_of

_OUTPUT_KEYS = ("output_tokens", "max_tokens", "max_completion_tokens")
_MOST_PROBLEMS = 20
_EXPECTED = (
    'Expected {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]} on each'
    ' line, with "output_tokens" where the answer has a length of its own.'
)


@dataclass(frozen=True, slots=True)
class Line:
    """One prompt of the file; exactly one of text, messages and ids is set."""

    text: str | None
    messages: tuple[dict[str, Any], ...] | None
    ids: tuple[int, ...] | None
    output_tokens: int | None


class Lines:
    """A `PromptSource` that sends line i mod n as request i."""

    def __init__(self, workload: Any, tokenizer: Tokenizer | None, lines: list[Line]) -> None:
        self._workload = workload
        self._tokenizer = tokenizer
        self._tools = tools_of(workload)
        self._lines = lines
        self._counts: dict[int, int] = {}  # filled by any thread, always with the same values
        self.distinct: int | None = len(lines)
        path = Path(workload.prompts.path).expanduser()
        self.digest = digest_of("jsonl-1", cache.file_digest(path), _digest_of(tokenizer))
        self.warnings: tuple[str, ...] = (
            f"{path}: {len(lines):,} prompts; each is sent again after every {len(lines):,}"
            " requests, when the server's prefix cache may still know it.",
        )

    def prompt(self, index: int) -> Prompt:
        """Prompt of a request."""
        place = index % len(self._lines)
        line = self._lines[place]
        drawn = self._workload.prompts.draw(self._workload.seed, index)[1]
        output = drawn if line.output_tokens is None else line.output_tokens
        if line.ids is not None:
            return Prompt(index, len(line.ids), output, token_ids=line.ids)
        if self._workload.prompts.as_token_ids:
            ids = self._encode(line)
            return Prompt(index, len(ids), output, token_ids=ids)
        bare = Prompt(index, None, output, text=line.text, messages=line.messages)
        return Prompt(
            index, self._count(place, bare), output, text=line.text, messages=line.messages
        )

    def prompts(self, indices: Sequence[int]) -> list[Prompt]:
        """Prompts of requests."""
        return [self.prompt(i) for i in indices]

    def probe_prompt(self) -> Prompt:
        """The shortest line of the first hundred."""
        sizes = [len(str(line)) for line in self._lines[:100]]
        found = self.prompt(sizes.index(min(sizes)))
        return Prompt(-1, found.input_tokens, 1, found.text, found.messages, found.token_ids)

    def count(self, prompt: Prompt) -> int:
        """Count a prompt anew."""
        return recount(self._tokenizer, prompt, self._tools)

    def _count(self, place: int, prompt: Prompt) -> int | None:
        if self._tokenizer is None:
            return None
        if place not in self._counts:
            self._counts[place] = self.count(prompt)
        return self._counts[place]

    def _encode(self, line: Line) -> tuple[int, ...]:
        if self._tokenizer is None:
            raise BadInput("prompts.as_token_ids: needs the tokenizer section.")
        if line.messages is not None:
            text = self._tokenizer.render(line.messages, self._tools)
            return tuple(self._tokenizer.encode(text, Form.RENDERED))
        return tuple(self._tokenizer.encode(line.text or ""))


def open_jsonl(workload: Any, tokenizer: Tokenizer | None) -> Lines:
    """The prompts of prompts.path."""
    if not workload.prompts.path:
        raise BadInput(f"prompts.path: is not set. Name a file of JSON lines. {_EXPECTED}")
    path = Path(workload.prompts.path).expanduser()
    chat = speaks_chat(workload)
    return Lines(workload, tokenizer, read_lines(path, chat))


def read_lines(path: Path, chat: bool) -> list[Line]:
    """All lines of a file; BadInput with every mistake's place. chat: a text becomes a message."""
    import orjson

    lines: list[Line] = []
    problems: list[str] = []
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.strip():
                    continue
                try:
                    lines.append(_parse(orjson.loads(raw.removeprefix(b"\xef\xbb\xbf")), chat))
                except ValueError as error:
                    problems.append(f"{path}:{number}: {error}")
                    if len(problems) == _MOST_PROBLEMS:
                        problems.append(f"{path}: reading stopped after {_MOST_PROBLEMS} mistakes.")
                        break
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}. Check prompts.path.") from error
    if problems:
        raise BadInput(*problems, _EXPECTED)
    if not lines:
        raise BadInput(f"{path}: holds no prompts. {_EXPECTED}")
    return lines


def _parse(line: Any, chat: bool) -> Line:
    if not isinstance(line, dict):
        raise ValueError(f"is a {type(line).__name__}, not an object")
    output = next((line[key] for key in _OUTPUT_KEYS if line.get(key) is not None), None)
    if output is not None and (type(output) is not int or output < 1):
        raise ValueError(f"output_tokens must be a whole number of at least 1, got {output!r}")
    prompt, messages = line.get("prompt"), line.get("messages")
    if (prompt is None) == (messages is None):
        raise ValueError("needs either a prompt or messages")
    if messages is not None:
        return Line(None, _messages(messages, chat), None, output)
    if isinstance(prompt, list):
        if not prompt or any(type(token) is not int or token < 0 for token in prompt):
            raise ValueError("a prompt that is a list must hold token ids")
        return Line(None, None, tuple(prompt), output)
    if not isinstance(prompt, str) or not prompt:
        raise ValueError("prompt must be a text that is not empty")
    if chat:
        return Line(None, ({"role": "user", "content": prompt},), None, output)
    return Line(prompt, None, None, output)


def _messages(messages: Any, chat: bool) -> tuple[dict[str, Any], ...]:
    if not chat:
        raise ValueError(
            "has messages, but the backend takes a text; use backend.kind: openai-chat"
        )
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages must be a list that is not empty")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError("every message needs a role and a content")
    return tuple(messages)


def _digest_of(tokenizer: Tokenizer | None) -> str:
    return tokenizer.digest if tokenizer is not None else ""
