"""Axes: from values to places on paper, and which ticks a person wants to see.

It knows nothing about SVG. The one subtle rule: an axis always has some extent, even when all
values are equal or there are none, so that a picture of a dull run is dull and not broken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exporters.quantities import alike, clock, missing, number, show

_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600,
               43200, 86400, 172800, 604800)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Axis:
    """What one direction of a picture means.

    unit as in quantities.UNITS; kind: linear, log, or percentile (values are shares in [0, 1),
    drawn so that 90, 99 and 99.9 % are equally far apart). low and high fix an end.
    """

    label: str
    unit: str = ""
    kind: str = "linear"
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis with its extent in values and on paper."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Where a value is; values outside the extent are at its end."""
        a, b, v = (_bend(self.axis.kind, x) for x in (self.low, self.high, value))
        share = min(1.0, max(0.0, (v - a) / (b - a)))
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Values to mark, with their labels."""
        if self.axis.kind == "percentile":
            shares = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)
            return [(m, number(m * 100)) for m in shares if m <= self.high * 1.0000001]
        if self.axis.kind == "log":
            marks = _log_ticks(self.low, self.high)
            texts = [show(v, self.axis.unit) for v in marks]
            if len(set(texts)) < len(texts):
                texts = alike(marks, self.axis.unit)
            return list(zip(marks, texts, strict=True))
        if self.axis.unit == "time":
            step = next((s for s in _TIME_STEPS if (self.high - self.low) / s <= 6), 604800)
            first = math.ceil(self.low / step)
            count = int(self.high / step) - first + 1
            return [((first + i) * step, clock((first + i) * step)) for i in range(count)]
        marks = linear_ticks(self.low, self.high)
        return list(zip(marks, alike(marks, self.axis.unit), strict=True))


def fit(axis: Axis, values: Iterable[float | None], start: float, end: float) -> Scale:
    """A scale on which all values can be seen."""
    known = [v for v in values if v is not None and not missing(v) and math.isfinite(v)]
    if axis.kind == "log":
        known = [v for v in known if v > 0]
    low = axis.low if axis.low is not None else min(known, default=0.0)
    high = axis.high if axis.high is not None else max(known, default=1.0)
    if axis.kind == "log":
        low, high = _log_extent(low, high)
    elif axis.kind == "linear" and axis.unit != "time":
        low = min(0.0, low) if axis.low is None else axis.low
        high = high if high > low else low + (0.001 if axis.unit == "s" else 1.0)
        high = high if axis.high is not None else high + 0.04 * (high - low)
    if high <= low:
        high = low + 1.0
    return Scale(axis, low, high, start, end)


def linear_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values (1, 2, 5 x a power of ten) in [low, high]."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def log_edges(low: float, high: float, bins: int) -> list[float]:
    """Edges of bins that are equally wide on a log axis."""
    low, high = _log_extent(low, high)
    ratio = (high / low) ** (1 / bins)
    return [low * ratio**k for k in range(bins + 1)]


def spread(values: Sequence[float]) -> float:
    """Largest over smallest positive value; 1 when there are none."""
    positive = [v for v in values if v > 0 and math.isfinite(v)]
    return max(positive) / min(positive) if positive else 1.0


def _log_extent(low: float, high: float) -> tuple[float, float]:
    low = low if low > 0 else (high / 1000 if high > 0 else 0.001)
    high = max(high, low)
    if high / low < 1.5:  # all but equal: show some surroundings
        middle = math.sqrt(low * high)
        return middle / 1.5, middle * 1.5
    return low / 1.05, high * 1.05


def _log_ticks(low: float, high: float) -> list[float]:
    decades = math.log10(high / low)
    if decades < 0.7:
        return [v for v in linear_ticks(low, high, 4) if v > 0]
    steps: tuple[int, ...] = (1, 2, 5) if decades < 2 else (1, 3) if decades < 3 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [s * 10.0**p for p in powers for s in steps]
    marks = [m for m in marks if low <= m <= high]
    keep = max(1, -(-len(marks) // 8))
    return marks[::keep]


def _bend(kind: str, value: float) -> float:
    if kind == "log":
        return math.log10(max(value, 1e-300))
    if kind == "percentile":
        return -math.log10(max(1 - value, 1e-9))
    return value
