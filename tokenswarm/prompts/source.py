"""What every source of prompts offers, and what the sources share.

Knows the workload's sections by their attributes; knows nothing about files.
The subtle rule: prompt(i) is a pure function of (corpus, tokenizer, seed, nonce, i), so every
worker makes its own prompts and the number of workers changes none of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokenswarm.backends import speaks_chat
from tokenswarm.records import BadInput, Prompt
from tokenswarm.tokens import Form, Tokenizer

_MARK = "Kappa-7-mark"


class PromptSource(Protocol):
    """Prompts by number."""

    @property
    def digest(self) -> str:
        """Names corpus, tokenizer and rules; master and workers must agree."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know about the data, one sentence each."""

    @property
    def distinct(self) -> int | None:
        """Number of different prompts; None when they do not run out."""

    def prompt(self, index: int) -> Prompt:
        """Prompt of a request. BadInput (with the numbers) when its length is impossible."""

    def prompts(self, indices: Sequence[int]) -> list[Prompt]:
        """The same prompts as one by one, faster."""

    def probe_prompt(self) -> Prompt:
        """A short prompt outside the plan, for a request before the run."""

    def count(self, prompt: Prompt) -> int:
        """Count a prompt anew, in full, as the server does."""


Lengths = Callable[[int], tuple[int | None, int | None]]
"""(input tokens, output tokens) of request i; None where nothing is asked for."""


@dataclass(frozen=True, slots=True)
class Frame:
    """How the text of a prompt becomes what the server counts, and what is sent.

    before and after are the fixed texts around it, or None when the template does more to a
    text than to put it between two others.
    """

    tokenizer: Tokenizer
    form: Form
    messages: tuple[dict[str, Any], ...] | None = None
    before: str | None = ""
    after: str = ""
    tools: tuple[dict[str, Any], ...] | None = None

    def wrap(self, text: str) -> str:
        """The whole text that the server tokenises."""
        if self.before is not None:
            return self.before + text + self.after
        return self.tokenizer.render(self.to_messages(text), self.tools)

    def render(self, text: str) -> str:
        """As wrap, through the template itself."""
        if self.messages is None:
            return self.wrap(text)
        return self.tokenizer.render(self.to_messages(text), self.tools)

    def to_messages(self, text: str) -> tuple[dict[str, Any], ...]:
        """The chat messages with the text as the last one."""
        return (*(self.messages or ()), {"role": "user", "content": text})


def completion_frame(tokenizer: Tokenizer, system_prompt: str | None) -> Frame:
    """A frame for text endpoints; the system prompt simply comes first."""
    before = f"{system_prompt}\n\n" if system_prompt else ""
    return Frame(tokenizer, Form.COMPLETION, before=before)


def chat_frame(
    tokenizer: Tokenizer,
    messages: tuple[dict[str, Any], ...],
    tools: tuple[dict[str, Any], ...] | None = None,
) -> Frame:
    """A frame for chat endpoints: these messages, then one of the user's."""
    whole = Frame(tokenizer, Form.RENDERED, messages, before=None, tools=tools)
    before, mark, after = whole.render(_MARK).partition(_MARK)
    frame = Frame(tokenizer, Form.RENDERED, messages, before, after, tools)
    probes = ("Two words", "a\n\n  b: <c> {d} 'e' & \"f\"", "é中文🙂." * 40)
    same = all(frame.wrap(p) == whole.render(p) for p in probes)
    return frame if mark and same else whole


def frame_of(workload: Any, tokenizer: Tokenizer) -> Frame:
    """The frame for the workload's backend, system prompt and tools."""
    system = workload.prompts.system_prompt
    if not speaks_chat(workload):
        return completion_frame(tokenizer, system)
    messages = ({"role": "system", "content": system},) if system else ()
    return chat_frame(tokenizer, messages, tools_of(workload))


def tools_of(workload: Any) -> tuple[dict[str, Any], ...] | None:
    """The tools that every request offers the model: they are in the rendered template."""
    extra = getattr(workload.backend, "extra_body", None) or {}
    tools = extra.get("tools")
    return tuple(tools) if tools and speaks_chat(workload) else None


def to_prompt(
    frame: Frame, index: int, text: str, tokens: int | None, output: int | None, as_ids: bool
) -> Prompt:
    """The prompt that is sent for a text: text, messages or token ids."""
    if as_ids:
        ids = tuple(frame.tokenizer.encode(frame.render(text), frame.form))
        return Prompt(index, len(ids), output, token_ids=ids)
    if frame.form is Form.RENDERED:
        return Prompt(index, tokens, output, messages=frame.to_messages(text))
    return Prompt(index, tokens, output, text=frame.wrap(text))


def recount(
    tokenizer: Tokenizer | None,
    prompt: Prompt,
    tools: tuple[dict[str, Any], ...] | None = None,
) -> int:
    """Count a prompt in full, through the template, as the server does."""
    if prompt.token_ids is not None:
        return len(prompt.token_ids)
    if tokenizer is None:
        raise BadInput("tokenizer: not set, so tokens cannot be counted. Name the model's.")
    if prompt.messages is not None:
        return tokenizer.count_chat(prompt.messages, tools)
    return tokenizer.count(prompt.text or "")


# Keys of prompts.options -> what is allowed: a type, or the words.
OPTIONS: dict[str, type | tuple[str, ...]] = {
    "salt": bool,
    "verify": ("sampled", "full"),
    "prefix_in": ("user", "system"),
    "replies": ("recorded", "model"),
    "min_turns": int,
    "max_turns": int,
    "corpus": str,
}
_TYPE_WORDS: dict[type, str] = {bool: "true or false", int: "a whole number", str: "a path"}


def option(workload: Any, name: str, default: Any) -> Any:
    """A key of prompts.options; see OPTIONS."""
    return (workload.prompts.options or {}).get(name, default)


def check_options(workload: Any) -> None:
    """BadInput for unknown keys and wrong values of prompts.options, all at once."""
    problems = []
    for name, value in (workload.prompts.options or {}).items():
        where = f"prompts.options.{name}"
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            problems.append(f"{where}: unknown. Expected one of: {', '.join(OPTIONS)}.{hint}")
            continue
        allowed = OPTIONS[name]
        if isinstance(allowed, tuple):
            if value not in allowed:
                problems.append(f"{where}: must be {' or '.join(allowed)}, got {value!r}.")
        elif type(value) is not allowed or (type(value) is int and value < 1):
            problems.append(f"{where}: must be {_TYPE_WORDS[allowed]}, got {value!r}.")
    if problems:
        raise BadInput(*problems)
