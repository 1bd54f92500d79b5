"""The checked values that workload files are made of: whole numbers, durations, choices, sections.

Every mistake becomes a sentence a person can act on ("must be a whole number of at least 1, got
'many'"), and all mistakes of a section are collected, contradictions between keys included. This
module knows nothing about YAML, files or what the keys mean.

The one subtle rule: pydantic runs a model's own validators only when all its fields are right, so
contradictions are looked for in the raw mapping (`Section.contradictions`), where they are found
whatever else is wrong. A key that is null counts as not given.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeGuard

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ModelWrapValidatorHandler,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails

Problem = tuple[tuple[str | int, ...], str]
"""Where (keys and list positions below the section) and what."""

_UNITS = {"h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+)\s*(ms|min|us|µs|h|m|s)\s*")
_TEXTS = {
    "missing": "is required",
    "model_type": "must be a mapping of keys, got {got}",
    "dict_type": "must be a mapping of keys, got {got}",
    "list_type": "must be a list, got {got}",
    "tuple_type": "must be a list, got {got}",
    "string_type": "must be text, got {got}",
    "bool_type": "must be true or false, got {got}",
}


# ------------------------------------------------------------------------------- sentences


def show(value: object) -> str:
    """How a wrong value is quoted in a message: short, on one line, in the file's words."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping of keys"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def expected(word: str, allowed: Iterable[str]) -> str:
    """The tail of a message about an unknown word: what is allowed, and which was meant."""
    names = sorted(allowed)
    text = f"Expected one of: {', '.join(names)}."
    near = difflib.get_close_matches(word.lower(), [name.lower() for name in names], 1, 0.6)
    meant = [name for name in names if near and name.lower() == near[0]]
    return f"{text} Did you mean '{meant[0]}'?" if meant else text


# ---------------------------------------------------------------------------- checked values


def is_number(value: object) -> TypeGuard[float]:
    """True for a finite number; true and false are none."""
    return _number(value) is not None


def _number(value: object) -> float | None:
    """The value when it is a finite number (true and false are none), else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def _whole(minimum: int | None = None) -> Callable[[Any], int]:
    wanted = "a whole number" if minimum is None else f"a whole number of at least {minimum}"

    def check(value: Any) -> int:
        number = _number(value)
        if number is None or number != int(number) or (minimum is not None and number < minimum):
            raise ValueError(f"must be {wanted}, got {show(value)}")
        return int(number)

    return check


def _real(wanted: str, right: Callable[[float], bool]) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        number = _number(value)
        if number is None or not right(number):
            raise ValueError(f"must be {wanted}, got {show(value)}")
        return float(number)

    return check


def parse_duration(value: Any) -> float:
    """Seconds from "30s", "500ms", "1h30m" or a number of seconds; ValueError otherwise."""
    number = _number(value)
    if number is None and isinstance(value, str):
        text = value.strip()
        parts = list(_DURATION_PART.finditer(text))
        if parts and "".join(part.group() for part in parts) == text:
            number = math.fsum(float(part[1]) * _UNITS[part[2]] for part in parts)
    if number is None or not math.isfinite(number):
        raise ValueError(
            f"must be a duration such as 30s, 500ms or 1h30m (a number means seconds), "
            f"got {show(value)}"
        )
    return float(number)


def format_duration(seconds: float) -> str:
    """Text that parse_duration reads back as exactly the same number."""
    return f"{int(seconds)}s" if seconds == int(seconds) else f"{seconds!r}s"


def _duration(minimum_excluded: bool) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        seconds = parse_duration(value)
        if seconds < 0 or (minimum_excluded and seconds == 0):
            wanted = "longer than 0s" if minimum_excluded else "at least 0s"
            raise ValueError(f"must be {wanted}, got {show(value)}")
        return seconds

    return check


def _flag(value: Any) -> bool:
    known = {"yes": True, "on": True, "no": False, "off": False}
    found = known.get(value.lower(), value) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise ValueError(f"must be true or false, got {show(value)}")
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a text that is not empty, got {show(value)}")
    if "{{" in value:
        raise ValueError(f"holds an unrendered template, {show(value)}: fill it in first")
    if any(ord(char) < 32 for char in value):
        raise ValueError(f"must be one line without control characters, got {show(value)}")
    return value


def _prose(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, got {show(value)} (quote it)")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping of keys, got {show(value)}")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError("must hold only what JSON can say: no .nan, no .inf") from None
    return dict(value)


def one_of(what: str, *names: str) -> PlainValidator:
    """A validator for a closed set of words; `what` names the kind of thing in the message."""

    def check(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(
                f"must be the name of a {what}, got {show(value)}. {expected('', names)}"
            )
        if value not in names:
            raise ValueError(f"unknown {what} {show(value)}. {expected(value, names)}")
        return value

    return PlainValidator(check)


def as_tuple(value: Any) -> tuple[Any, ...]:
    """A YAML list as the tuple that a frozen model keeps."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a list, got {show(value)}")
    return tuple(value)


Integer = Annotated[int, PlainValidator(_whole())]
Natural = Annotated[int, PlainValidator(_whole(0))]
Count = Annotated[int, PlainValidator(_whole(1))]
Real = Annotated[float, PlainValidator(_real("a number", lambda _: True))]
Positive = Annotated[float, PlainValidator(_real("a number above 0", lambda x: x > 0))]
NotNegative = Annotated[float, PlainValidator(_real("a number of at least 0", lambda x: x >= 0))]
Share = Annotated[float, PlainValidator(_real("a share from 0 to 1", lambda x: 0 <= x <= 1))]
Duration = Annotated[float, PlainValidator(_duration(True)), PlainSerializer(format_duration)]
Pause = Annotated[float, PlainValidator(_duration(False)), PlainSerializer(format_duration)]
Flag = Annotated[bool, PlainValidator(_flag)]
Text = Annotated[str, PlainValidator(_text)]
Prose = Annotated[str, PlainValidator(_prose)]
Table = Annotated[dict[str, Any], PlainValidator(_mapping)]
ListOf = BeforeValidator(as_tuple)


# -------------------------------------------------------------------------------- sections


class Section(BaseModel):
    """A mapping of known keys; wrong, unknown and contradicting ones are all reported."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", protected_namespaces=())

    @classmethod
    def complete(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Fill in defaults that depend on other keys; `raw` is a copy and may be changed."""
        return raw

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Yield what is wrong between keys; `raw` has no null values and nothing is checked yet."""
        yield from ()

    @classmethod
    def allowed(cls) -> list[str]:
        """The keys as they are written in a file."""
        return [info.alias or name for name, info in cls.model_fields.items()]

    @model_validator(mode="wrap")
    @classmethod
    def _all_problems(cls, value: Any, handler: ModelWrapValidatorHandler[Section]) -> Section:
        problems: list[Problem] = []
        if isinstance(value, Mapping):
            value = cls.complete(dict(value))
            known = {k: v for k, v in value.items() if v is not None}
            problems += cls.contradictions(known)
            value = known | {k: None for k in value if k not in cls.allowed()}
        try:
            section = handler(value)
        except ValidationError as error:
            # Where a contradiction was found at the same place, it explains more.
            places = {place for place, _ in problems}
            found = problems_of(error, cls.allowed())
            problems += [problem for problem in found if problem[0] not in places]
        if problems:
            raise failure(problems)
        return section


def problems_of(error: ValidationError, allowed: Iterable[str] = ()) -> list[Problem]:
    """A pydantic error as problems in our words; `allowed` are the keys of the section itself."""
    return [(detail["loc"], _sentence(dict(detail), allowed)) for detail in error.errors()]


def failure(problems: Iterable[Problem]) -> ValidationError:
    """Problems as the pydantic error that an enclosing section collects, places kept."""
    details: list[InitErrorDetails] = [
        {"type": "value_error", "loc": place, "input": None, "ctx": {"error": text}}
        for place, text in problems
    ]
    return ValidationError.from_exception_data("workload", details)


def below(key: str | int, error: ValidationError) -> ValidationError:
    """The same problems, one key deeper."""
    return failure(((key, *place), text) for place, text in problems_of(error))


def _sentence(detail: dict[str, Any], allowed: Iterable[str]) -> str:
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    if detail["type"] == "extra_forbidden":
        key = str(detail["loc"][-1])
        return f"unknown key {show(key)}. {expected(key, allowed)}"
    template = _TEXTS.get(detail["type"])
    return template.format(got=show(detail["input"])) if template else str(detail["msg"])
