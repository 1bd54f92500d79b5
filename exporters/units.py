"""Numbers as people read them: three figures, and a unit that fits the size.

It knows no metric. The one subtle rule: what is not known is a dash, never a nought.
"""

from __future__ import annotations

NONE = "-"
_UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))


def number(value: float | None) -> str:
    """A count or a rate: thousands with separators, small ones with three significant figures."""
    if value is None:
        return NONE
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"


def seconds(value: float | None) -> str:
    """A duration: microseconds to seconds, three significant figures."""
    if value is None:
        return NONE
    if not value:
        return "0 ms"
    unit, size = next(((u, s) for u, s in _UNITS if abs(value) >= s), _UNITS[-1])
    scaled = value / size
    return f"{scaled:,.0f} {unit}" if abs(scaled) >= 100 else f"{scaled:.3g} {unit}"


def share(value: float | None) -> str:
    """A share in percent."""
    return NONE if value is None else f"{value * 100:.3g} %"
