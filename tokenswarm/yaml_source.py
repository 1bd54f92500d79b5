"""YAML text with its lines kept: plain data in, and for every key path the line it stands on.

It knows nothing about workloads; studies and engine files read the same way. Only what JSON can
say is accepted (mappings with text keys, lists, text, numbers, true, false, null), as the core
schema of YAML 1.2 reads it: `1e3` is a number, `010` is ten, `on` is text, dates are text.

Rules worth knowing: a key written twice is a mistake, not the last one's win; aliases and merges
work, but what they unfold to is counted, so that a few lines cannot become millions of values;
tags are refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tokenswarm.records import BadInput
from tokenswarm.spec import show

KeyPath = tuple[str | int, ...]

_MOST_BYTES = 4_000_000
_MOST_NODES = 200_000
_MOST_DEPTH = 60
_LONGEST_KEY = 60  # characters of a key in a message
_INTEGER = re.compile(r"[-+]?\d+|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", "+.inf", ".Inf", ".INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_TAG = "tag:yaml.org,2002:"
_RESOLVER = yaml.resolver.Resolver()


@dataclass(slots=True)
class Source:
    """Data of a YAML text, with the name and lines to quote in messages.

    settings: paths that were set on the command line, with the words that set them.
    """

    name: str
    data: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)
    settings: dict[KeyPath, str] = field(default_factory=dict)

    def place(self, path: KeyPath) -> str:
        """Where a value came from: `--set a.b=1` or `file:line` of it or of what is around it."""
        related = [p for p in self.settings if path[: len(p)] == p]
        if not related and path and path not in self.lines:  # a section that a setting made
            related = [p for p in self.settings if p[: len(path)] == path]
        if related:
            return f"--set {self.settings[max(related, key=len)]}"
        return f"{self.name}:{self.line(path)}"

    def line(self, path: KeyPath) -> int:
        """The line of a value, or of the closest thing around it that has one."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1

    def problem(self, path: KeyPath, text: str) -> str:
        """A message about a value: where, which key, what."""
        key = dotted(path)
        return f"{self.place(path)}: {key}: {text}" if key else f"{self.place(path)}: {text}"


def dotted(path: Sequence[str | int]) -> str:
    """A path as it is named in messages; a key as long as a page is cut."""
    keys = map(str, path)
    return ".".join(k if len(k) <= _LONGEST_KEY else f"{k[:_LONGEST_KEY]}..." for k in keys)


def read(path: str | Path, what: str = "workload") -> str:
    """The text of a file; BadInput says why it cannot be had."""
    file = Path(path)
    try:
        if file.is_dir():
            raise BadInput(f"{file}: is a folder; a {what} is one YAML file")
        if file.stat().st_size > _MOST_BYTES:
            raise BadInput(f"{file}: is too large for a {what} (over {_MOST_BYTES // 10**6} MB)")
        raw = file.read_bytes()
    except FileNotFoundError:
        raise BadInput(f"{file}: no such file") from None
    except OSError as error:
        raise BadInput(f"{file}: cannot be read: {error.strerror or error}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadInput(
            f"{file}:{line}: is not UTF-8 text (byte 0x{raw[error.start]:02x}): save it as UTF-8"
        ) from None


def parse(text: str, name: str, what: str = "workload") -> Source:
    """Data and lines of a YAML (or JSON) text that holds one mapping; BadInput otherwise."""
    node = _compose(text, name, what)
    if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
        raise BadInput(f"{name}: is empty; a {what} is a mapping of keys")
    if not isinstance(node, yaml.MappingNode):
        got = "a list" if isinstance(node, yaml.SequenceNode) else "one value"
        raise BadInput(f"{name}:{_line(node)}: must be a mapping of keys, got {got}")
    builder = _Builder(name)
    data = builder.value(node, ())
    if builder.problems:
        raise BadInput(*builder.problems)
    return Source(name, data, builder.lines)


def scalar(text: str) -> Any:
    """What a plain scalar means in the core schema of YAML 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text) and len(text) < 1000:
        return int(text, 0) if text[:2].lower() in ("0x", "0o") else int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _compose(text: str, name: str, what: str) -> yaml.Node | None:
    if text.lstrip()[:1] == "{" and "\t" in text and _is_json(text):
        text = text.replace("\t", " ")  # JSON may be indented with tabs, YAML may not
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise BadInput(_syntax(name, text, error)) from None
    except yaml.YAMLError as error:
        raise BadInput(f"{name}: is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise BadInput(f"{name}: is nested too deeply for a {what}") from None


def value_of(text: str) -> Any:
    """A value given on the command line, as YAML reads it; a bare `>5` is text there."""
    if text[:1] == ">":
        return text
    node = _compose(text, "value", "value")
    builder = _Builder("value")
    value = None if node is None else builder.value(node, ())
    if builder.problems:
        raise BadInput(*builder.problems)
    return value


def apply(source: Source, settings: Sequence[str]) -> None:
    """Put `key.path=value` settings into the data, in order; BadInput names those that cannot be.

    List items are addressed by position, one past the end adds an item; keys that hold dots are
    quoted: slo."p99.9(ttft)"=<2s. What may be set is for the caller to check.
    """
    problems = []
    for setting in settings:
        try:
            words, value = _setting(setting)
            path = _put(source.data, words, value)
        except (ValueError, BadInput) as error:
            problems.append(f"--set {_named(setting)}: {error}")
            continue
        for known in [p for p in source.settings if p[: len(path)] == path]:
            del source.settings[known]
        source.settings[path] = _named(setting)
    if problems:
        raise BadInput(*problems)


def _named(setting: str) -> str:
    """A setting as messages quote it: what may be a secret is not repeated."""
    key, equals, _ = setting.partition("=")
    secret = re.search(r"(?i)key(?!_env)|token$|secret|password|authorization", key)
    return f"{key}=..." if equals and secret else setting


def _setting(setting: str) -> tuple[list[str], Any]:
    key, equals, text = setting.partition("=")
    parts = re.findall(r"\"([^\"]*)\"|'([^']*)'|([^.]+)", key.strip())
    words = [double or single or plain for double, single, plain in parts]
    if not equals or not words:
        raise ValueError("must be key.path=value, such as load.users=8")
    return words, value_of(text.strip())


def _put(data: Any, words: list[str], value: Any) -> KeyPath:
    """Set a value, making the sections on the way; returns its path with positions as numbers."""
    here = data
    path: list[str | int] = []
    for word in words[:-1]:
        key = _key(here, word, path)
        present = (
            here.get(key) if isinstance(here, dict) else here[key] if key < len(here) else None
        )
        if present is None:
            present = [] if key == "stages" else {}
            _assign(here, key, present)
        here = present
        path.append(key)
    key = _key(here, words[-1], path)
    _assign(here, key, value)
    return (*path, key)


def _key(here: Any, word: str, path: Sequence[str | int]) -> Any:
    name = dotted(path)
    if isinstance(here, dict):
        return word
    if not isinstance(here, list):
        raise ValueError(f"{name} is {show(here)}, not a section with keys")
    if not word.isdecimal() or int(word) > len(here):
        raise ValueError(
            f"{name} is a list of {len(here)} items, counted from 0: there is no '{word}'"
        )
    return int(word)


def _assign(here: Any, key: Any, value: Any) -> None:
    if isinstance(here, list) and key == len(here):
        here.append(value)
    else:
        here[key] = value


class _Builder:
    """Turns nodes into data, noting lines and mistakes on the way."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[str] = []
        self._nodes = 0

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._nodes += 1
        if self._nodes > _MOST_NODES or len(path) > _MOST_DEPTH:
            raise BadInput(
                f"{self.name}:{_line(node)}: unfolds to too many values "
                f"(over {_MOST_NODES}, or {_MOST_DEPTH} deep): are aliases nested in aliases?"
            )
        self.lines.setdefault(path, _line(node))
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            plain = node.style is None
            implicit = _RESOLVER.resolve(  # type: ignore[no-untyped-call]
                yaml.ScalarNode, node.value, (plain, not plain)
            )
            if node.tag == implicit and plain:
                return scalar(node.value)
            if node.tag == _TAG + "str":
                return self._text(node, path)
        tag = node.tag.replace(_TAG, "!!")
        return self._wrong(node, path, f"the tag {tag} is not allowed: write the plain value")

    def _text(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        """A quoted text; JSON writes characters outside the basic plane as two escapes."""
        text = str(node.value)
        try:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            return self._wrong(node, path, "holds half of a surrogate pair, which is no character")

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        seen: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._wrong(key, path, "a key must be text; is this an unrendered {{ template }}?")
                continue
            name = key.value
            if key.tag == _TAG + "merge":
                for source in self._sources(value, path):
                    merged = {**source, **merged}
                continue
            if name in seen:
                self._wrong(key, (*path, name), f"is written twice, first in line {seen[name]}")
                continue
            seen[name] = self.lines[(*path, name)] = _line(key)
            data[name] = self.value(value, (*path, name))
        return {**merged, **data}

    def _sources(self, node: yaml.Node, path: KeyPath) -> Iterator[dict[str, Any]]:
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if isinstance(source, yaml.MappingNode):
                yield self._mapping_at(source, path)
            else:
                self._wrong(source, path, "only a mapping can be merged with <<")

    def _mapping_at(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = self.value(node, path)
        return data

    def _wrong(self, node: yaml.Node, path: KeyPath, text: str) -> Any:
        key = dotted(path)
        self.problems.append(f"{self.name}:{_line(node)}: {f'{key}: ' if key else ''}{text}")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _syntax(name: str, text: str, error: yaml.MarkedYAMLError) -> str:
    """A YAML error in one line, with the usual causes said."""
    mark = error.problem_mark or error.context_mark
    number = mark.line + 1 if mark else 1
    lines = text.splitlines()
    line = lines[number - 1] if number <= len(lines) else ""
    problem = " ".join(str(error.problem or error.context or error).split())
    hint = ""
    if "\t" in line[: len(line) - len(line.lstrip())] or "'\\t'" in problem:
        hint = "; indent with spaces, not tabs"
    elif re.search(r":\s+>[^\s|]", line):
        hint = "; quote a value that begins with '>'"
    elif "{{" in line:
        hint = "; is this an unrendered {{ template }}?"
    elif "single document" in str(error.context):
        hint, problem = "", "holds more than one document: a file is one"
    return f"{name}:{number}: is not YAML: {problem}{hint}"
