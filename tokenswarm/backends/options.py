"""backend.options of a workload, checked against what a protocol knows.

It knows names and types, nothing of protocols. The one subtle rule: an option that a protocol does
not have is refused, because a mistyped one would silently send another request than was meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenswarm.records import BadInput

_WORDS = {str: "text", bool: "true or false", int: "a whole number", dict: "a mapping or JSON text"}


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its type, what it is when not given, and what it does."""

    kind: type
    default: Any
    about: str


def read(workload: Any, known: Mapping[str, Option]) -> dict[str, Any]:
    """Every known option with its value. Raises BadInput that names all mistakes at once."""
    given: dict[str, Any] = dict(workload.backend.options)
    problems = [
        problem
        for name, value in given.items()
        if (problem := _problem(workload.backend.kind, name, value, known)) is not None
    ]
    if problems:
        raise BadInput(*problems)
    values = {name: option.default for name, option in known.items()}
    values.update((name, value) for name, value in given.items() if value is not None)
    return values


def _problem(kind: str, name: str, value: Any, known: Mapping[str, Option]) -> str | None:
    where = f"backend.options.{name}"
    option = known.get(name)
    if option is None:
        if not known:
            return f"{where}: backend.kind '{kind}' has no options; leave it out"
        near = difflib.get_close_matches(name, known, 1)
        meant = f" Did you mean '{near[0]}'?" if near else ""
        expected = ", ".join(sorted(known))
        return f"{where}: no option of backend.kind '{kind}'. Expected one of: {expected}.{meant}"
    if value is None:
        return None
    allowed = (dict, str) if option.kind is dict else option.kind
    is_right = isinstance(value, allowed) and not (option.kind is int and value is True)
    if is_right and not (isinstance(value, str) and not value.strip()):
        return None
    return f"{where}: must be {_WORDS[option.kind]} ({option.about}), got {value!r}"
