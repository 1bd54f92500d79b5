"""Traces of real traffic: when requests came and how long they were, from CSV or JSON lines.

Known are the columns of the Azure LLM inference traces, BurstGPT, Mooncake, Qwen's Bailian traces
and a plain form of our own (`FORMATS`; a new one is a row there). Times come out as seconds since
the first request. This module knows nothing about arrivals or prompts, which both use it: row i
is request i for both.

The one subtle rule: rows without any token (BurstGPT keeps failed requests so) are left out, with
one warning that counts them; every other odd value is an error with its line.
"""

from __future__ import annotations

import csv
import itertools
import json
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokenswarm.records import BadInput

Row = tuple[float, int | None, int | None]
"""(seconds since the first request, input tokens, output tokens)."""

_MOST_PROBLEMS = 20
_log = logging.getLogger(__name__)


def _seconds(value: Any) -> float:
    return float(value)


def _milliseconds(value: Any) -> float:
    return float(value) / 1000


def _clock(value: Any) -> float:
    """A date and time, taken as UTC when it does not say; or seconds."""
    try:
        return float(value)
    except ValueError:
        then = datetime.fromisoformat(str(value))
        return (then if then.tzinfo else then.replace(tzinfo=UTC)).timestamp()


@dataclass(frozen=True, slots=True)
class Format:
    """Which columns of a trace mean what; also names a column that only this kind has."""

    name: str
    time: str
    read_time: Callable[[Any], float]
    input: str
    output: str
    also: str | None = None

    def fits(self, columns: set[str]) -> bool:
        """True when all columns of this kind are there."""
        return {self.time, self.input, self.output, self.also or self.time} <= columns


FORMATS = (
    Format("Azure", "TIMESTAMP", _clock, "ContextTokens", "GeneratedTokens"),
    Format("BurstGPT", "Timestamp", _seconds, "Request tokens", "Response tokens"),
    Format("Bailian", "timestamp", _seconds, "input_length", "output_length", also="chat_id"),
    Format("Mooncake", "timestamp", _milliseconds, "input_length", "output_length"),
    Format("plain", "time_s", _seconds, "input_tokens", "output_tokens"),
    Format("times only", "time_s", _seconds, "time_s", "time_s"),
)


def read_trace(path: str | Path) -> list[Row]:
    """The rows of a trace, in order of time.

    Raises BadInput with file:line for everything that cannot be used.
    """
    file = Path(path)
    kind: Format | None = None
    rows: list[Row] = []
    problems: list[str] = []
    without_tokens = 0
    for line, columns in _records(file):
        if kind is None:
            kind = _kind(file, line, set(columns))
        try:
            row = _row(kind, columns)
        except ValueError as error:
            problems.append(f"{file}:{line}: {error}")
            if len(problems) >= _MOST_PROBLEMS:
                problems.append(f"{file}: reading stopped after {_MOST_PROBLEMS} mistakes")
                break
            continue
        if 0 in row[1:]:
            without_tokens += 1
        else:
            rows.append(row)
    if problems:
        raise BadInput(*problems)
    if not rows:
        raise BadInput(f"{file}: has no requests; a trace needs a line for each. {_expected()}")
    if without_tokens:
        _log.warning(
            "%s: %d of %d requests have no tokens (failed ones are kept so) and are left out",
            file,
            without_tokens,
            without_tokens + len(rows),
        )
    rows.sort(key=lambda row: row[0])
    start = rows[0][0]
    return [(time - start, inputs, outputs) for time, inputs, outputs in rows]


def _records(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, columns) of every filled line of a CSV or JSON-lines file."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            numbered = enumerate(text, 1)
            filled = ((number, line) for number, line in numbered if line.strip())
            first = next(filled, None)
            if first is None:
                raise BadInput(f"{file}: is empty. {_expected()}")
            if first[1].lstrip().startswith("{"):
                yield from _json_lines(file, itertools.chain([first], filled))
            else:
                yield from _csv_lines(file, first, filled)
    except OSError as error:
        raise BadInput(f"{file}: cannot read the trace: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{file}: is not UTF-8 text (byte offset {error.start})") from None


def _json_lines(
    file: Path, lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in lines:
        try:
            columns = json.loads(line)
        except json.JSONDecodeError as error:
            raise BadInput(f"{file}:{number}: is not JSON: {error.msg}") from None
        if not isinstance(columns, dict):
            raise BadInput(f"{file}:{number}: must be a JSON object, one a line")
        yield number, columns


def _csv_lines(
    file: Path, first: tuple[int, str], lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, dict[str, Any]]]:
    names = [name.strip() for name in next(csv.reader([first[1]]))]
    for number, line in lines:
        cells = next(csv.reader([line]))
        if len(cells) != len(names):
            raise BadInput(
                f"{file}:{number}: has {len(cells)} columns, the heading has {len(names)}"
            )
        yield number, dict(zip(names, cells, strict=True))


def _kind(file: Path, line: int, columns: set[str]) -> Format:
    for kind in FORMATS:
        if kind.fits(columns):
            return kind
    found = ", ".join(sorted(columns)[:12])
    raise BadInput(f"{file}:{line}: not a known trace: has the columns {found}. {_expected()}")


def _expected() -> str:
    kinds = "; ".join(f"{f.time}, {f.input}, {f.output} ({f.name})" for f in FORMATS[:-1])
    return f"Expected the columns {kinds}; or time_s alone."


def _row(kind: Format, columns: dict[str, Any]) -> Row:
    raw = columns.get(kind.time)
    try:
        time = kind.read_time(raw)
    except (TypeError, ValueError):
        raise ValueError(f"column '{kind.time}': must be a time, got {raw!r}") from None
    if not math.isfinite(time):
        raise ValueError(f"column '{kind.time}': must be a time, got {raw!r}")
    if kind.input == kind.time:
        return time, None, None
    return time, _tokens(kind.input, columns), _tokens(kind.output, columns)


def _tokens(name: str, columns: dict[str, Any]) -> int:
    raw = columns.get(name)
    try:
        number = float(raw)  # type: ignore[arg-type]  # None and lists are the TypeError below
        whole = int(number)
    except (TypeError, ValueError, OverflowError):
        whole, number = -1, 0.0
    if whole != number or whole < 0:
        raise ValueError(f"column '{name}': must be a whole number of tokens, got {raw!r}")
    return whole
