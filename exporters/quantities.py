"""Numbers as people read them: three significant digits, the unit that fits, a dash for none.

Also URLs without their secrets and names of workers. It knows nothing about what a number means.
The one subtle rule: a value that is not there is shown as a dash, never as 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise

NONE = "–"
_SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))


def missing(value: float | None) -> bool:
    """True for None and NaN."""
    return value is None or math.isnan(value)


def number(value: float | None, unit: str = "") -> str:
    """Three significant digits, thousands apart, no exponent: 0.0123, 1.23, 12,346."""
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    size = abs(value)
    if size >= 999.5 or value == 0:
        text = f"{value:,.0f}"
    else:
        digits = max(0, 2 - math.floor(math.log10(size)))
        text = f"{value:.{min(digits, 9)}f}"
        if "." in text:
            text = text.rstrip("0").rstrip(".")
    return f"{text} {unit}" if unit else text


def seconds(value: float | None) -> str:
    """A duration in the unit that fits: 340 µs, 12.3 ms, 1.23 s, 2 min 5 s, 3 h 20 min."""
    if value is None or math.isnan(value):
        return NONE
    size = abs(value)
    if size == 0:
        return "0 s"
    if size < 0.9995e-6:
        return number(value * 1e9, "ns")
    if size < 0.9995e-3:
        return number(value * 1e6, "µs")
    if size < 0.9995:
        return number(value * 1e3, "ms")
    if size < 119.5:
        return number(value, "s")
    if size < 7170:
        return f"{int(round(value) // 60)} min {round(value) % 60} s".removesuffix(" 0 s")
    minutes = round(value / 60)
    return f"{minutes // 60:,} h {minutes % 60} min".removesuffix(" 0 min")


def alike(values: Sequence[float], unit: str) -> list[str]:
    """Evenly spaced values for an axis: different ones never look the same."""
    texts = [show(v, unit) for v in values]
    if len(set(texts)) == len(texts):
        return texts
    largest = max(abs(v) for v in values)
    factor, name = (1.0, unit) if unit not in ("s", "share") else (100.0, "%")
    if unit == "s":
        steps = ((1e9, "ns", 1e-6), (1e6, "µs", 1e-3), (1e3, "ms", 1.0), (1.0, "s", math.inf))
        factor, name = next((f, n) for f, n, below in steps if largest < below)
    scaled = [v * factor for v in values]
    near = min(b - a for a, b in pairwise(sorted(scaled))) / 100
    digits = next((d for d in range(9) if all(abs(round(v, d) - v) <= near for v in scaled)), 9)
    return [f"{v:,.{digits}f} {name}".strip() for v in scaled]


def percent(value: float | None) -> str:
    """A share as a percentage."""
    if value is None or math.isnan(value):
        return NONE
    return number(value * 100) + " %"


def usd(value: float | None) -> str:
    """Dollars; small amounts keep three digits."""
    if value is None or math.isnan(value):
        return NONE
    return f"${value:,.2f}" if abs(value) >= 0.1 or value == 0 else f"${number(value)}"


def clock(value: float) -> str:
    """Time since the start of a run: 0:05, 12:30, 3:00:00."""
    whole = round(value)
    hours, rest = divmod(abs(whole), 3600)
    sign = "-" if whole < 0 else ""
    if hours:
        return f"{sign}{hours}:{rest // 60:02}:{rest % 60:02}"
    return f"{sign}{rest // 60}:{rest % 60:02}"


def whole(value: float | None) -> str:
    """A count: no decimals, thousands apart."""
    if value is None or math.isnan(value):
        return NONE
    return f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes in the unit that fits: 1.31 GB."""
    known = 0.0 if value is None else value
    unit, step = next((u for u in _SIZES if abs(known) >= u[1]), _SIZES[-1])
    return NONE if value is None else number(known / step, unit)


def billions(value: float | None) -> str:
    """A number of parameters."""
    return NONE if value is None else f"{number(value / 1e9)} billion"


def redact(text: str) -> str:
    """URLs without a user, a password or query values."""
    text = re.sub(r"(\w+://)[^/\s@]+@", r"\1", text)
    return re.sub(r"(\w+://[^\s?]+\?)\S+", r"\1…", text)


def short_name(name: str) -> str:
    """A worker's name; Locust's are a host's name and 32 hexadecimal digits."""
    return name if len(name) <= 16 else f"{name[:9]}…{name[-4:]}"


UNITS: dict[str, Callable[[float | None], str]] = {
    "s": seconds,
    "share": percent,
    "usd": usd,
    "": number,
    "count": whole,
    "bytes": size,
    "tokens": lambda v: number(v, "tokens"),
    "tokens/s": lambda v: number(v, "tok/s"),
    "1/s": lambda v: number(v, "/s"),
    "time": lambda v: NONE if v is None else clock(v),
}


def show(value: float | None, unit: str) -> str:
    """A value in its unit; an unknown unit is put after the number."""
    if unit in UNITS:
        return UNITS[unit](value)
    return number(value, unit)
