"""Render a model's own chat template, as the server does before it counts a chat prompt.

Knows Jinja and the files in which Hugging Face keeps templates; knows nothing about tokens,
prompts or workloads. The subtle rule: the environment must equal the one of transformers
(trim_blocks, lstrip_blocks, loop controls, `raise_exception`, `strftime_now`, a `tojson` that
leaves non-ASCII alone), because one newline more or less is a token more or less.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from tokenswarm.records import BadInput

Message = Mapping[str, Any]


class _Compiled(Protocol):
    def render(self, **variables: Any) -> str: ...


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A compiled template with the variables that every rendering gets."""

    source: str
    where: str
    variables: Mapping[str, Any] = field(default_factory=dict)
    _compiled: _Compiled | None = None

    @property
    def digest(self) -> str:
        """Sha256 of everything that shapes the rendered text but the messages."""
        variables = json.dumps(self.variables, sort_keys=True, default=str)
        return hashlib.sha256(f"{self.source}\0{variables}".encode()).hexdigest()

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The text that the server tokenises for these messages. BadInput when it refuses."""
        if self._compiled is None:  # only when built by hand; compile_template fills it
            raise AssertionError("a ChatTemplate comes from compile_template")
        try:
            return self._compiled.render(
                **{
                    "messages": [dict(m) for m in messages],
                    "tools": list(tools) if tools else None,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                    **self.variables,
                }
            )
        except Exception as error:
            if type(error).__module__.split(".")[0] != "jinja2" and not isinstance(
                error, TypeError | ValueError | KeyError
            ):
                raise
            raise BadInput(
                f"{self.where}: the chat template refuses these messages"
                f" (roles: {', '.join(str(m.get('role')) for m in messages)}): {error}."
                " A template without a system role needs a workload without system_prompt."
            ) from error


def compile_template(source: str, where: str, variables: Mapping[str, Any]) -> ChatTemplate:
    """Compile a template; BadInput with its line when it is not valid Jinja."""
    import jinja2  # 30 ms that a completions workload does not need

    try:
        compiled = _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise BadInput(
            f"{where}:{error.lineno}: not a valid chat template (Jinja): {error.message}"
        ) from error
    return ChatTemplate(source, where, dict(variables), compiled)


def find_template(folder: Path) -> tuple[str, str] | None:
    """(template text, file it was found in) of a tokenizer folder, or None.

    `chat_template.jinja` wins over `chat_template.json` and `tokenizer_config.json`, as in
    transformers. Of several named templates the one called "default" is taken.
    """
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8"), str(jinja)
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = read_config(folder / name).get("chat_template")
        if isinstance(template, list):
            named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
            template = named.get("default") or next(iter(named.values()), None)
        if isinstance(template, str):
            return template, str(folder / name)
    return None


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The `bos_token` and its like of a tokenizer_config.json, for use in a template."""
    found = {}
    for key, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            found[key] = text
    return found


def read_config(path: Path) -> dict[str, Any]:
    """A JSON file beside the tokenizer; empty when there is none."""
    if not path.is_file():
        return {}
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(f"{path}: not valid JSON ({error}). Fetch the file again.") from error
    return loaded if isinstance(loaded, dict) else {}


def _environment() -> Any:
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the assistant's part for training; here it is its body."""

        tags = {"generation"}  # noqa: RUF012 - the attribute Jinja looks for

        def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
            next(parser.stream)
            body: list[nodes.Node] = parser.parse_statements(
                ("name:endgeneration",), drop_needle=True
            )
            return body

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
