"""Any engine by words in the workload: the request body as a template, paths into the events.

`backend.options` says where to send, what to send and where in an event the text, the counts, the
finish reason and an error stand. A path such as choices.0.text goes through members and list
positions. The one subtle rule: a placeholder that is a whole value keeps its type ({{max_tokens}}
becomes a number, {{messages}} a list), inside a longer text it becomes text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from tokenswarm.backends import openai_common as common
from tokenswarm.backends import options
from tokenswarm.backends.cumulative import Growth
from tokenswarm.backends.options import Option
from tokenswarm.records import BadInput, Prompt, Request, TokenEvent, Usage

OPTIONS = {
    "path": Option(str, None, "path below the base URL"),
    "body": Option(dict, None, "the request body, with {{prompt}} and others in it"),
    "text": Option(str, None, "path to the new text in an event, such as choices.0.text"),
    "reasoning": Option(str, None, "path to reasoning text"),
    "usage_prompt": Option(str, None, "path to the number of prompt tokens"),
    "usage_output": Option(str, None, "path to the number of output tokens so far"),
    "finish": Option(str, None, "path to the finish reason"),
    "error": Option(str, "error", "path to an error in an event"),
    "end": Option(str, None, "the data that marks the end, such as [DONE]"),
    "cumulative": Option(bool, False, "each event repeats the text so far"),
    "streams": Option(bool, True, "false for an answer that is one JSON document"),
    "lines": Option(bool, False, "events are lines of JSON, not server-sent events"),
    "health_path": Option(str, "/health", "path that answers 200 when the server is ready"),
    "models_path": Option(str, "/v1/models", "path that lists models"),
    "metrics_path": Option(str, "/metrics", "path of Prometheus metrics"),
}
PLACEHOLDERS = ("prompt", "messages", "max_tokens", "model")
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_JSON_STRING_OR_PLACEHOLDER = re.compile(r'"(?:[^"\\]|\\.)*"|\{\{\s*\w+\s*\}\}')
_ABSENT = object()


class Template:
    """A protocol that the workload describes; see backends.Backend."""

    notes: tuple[str, ...] = ()

    def __init__(self, workload: Any) -> None:
        self.workload = workload
        self._options = chosen = options.read(workload, OPTIONS)
        self._body, names = _checked(chosen, workload)
        self.path: str = workload.backend.path or chosen["path"]
        self.health_path: str = chosen["health_path"]
        self.models_path: str = chosen["models_path"]
        self.metrics_path: str = chosen["metrics_path"]
        self.streams: bool = chosen["streams"]
        self.stateless: bool = not chosen["cumulative"]
        self.lines: bool = chosen["lines"]
        self.closes = chosen["end"] is None and chosen["finish"] is None
        self.chat = "messages" in names

    def build(self, prompt: Prompt) -> Request:
        """The filled-in body; extra_body merges into it."""
        return self._request(prompt, prompt.output_tokens)

    def probe(self, prompt: Prompt) -> Request:
        """The same for one output token, as far as the template says how many."""
        return self._request(prompt, 1)

    def _request(self, prompt: Prompt, length: int | None) -> Request:
        values: dict[str, Any] = {
            "prompt": prompt.text if prompt.token_ids is None else prompt.token_ids,
            "messages": prompt.messages,
            "max_tokens": length,
            "model": self.workload.backend.model,
        }
        if prompt.messages is None and prompt.text is not None:
            values["messages"] = ({"role": "user", "content": prompt.text},)
        needed = "messages" if self.chat else "prompt"
        if values[needed] is None:
            raise BadInput(
                f"backend.options.body: has {{{{{needed}}}}}, but this prompt source makes "
                f"{'token ids' if prompt.token_ids is not None else 'messages'}: use the other "
                "placeholder, or another prompts.source"
            )
        body = _fill(self._body, values)
        return Request(
            self.path, orjson.dumps(common.merge(body, self.workload.backend.extra_body))
        )

    def reader(self) -> Callable[[bytes, str], TokenEvent]:
        """A reader of one answer; it keeps the text so far where each event repeats it."""
        chosen = self._options
        find = {name: _path(chosen[name]) for name in ("text", "reasoning", "usage_prompt",
                "usage_output", "finish", "error")}  # fmt: skip
        end = chosen["end"].encode() if chosen["end"] is not None else None
        growth = Growth("backend.options.cumulative") if chosen["cumulative"] else None

        def parse(data: bytes, name: str) -> TokenEvent:
            if end is not None and data.strip() == end:
                return TokenEvent(end=True)
            document = orjson.loads(data)
            if error := find["error"](document):
                return TokenEvent(error=common.error_text(error))
            if name == "error":
                return TokenEvent(error=common.error_text(document))
            text = _text(find["text"](document), chosen["text"])
            event = TokenEvent(
                text=text if growth is None or not text else growth.new(text),
                reasoning=_text(find["reasoning"](document), chosen["reasoning"]),
            )
            usage = Usage(common.count(find["usage_prompt"](document)),
                          common.count(find["usage_output"](document)))  # fmt: skip
            if usage.prompt_tokens is not None or usage.output_tokens is not None:
                event.usage = usage
            if (reason := find["finish"](document)) not in (None, False, ""):
                event.finish_reason = str(reason)
            return event

        return parse


def sends_messages(workload: Any) -> bool:
    """Whether the template has {{messages}} in it, so that the server renders a chat."""
    body = workload.backend.options.get("body")
    return "messages" in _PLACEHOLDER.findall(body if isinstance(body, str) else repr(body))


def _checked(chosen: dict[str, Any], workload: Any) -> tuple[dict[str, Any], set[str]]:
    """The body as a mapping and the placeholders in it. Raises BadInput with all mistakes."""
    problems = []
    if not (workload.backend.path or chosen["path"]):
        problems.append("backend.options.path: is required for backend.kind: template, e.g. "
                        "/v1/generate")  # fmt: skip
    if chosen["text"] is None:
        problems.append("backend.options.text: is required for backend.kind: template: the path "
                        "to the new text in an event, e.g. choices.0.text")  # fmt: skip
    body, names = chosen["body"], set[str]()
    if body is None:
        problems.append("backend.options.body: is required for backend.kind: template, e.g. "
                        "{prompt: '{{prompt}}', n: '{{max_tokens}}', stream: true}")  # fmt: skip
    else:
        try:
            body = _mapping(body)
            names = _names(body)
        except ValueError as e:
            problems.append(f"backend.options.body: {e}")
        else:
            problems += _placeholder_problems(names)
    if problems:
        raise BadInput(*problems)
    return body, names


def _placeholder_problems(names: set[str]) -> list[str]:
    where = "backend.options.body"
    allowed = ", ".join(f"{{{{{name}}}}}" for name in PLACEHOLDERS)
    found = [
        f"{where}: unknown placeholder {{{{{name}}}}}. Expected one of: {allowed}"
        for name in sorted(names - set(PLACEHOLDERS))
    ]
    if not names & {"prompt", "messages"}:
        found.append(f"{where}: has neither {{{{prompt}}}} nor {{{{messages}}}}, so every request "
                     "would be the same")  # fmt: skip
    if {"prompt", "messages"} <= names:
        found.append(f"{where}: has both {{{{prompt}}}} and {{{{messages}}}}; leave one out")
    return found


def _mapping(body: Any) -> dict[str, Any]:
    """A body given as JSON text or as a mapping; bare placeholders in JSON text are allowed."""
    if isinstance(body, str):
        text = _JSON_STRING_OR_PLACEHOLDER.sub(
            lambda m: m[0] if m[0].startswith('"') else f'"{m[0]}"', body
        )
        try:
            body = orjson.loads(text)
        except ValueError as e:
            raise ValueError(f"is no JSON: {e}") from None
    if not isinstance(body, Mapping):
        raise ValueError("must be a mapping (a JSON object)")
    return dict(body)


def _names(value: Any) -> set[str]:
    if isinstance(value, str):
        return set(_PLACEHOLDER.findall(value))
    if isinstance(value, Mapping):
        return set().union(*map(_names, value.values()))
    return set().union(*map(_names, value)) if isinstance(value, list | tuple) else set()


def _fill(value: Any, values: dict[str, Any]) -> Any:
    """A copy with placeholders filled in; a value that is a placeholder for nothing is left out."""
    if isinstance(value, Mapping):
        filled = {key: _fill(item, values) for key, item in value.items()}
        return {key: item for key, item in filled.items() if item is not _ABSENT}
    if isinstance(value, list | tuple):
        return [item for item in (_fill(i, values) for i in value) if item is not _ABSENT]
    if not isinstance(value, str):
        return value
    whole = _PLACEHOLDER.fullmatch(value)
    if whole is not None:
        found = values[whole[1]]
        return _ABSENT if found is None else found
    return _PLACEHOLDER.sub(lambda m: _as_text(values[m[1]]), value)


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value).decode()


def _path(path: str | None) -> Callable[[Any], Any]:
    """A function that follows a path; it gives None where there is no such thing."""
    if path is None:
        return lambda _document: None
    steps = [int(step) if step.lstrip("-").isdigit() else step for step in path.split(".")]

    def follow(document: Any) -> Any:
        for step in steps:
            if isinstance(document, dict):
                document = document.get(str(step))
            elif isinstance(document, list) and isinstance(step, int):
                document = document[step] if -len(document) <= step < len(document) else None
            else:
                return None
        return document

    return follow


def _text(value: Any, path: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    raise ValueError(f"{path} is no text but {orjson.dumps(value)[:40].decode('utf-8', 'replace')}")
