"""Load over time: how many users, or arrivals per second, a stage wants t seconds after its start.

A shape is a small frozen section with four functions of time:

    rate(t)         the level at t: arrivals per second (open loop) or users (closed loop)
    cumulative(t)   its integral from 0 to t: the arrivals expected by t
    reach(n, after) the first time, not before `after`, at which cumulative is n; inf when never
    highest(end)    the highest level from 0 to end

To add one: write the section, put it into SHAPES. `reach = solve` does for any shape. Shapes know
nothing about stages, arrival processes or clocks; after its last change a shape stays level, so it
also serves stages that end by a number of requests.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import Field, PlainSerializer, PlainValidator, PrivateAttr, ValidationError

from tokenswarm import spec
from tokenswarm.spec import Duration, ListOf, NotNegative, Pause, Positive, Problem, Real, Section

FOREVER_S = 1e9
"""Longer than any run: what a shape has not reached by then it never reaches."""

_MOST_POINTS = 10_000


class Shape(Protocol):
    """What arrivals and users need of a shape."""

    def rate(self, t: float) -> float:
        """Level at t seconds."""

    def cumulative(self, t: float) -> float:
        """Integral of rate from 0 to t seconds."""

    def reach(self, n: float, after: float = 0.0) -> float:
        """When cumulative is n, in seconds."""

    def highest(self, end: float) -> float:
        """Highest level up to end seconds."""


def solve(shape: Shape, n: float, after: float = 0.0) -> float:
    """The first time, not before `after`, at which shape.cumulative is n; inf when never.

    A few steps of Newton's method, since the arrival before is near; where they do not settle (a
    corner, a level of 0), Newton kept inside a bracket, with bisection where it leaves that. Exact
    to 0.1 ns or to the float's last digits.
    """
    t = after
    for _ in range(6):
        rate = shape.rate(t)
        if rate <= 0:
            break
        step = (n - shape.cumulative(t)) / rate
        t = max(after, t + step)
        if -1e-10 < step < 1e-10:
            return t
    return _bracketed(shape, n, after)


def _bracketed(shape: Shape, n: float, after: float) -> float:
    low, high = after, after + 1.0
    while shape.cumulative(high) < n:
        low, high = high, 2 * high
        if high > FOREVER_S:
            return math.inf
    t = low
    for _ in range(200):
        missing = n - shape.cumulative(t)
        low, high = (t, high) if missing > 0 else (low, t)
        if high - low <= max(1e-10, 4 * math.ulp(high)):
            break
        rate = shape.rate(t)
        step = t + missing / rate if rate > 0 else math.inf
        if step == t:
            break
        t = step if low <= step <= high else (low + high) / 2
    return t


class Steady(Section):
    """`steady`: the stage's own users or rate_per_s, or `{steady: {level: 20}}`.

    rate
      |────────────────  level
      └───────────────> t
    """

    level: Positive

    def rate(self, t: float) -> float:
        """`level`."""
        return self.level

    def cumulative(self, t: float) -> float:
        """`level` t."""
        return self.level * t

    def reach(self, n: float, after: float = 0.0) -> float:
        """n / `level`, exactly."""
        return max(after, n / self.level)

    def highest(self, end: float) -> float:
        """`level`."""
        return self.level


class Ramp(Section):
    """`{ramp: {from: 1, to: 20, over: 60s}}`: a straight line, over the stage if not said.

    rate     to ____
      |     ／         rate(t) = from + (to - from) t / over,  then `to`
      |  ／            cumulative(t) = from t + (to - from) t^2 / (2 over)
      └──────┬──> t
            over
    """

    start: NotNegative = Field(alias="from")
    to: NotNegative
    over: Duration

    reach = solve

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Refuse a ramp from nothing to nothing."""
        if raw.get("from") == 0 and raw.get("to") == 0:
            yield ("to",), "must be above 0 when from is 0"

    def rate(self, t: float) -> float:
        """See the class."""
        return self.start + (self.to - self.start) * min(t / self.over, 1.0)

    def cumulative(self, t: float) -> float:
        """See the class."""
        u = min(t, self.over)
        rising = self.start * u + (self.to - self.start) * u * u / (2 * self.over)
        return rising + self.to * (t - u)

    def highest(self, end: float) -> float:
        """One of the ends."""
        return max(self.start, self.rate(end))


class Steps(Section):
    """`{steps: {levels: [5, 10, 20], every: 30s}}`: a staircase; `every`: equal parts of the stage.

    rate         ┌────  levels[2]
      |     ┌────┘
      |─────┘           the last level stays
      └─────┬────┬───> t
          every 2 every
    """

    levels: Annotated[tuple[NotNegative, ...], ListOf, Field(min_length=1)]
    every: Duration

    reach = solve

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Refuse a staircase on the ground."""
        levels = raw.get("levels")
        if isinstance(levels, list | tuple) and not any(level != 0 for level in levels):
            yield ("levels",), "must have at least one level above 0"

    def rate(self, t: float) -> float:
        """The level of the step that t is on."""
        return self.levels[min(int(t / self.every), len(self.levels) - 1)]

    def cumulative(self, t: float) -> float:
        """Whole steps before t, and the part of the step that t is on."""
        step = min(int(t / self.every), len(self.levels) - 1)
        return sum(self.levels[:step]) * self.every + self.levels[step] * (t - step * self.every)

    def highest(self, end: float) -> float:
        """Of the steps that are reached."""
        return max(self.levels[: max(1, math.ceil(end / self.every))])


class Spike(Section):
    """`{spike: {base: 5, peak: 50, at: 30s, for: 10s}}`: `base` is the stage's level if not given.

    rate      ┌──┐  peak
      |       |  |
      |───────┘  └─────  base
      └───────┬──┬────> t
              at at + for
    """

    base: NotNegative
    peak: Positive
    at: Pause
    length: Duration = Field(alias="for")

    reach = solve

    def rate(self, t: float) -> float:
        """`peak` from `at` until `at + for`, else `base`."""
        return self.peak if self.at <= t < self.at + self.length else self.base

    def cumulative(self, t: float) -> float:
        """`base` t, and what the part of the spike before t adds."""
        return self.base * t + (self.peak - self.base) * min(max(t - self.at, 0.0), self.length)

    def highest(self, end: float) -> float:
        """The peak, when it is reached."""
        return max(self.base, self.peak if self.at < end else 0.0)


class Sine(Section):
    """`{sine: {mean: 20, amplitude: 10, period: 5m, phase: 0}}`: day and night, in small.

    rate   .-.       .-     rate(t) = mean + amplitude sin(2 pi (t / period + phase))
      |  /     \\     /      phase is in periods: 0 starts at the mean and rises,
      |─┼───────┼───┼─ mean       0.75 starts at the lowest point
      |          `-´        cumulative(t) = mean t + amplitude period / (2 pi)
      └───────────────> t     (cos(2 pi phase) - cos(2 pi (t / period + phase)))
    """

    mean: Positive
    amplitude: NotNegative
    period: Duration
    phase: Real = 0.0

    reach = solve

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Refuse a level that would fall below 0."""
        mean, amplitude = raw.get("mean"), raw.get("amplitude")
        if spec.is_number(mean) and spec.is_number(amplitude) and amplitude > mean > 0:
            yield ("amplitude",), f"must not be above mean ({mean}): the level would be negative"

    def rate(self, t: float) -> float:
        """See the class."""
        return self.mean + self.amplitude * math.sin(math.tau * (t / self.period + self.phase))

    def cumulative(self, t: float) -> float:
        """See the class."""
        start, now = math.tau * self.phase, math.tau * (t / self.period + self.phase)
        swing = math.cos(start) - math.cos(now)
        return self.mean * t + self.amplitude * self.period / math.tau * swing

    def highest(self, end: float) -> float:
        """The crest, reached or not."""
        return self.mean + self.amplitude


class Series(Section):
    """`{series: {file: load.csv}}` or `{series: {points: [[0, 5], [60s, 20]]}}`: any curve.

    Rows of time and level; straight lines between them (`interpolate: linear`) or the level of the
    last row (`interpolate: step`); level before the first row and after the last. A file is CSV
    with or without a heading row, or JSON lines of pairs; it is read once, into `points`.
    """

    points: Annotated[
        tuple[tuple[float, float], ...],
        PlainValidator(lambda value: _points(value)),
        PlainSerializer(lambda points: [list(point) for point in points]),
    ]
    interpolate: Annotated[str, spec.one_of("interpolation", "linear", "step")] = "linear"
    _areas: tuple[float, ...] = PrivateAttr()

    reach = solve

    @classmethod
    def allowed(cls) -> list[str]:
        """What may be written: a file in place of points too."""
        return ["file", *super().allowed()]

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Refuse a file beside points."""
        if "file" in raw:
            both = raw.get("points") is not None
            yield ("file",), "cannot stand beside points" if both else "must be a file name"

    @classmethod
    def complete(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Read the file, if one is named, in place of the points."""
        if isinstance(raw.get("file"), str) and raw.get("points") is None:
            raw["points"] = raw.pop("file")
        return raw

    def rate(self, t: float) -> float:
        """The level at t, between the two rows around it."""
        after = bisect.bisect_right(self.points, (t, math.inf))
        if after == 0:
            return self.points[0][1]
        (t0, level0), (t1, level1) = (
            self.points[after - 1],
            self.points[min(after, len(self.points) - 1)],
        )
        if self.interpolate == "step" or t1 == t0:
            return level0
        return level0 + (level1 - level0) * (t - t0) / (t1 - t0)

    def cumulative(self, t: float) -> float:
        """Area before the row that t follows, and the trapezium from there to t."""
        after = bisect.bisect_right(self.points, (t, math.inf))
        if after == 0:
            return self.points[0][1] * t
        t0, level0 = self.points[after - 1]
        return self._areas[after - 1] + (level0 + self.rate(t)) / 2 * (t - t0)

    def highest(self, end: float) -> float:
        """Of the rows that are reached, and at the end."""
        reached = [level for t, level in self.points if t <= end]
        return max([self.rate(0.0), *reached, self.rate(end)])

    def model_post_init(self, context: Any) -> None:
        """Add up the areas once: cumulative() is called for every arrival."""
        step = self.interpolate == "step"
        areas = (
            (a if step else (a + b) / 2) * (t1 - t0)
            for (t0, a), (t1, b) in itertools.pairwise(self.points)
        )
        t, level = self.points[0]
        self._areas = tuple(itertools.accumulate(areas, initial=t * level))


SHAPES: dict[str, type[Steady | Ramp | Steps | Spike | Sine | Series]] = {
    "steady": Steady,
    "ramp": Ramp,
    "steps": Steps,
    "spike": Spike,
    "sine": Sine,
    "series": Series,
}

LEVEL_KEYS = {"steady": "level", "spike": "base", "sine": "mean"}
"""Which key of a shape the stage's own users or rate_per_s stands for."""


def parse(value: Any, *, seconds: float | None = None, level: float | None = None) -> Shape:
    """A shape from its words in a file: `ramp: {...}`, or a name alone.

    seconds is the stage's duration and level its users or rate_per_s, which fill what is not
    written. Raises ValueError, or the ValidationError that names the keys below `value`.
    """
    value = {value: None} if isinstance(value, str) else value
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ValueError(
            f"must be one shape such as {{ramp: {{from: 1, to: 20}}}}, got "
            f"{spec.show(value)}. {spec.expected('', SHAPES)}"
        )
    ((name, given),) = value.items()
    if name not in SHAPES:
        known = spec.expected(str(name), SHAPES)
        raise spec.failure([((name,), f"unknown shape {spec.show(name)}. {known}")])
    keys = {} if given is None else given
    if isinstance(keys, Mapping):
        keys = _filled(name, dict(keys), seconds, level)
    try:
        return SHAPES[name].model_validate(keys)
    except ValidationError as error:
        raise spec.below(name, error) from None


def written(shape: Shape) -> dict[str, Any]:
    """A shape as it is written in a file; parse() reads the same shape back."""
    (name,) = (name for name, kind in SHAPES.items() if isinstance(shape, kind))
    assert isinstance(shape, Section)
    return {name: shape.model_dump(mode="json", by_alias=True)}


def _filled(
    name: str, keys: dict[str, Any], seconds: float | None, level: float | None
) -> dict[str, Any]:
    """The keys of a shape with what the stage says put in where nothing is written."""
    own = LEVEL_KEYS.get(name)
    if level is not None and own and keys.get(own) is None:
        keys[own] = level
    if seconds is not None and name == "ramp" and keys.get("over") is None:
        keys["over"] = seconds
    levels = keys.get("levels")
    if seconds is not None and name == "steps" and keys.get("every") is None and levels:
        keys["every"] = seconds / len(levels) if isinstance(levels, list | tuple) else None
    return keys


def _points(value: Any) -> tuple[tuple[float, float], ...]:
    named = _read(Path(value)) if isinstance(value, str) else _numbered(value)
    if len(named) > _MOST_POINTS:
        raise ValueError(f"has {len(named)} rows, at most {_MOST_POINTS} are allowed: thin it out")
    points: list[tuple[float, float]] = []
    problems: list[Problem] = []
    for place, row in named:
        try:
            points.append(_point(row, points[-1][0] if points else 0.0))
        except ValueError as error:
            problems.append(((place,), str(error)))
    if problems and isinstance(value, str):
        raise ValueError("; ".join(f"{value}:{place[0]}: {text}" for place, text in problems[:5]))
    if problems:
        raise spec.failure(problems)
    if not any(level for _, level in points):
        raise ValueError("must have at least one row with a level above 0")
    return tuple(points)


def _numbered(value: Any) -> list[tuple[int, Any]]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a list of [time, level] pairs, got {spec.show(value)}")
    return list(enumerate(value))


def _point(row: Any, after: float) -> tuple[float, float]:
    if not isinstance(row, list | tuple) or len(row) != 2:
        raise ValueError(f"must be a pair [time, level], got {spec.show(row)}")
    t = spec.parse_duration(row[0])
    if t < after:
        raise ValueError(f"times must not go back, got {t:g} s after {after:g} s")
    if not spec.is_number(row[1]) or row[1] < 0:
        raise ValueError(f"the level must be a number of at least 0, got {spec.show(row[1])}")
    return t, float(row[1])


def _read(path: Path) -> list[tuple[int, Any]]:
    """(line, row) of a series file: CSV with or without a heading, or JSON arrays, one a line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or no file's name
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{spec.show(str(path))} cannot be read: {reason}") from None
    rows = [
        (number, _cells(line))
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if rows and all(isinstance(cell, str) and cell[:1].isalpha() for cell in rows[0][1]):
        rows = rows[1:]
    if not rows:
        raise ValueError(f"{path} has no rows: expected time in seconds and level in each line")
    return rows


def _cells(line: str) -> list[Any]:
    if line.lstrip().startswith("["):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = [line]
        return row if isinstance(row, list) else [row]
    return [_cell(cell.strip()) for cell in line.replace(";", ",").replace("\t", ",").split(",")]


def _cell(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text
