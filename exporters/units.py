"""Numbers as people read them: three figures, and a unit that fits the size.

It knows no metric. The one subtle rule: what is not known is a dash, never a nought.
"""

from __future__ import annotations

NONE = "-"


def number(value: float | None) -> str:
    """A count or a rate: thousands with separators, small ones with three significant figures."""
    if value is None:
        return NONE
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"


def seconds(value: float | None) -> str:
    """A duration: microseconds to seconds, three or four significant figures."""
    if value is None:
        return NONE
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value * 1e6:.3g} us" if value else "0 ms"


def share(value: float | None) -> str:
    """A share in percent."""
    return NONE if value is None else f"{value * 100:.3g} %"
