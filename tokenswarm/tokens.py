"""Tokenizers: load one, offline first, and count as the server counts.

Knows where tokenizers live (folder, file, encoding name, hub cache) and the three ways a server
reads a text (`Form`); knows nothing about prompts or data sets. The subtle rule: `count` is what
the completions endpoint would report, with the BOS that the tokenizer adds; a rendered chat
template brings its own BOS and is counted without adding another.

A new kind of tokenizer is a codec (see `Codec`) and one line in `LOADERS`.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from tokenswarm.chat_template import (
    ChatTemplate,
    Message,
    compile_template,
    find_template,
    read_config,
    special_tokens,
)
from tokenswarm.records import BadInput

_WORD = re.compile(r"[Ġ▁ ]?([A-Za-z]{2,12})")


class Form(Enum):
    """How a server reads a text."""

    COMPLETION = "completion"
    """BOS, EOS and the like are added, where the tokenizer does so."""
    PLAIN = "plain"
    """Nothing is added: generated text, or the inside of a prompt."""
    RENDERED = "rendered"
    """A rendered chat template: nothing is added, its special tokens are recognised."""


class Codec(Protocol):
    """What a tokenizer library must be able to do; everything else is built on it."""

    digest: str
    """Sha256 (hex) of the tokenizer's files."""
    version: str
    """The library that counts, and its version."""

    def lengths(self, texts: Sequence[str], form: Form) -> list[int]:
        """Number of tokens of each text; releases the GIL where the library can."""

    def ids(self, text: str, form: Form) -> list[int]:
        """Token ids of a text."""

    def starts(self, texts: Sequence[str]) -> Iterator[array[int]]:
        """For each text the UTF-8 offset of the first character of every token (form PLAIN).

        Never falls inside a character: pieces of one character share its start.
        """

    def vocabulary(self) -> list[str]:
        """The tokens that are whole words of ASCII letters, without their leading blank."""


class Spec(Protocol):
    """The `tokenizer` section of a workload."""

    @property
    def source(self) -> str:
        """hf or tiktoken."""

    @property
    def path(self) -> str:
        """Folder, file, hub id or encoding name."""

    @property
    def add_special_tokens(self) -> bool:
        """Does the completions endpoint add BOS and the like?"""

    @property
    def chat_template(self) -> str | None:
        """File of a template that replaces the model's own."""

    @property
    def chat_template_kwargs(self) -> Mapping[str, Any]:
        """Further variables for the template."""

    @property
    def trust_remote_code(self) -> bool:
        """May code that comes with the tokenizer be run?"""


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """A `Spec` written in Python, for use without a workload file."""

    source: str
    path: str
    add_special_tokens: bool = True
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer that counts as a server does.

    digest is the sha256 of its files; two tokenizers with one digest give the same tokens.
    """

    name: str
    codec: Codec
    template: ChatTemplate | None = None
    add_special_tokens: bool = True

    @property
    def digest(self) -> str:
        """Sha256 (hex) of the tokenizer's files; the chat template has its own."""
        return self.codec.digest

    def count(self, text: str) -> int:
        """Tokens of a completions prompt, BOS included where the server adds it."""
        return self.lengths([text], Form.COMPLETION)[0]

    def count_plain(self, text: str) -> int:
        """Tokens of a text with nothing added: for counting an answer."""
        return self.lengths([text], Form.PLAIN)[0]

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        """`count` of many texts in one call."""
        return self.lengths(texts, Form.COMPLETION)

    def lengths(self, texts: Sequence[str], form: Form) -> list[int]:
        """Number of tokens of each text, read in the given form."""
        return self.codec.lengths(texts, self._form(form))

    def encode(self, text: str, form: Form = Form.COMPLETION) -> list[int]:
        """Token ids of a text, read in the given form."""
        return self.codec.ids(text, self._form(form))

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The chat template filled in, generation prompt included. BadInput without template."""
        if self.template is None:
            raise BadInput(
                f"tokenizer {self.name}: no chat template was found, so the tokens of chat"
                " messages cannot be counted. Set tokenizer.chat_template to the model's"
                " template file, or use a completions backend."
            )
        return self.template.render(messages, tools, add_generation_prompt)

    def count_chat(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> int:
        """Tokens of chat messages as the chat endpoint reports them."""
        return self.lengths([self.render(messages, tools)], Form.RENDERED)[0]

    def _form(self, form: Form) -> Form:
        plain = form is Form.COMPLETION and not self.add_special_tokens
        return Form.PLAIN if plain else form


def load(spec: Spec) -> Tokenizer:
    """Load the tokenizer that a workload names.

    Raises BadInput that says what was looked for, where, and what to do. The network is asked
    only for a hub id or a tiktoken encoding that no file on this machine provides.
    """
    # One thread unless the user says otherwise: in a worker the other cores belong to the
    # measuring loops, and the library's own pool does not survive a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    loader = LOADERS.get(spec.source)
    if loader is None:
        raise BadInput(
            f"tokenizer.source: unknown source {spec.source!r}."
            f" Expected one of: {', '.join(sorted(LOADERS))}."
        )
    module, function = loader
    codec, folder = getattr(importlib.import_module(module), function)(spec)
    return Tokenizer(
        name=f"{spec.source}:{spec.path}",
        codec=codec,
        template=_template(spec, folder),
        add_special_tokens=getattr(spec, "add_special_tokens", True),
    )


# Source name -> (module, function(spec) -> (codec, folder or None)). Modules are imported when
# used: each pulls in its library.
LOADERS: dict[str, tuple[str, str]] = {
    "hf": ("tokenswarm.tokens_hf", "load_hf"),
    "tiktoken": ("tokenswarm.tokens_tiktoken", "load_tiktoken"),
}


def with_template_kwargs(tokenizer: Tokenizer, kwargs: Mapping[str, Any] | None) -> Tokenizer:
    """The tokenizer with more variables for its chat template, as a request may send them."""
    template = tokenizer.template
    if not kwargs or template is None:
        return tokenizer
    variables = {**template.variables, **kwargs}
    return replace(tokenizer, template=replace(template, variables=variables))


@contextmanager
def all_cores() -> Iterator[None]:
    """Let the tokenizer library use every core, for work done before any load is sent.

    RAYON_NUM_THREADS limits it. A TOKENIZERS_PARALLELISM set by the user is left alone.
    """
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    if before == "false" or before is None:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("TOKENIZERS_PARALLELISM", None)
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def digest_of(*parts: bytes | str | Path) -> str:
    """Sha256 (hex) over texts and whole files, each marked off from the next."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            data = part.read_bytes()
        else:
            data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()


def _template(spec: Spec, folder: Path | None) -> ChatTemplate | None:
    given = getattr(spec, "chat_template", None)
    kwargs = dict(getattr(spec, "chat_template_kwargs", None) or {})
    config = read_config(folder / "tokenizer_config.json") if folder else {}
    found: tuple[str, str] | None
    if given:
        path = Path(given)
        if not path.is_file():
            raise BadInput(
                f"tokenizer.chat_template: no file {given!r}. Give the path of the model's"
                " template (chat_template.jinja)."
            )
        if path.suffix == ".json":
            found = find_template_in(path)
        else:
            found = (path.read_text(encoding="utf-8"), str(path))
    else:
        found = find_template(folder) if folder else None
    if found is None:
        return None
    return compile_template(found[0], found[1], {**special_tokens(config), **kwargs})


def find_template_in(path: Path) -> tuple[str, str]:
    """The template inside a JSON file such as tokenizer_config.json."""
    template = read_config(path).get("chat_template")
    if not isinstance(template, str):
        raise BadInput(f"{path}: has no text under 'chat_template'.")
    return template, str(path)


def byte_offsets(text: str) -> list[int]:
    """UTF-8 offset of every character, and of the end."""
    sizes = (1 if c < "\x80" else 2 if c < "\u0800" else 3 if c < "\U00010000" else 4 for c in text)
    return list(accumulate(sizes, initial=0))


def words_of(vocabulary: dict[str, int]) -> list[str]:
    """Tokens that are whole ASCII words, in the order of their ids."""
    words: dict[str, None] = {}
    for token, _ in sorted(vocabulary.items(), key=lambda item: item[1]):
        match = _WORD.fullmatch(token)
        if match and token[0] in "Ġ▁ ":
            words[match[1]] = None
    return list(words)
