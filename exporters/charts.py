"""Pictures: marks and axes in, one HTML figure with inline SVG out.

Colours come from the page's style sheet (classes c0 to c7), so one picture serves light, dark
and print, and it needs neither a library nor the network. What a pointer shows travels beside
each picture as plain JSON that the page's own script reads. It knows nothing about runs.

The one subtle rule: everything that came from outside goes through `escape`; names of stages,
models and workers are a server's or a user's text, not ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson
from markupsafe import Markup, escape

from exporters.quantities import missing, show
from exporters.scales import Axis, Scale, fit

WIDTH, HEIGHT = 440, 256
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 30, 34  # the strip on top holds names of axis and stages
_HOVER_POINTS = 400  # beyond that a pointer cannot tell them apart

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points; missing values interrupt it. step holds a value until the next.

    stroke: dashed, dotted, or wide (pale, to be seen on both sides of a line over it).
    """

    name: str
    x: Sequence[float]
    y: Values
    color: int = 0
    step: bool = False
    stroke: str = ""
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """The area between two lines."""

    name: str
    x: Sequence[float]
    low: Values
    high: Values
    color: int = 0


@dataclass(frozen=True, slots=True)
class Bars:
    """Columns between edges (one more than heights), on top of `base` where stacked."""

    name: str
    edges: Sequence[float]
    heights: Sequence[float]
    color: int = 0
    base: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Points:
    """Dots; labels are drawn beside them where given."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: int = 0
    labels: Sequence[str] = ()
    large: bool = False


@dataclass(frozen=True, slots=True)
class Shade:
    """A stretch of the x axis with a name, such as a stage."""

    start: float
    end: float
    name: str
    muted: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """A line across at a value, such as an SLO; on the y axis unless vertical."""

    value: float
    name: str
    vertical: bool = False


Mark = Line | Band | Bars | Points


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture; note is a sentence under it, ident makes its place in the page linkable."""

    ident: str
    title: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    shades: Sequence[Shade] = ()
    rules: Sequence[Rule] = ()
    note: str = ""
    corners: Sequence[str] = field(default=())  # names of four quadrants: NW, NE, SW, SE
    legend: bool = True


def figure(chart: Chart) -> Markup:
    """The picture as one HTML element."""
    x = fit(chart.x, _xs(chart), _LEFT, WIDTH - _RIGHT)
    y = fit(chart.y, _ys(chart), HEIGHT - _BOTTOM, _TOP)
    body = Markup("").join([
        *_shades(chart.shades, x),
        *_grid(x, y),
        *(_mark(mark, x, y) for mark in chart.marks),
        *_rules(chart.rules, x, y),
        *_corners(chart.corners),
        *_labels(chart.marks, x, y),
    ])  # fmt: skip
    note = Markup("<p class=note>{}</p>").format(chart.note) if chart.note else ""
    return Markup(
        '<figure id="{i}" class=chart><figcaption><h3>{t}</h3>{legend}</figcaption>'
        '<div class=plot><svg viewBox="0 0 {w} {h}" role=img aria-label="{t}">{body}'
        '<line class=cursor y1="{top}" y2="{bottom}" hidden></line></svg>'
        "<div class=tip hidden></div></div>"
        "<script type=application/json>{hover}</script>{note}</figure>"
    ).format(
        i=chart.ident, t=chart.title, legend=_legend(chart) if chart.legend else "",
        w=WIDTH, h=HEIGHT, body=body, top=_TOP, bottom=HEIGHT - _BOTTOM,
        hover=_hover(chart, x), note=note,
    )  # fmt: skip


def _xs(chart: Chart) -> list[float | None]:
    found: list[float | None] = []
    for mark in chart.marks:
        found += list(mark.edges) if isinstance(mark, Bars) else list(mark.x)
    found += [edge for s in chart.shades for edge in (s.start, s.end)]
    return found + [r.value for r in chart.rules if r.vertical]


def _ys(chart: Chart) -> list[float | None]:
    found: list[float | None] = []
    for mark in chart.marks:
        if isinstance(mark, Bars):
            base = mark.base or [0.0] * len(mark.heights)
            found += [b + h for b, h in zip(base, mark.heights, strict=True)]
        elif isinstance(mark, Band):
            found += [*mark.low, *mark.high]
        else:
            found += list(mark.y)
    return found + [r.value for r in chart.rules if not r.vertical]


def _grid(x: Scale, y: Scale) -> list[Markup]:
    parts = []
    for value, label in y.ticks():
        at = y(value)
        parts.append(Markup(
            '<line class=grid x1="{}" x2="{}" y1="{y:.1f}" y2="{y:.1f}"></line>'
            '<text class=tick x="{}" y="{t:.1f}" text-anchor=end>{}</text>'
        ).format(_LEFT, WIDTH - _RIGHT, _LEFT - 5, label, y=at, t=at + 3.5))  # fmt: skip
    bottom = HEIGHT - _BOTTOM
    last_end = -math.inf
    for value, label in x.ticks():
        at, half = x(value), 3.1 * len(label)
        at_text = min(at, WIDTH - 2 - half)
        if at_text - half < last_end + 4:
            continue  # labels must not touch
        last_end = at_text + half
        parts.append(Markup(
            '<line class=grid x1="{x:.1f}" x2="{x:.1f}" y1="{}" y2="{}"></line>'
            '<text class=tick x="{a:.1f}" y="{}" text-anchor=middle>{}</text>'
        ).format(bottom, bottom + 4, bottom + 15, label, x=at, a=at_text))  # fmt: skip
    parts.append(Markup(
        '<line class=axis x1="{}" x2="{}" y1="{b}" y2="{b}"></line>'
        '<text class=label x="{}" y="{}" text-anchor=end>{}</text>'
        '<text class=label x="2" y="11">{}</text>'
    ).format(_LEFT, WIDTH - _RIGHT, WIDTH - _RIGHT, HEIGHT - 5, x.axis.label, y.axis.label,
             b=bottom))  # fmt: skip
    return parts


def _mark(mark: Mark, x: Scale, y: Scale) -> Markup:
    if isinstance(mark, Line):
        return _line(mark, x, y)
    if isinstance(mark, Band):
        return _band(mark, x, y)
    if isinstance(mark, Bars):
        return _bars(mark, x, y)
    return _points(mark, x, y)


def _line(mark: Line, x: Scale, y: Scale) -> Markup:
    path: list[str] = []
    dots: list[Markup] = []
    before: float | None = None
    for a, b in zip(mark.x, mark.y, strict=True):
        if b is None or missing(b) or (y.axis.kind == "log" and b <= 0):
            before = None
            continue
        px, py = x(a), y(b)
        if before is None:
            path.append(f"M{px:.1f} {py:.1f}")
        else:
            path.append(f"H{px:.1f}V{py:.1f}" if mark.step else f"L{px:.1f} {py:.1f}")
        before = py
        if mark.dots:
            dots.append(Markup('<circle class="c{}" cx="{:.1f}" cy="{:.1f}" r="3"></circle>')
                        .format(mark.color, px, py))  # fmt: skip
    if len(path) == 1:
        path.append("h0.1")  # a single point, drawn as a dot by its round end
    kind = f"line {mark.stroke}".rstrip()
    line = Markup('<path class="{} c{}" d="{}"></path>').format(kind, mark.color, "".join(path))
    return line + Markup("").join(dots)


def _band(mark: Band, x: Scale, y: Scale) -> Markup:
    parts: list[str] = []
    run: list[tuple[float, float, float]] = []

    def close() -> None:
        if len(run) > 1:
            upper = "L".join(f"{a:.1f} {h:.1f}" for a, _, h in run)
            lower = "L".join(f"{a:.1f} {low:.1f}" for a, low, _ in reversed(run))
            parts.append(f"M{upper}L{lower}Z")
        run.clear()

    for a, low, high in zip(mark.x, mark.low, mark.high, strict=True):
        if low is None or high is None or missing(low) or missing(high):
            close()
        else:
            run.append((x(a), y(low), y(high)))
    close()
    return Markup('<path class="band c{}" d="{}"></path>').format(mark.color, "".join(parts))


def _bars(mark: Bars, x: Scale, y: Scale) -> Markup:
    base = mark.base or [0.0] * len(mark.heights)
    rectangles = []
    for (a, b), height, low in zip(pairwise(mark.edges), mark.heights, base, strict=True):
        if height > 0:
            left, right, top, bottom = x(a), x(b), y(low + height), y(low)
            gap = 0.6 if right - left > 3 else 0.0
            width = max(right - left - gap, 0.8)
            rectangles.append(f"M{left:.1f} {bottom:.1f}V{top:.1f}h{width:.1f}V{bottom:.1f}Z")
    return Markup('<path class="bar c{}" d="{}"></path>').format(mark.color, "".join(rectangles))


def _points(mark: Points, x: Scale, y: Scale) -> Markup:
    radius = 5 if mark.large else 1.7
    dots = "".join(
        f"M{x(a) - radius:.1f} {y(b):.1f}a{radius} {radius} 0 1 0 {2 * radius} 0"
        f"a{radius} {radius} 0 1 0 {-2 * radius} 0"
        for a, b in zip(mark.x, mark.y, strict=True)
        if not missing(a) and not missing(b)
    )
    kind = "point large" if mark.large else "point"
    return Markup('<path class="{} c{}" d="{}"></path>').format(kind, mark.color, dots)


def _labels(marks: Sequence[Mark], x: Scale, y: Scale) -> list[Markup]:
    """Names beside points, each at the first of four sides where it covers nothing."""
    named = [
        (x(a), y(b), label)
        for mark in marks if isinstance(mark, Points)
        for a, b, label in zip(mark.x, mark.y, mark.labels, strict=False)
    ]  # fmt: skip
    taken = [(a - 6, b - 6, a + 6, b + 6) for a, b, _ in named]
    parts = []
    for a, b, label in named:
        width = 6.2 * len(label)
        sides = ((a + 9, b + 4), (a - 9 - width, b + 4), (a - width / 2, b - 9),
                 (a - width / 2, b + 18))  # fmt: skip
        boxes = [(left, low - 10, left + width, low + 2) for left, low in sides]
        free = [k for k, box in enumerate(boxes) if _inside(box) and not _hit(box, taken)]
        k = free[0] if free else 0
        taken.append(boxes[k])
        parts.append(Markup('<text class=name x="{:.1f}" y="{:.1f}">{}</text>').format(
            *sides[k], label))  # fmt: skip
    return parts


Box = tuple[float, float, float, float]


def _inside(box: Box) -> bool:
    return box[0] >= _LEFT and box[2] <= WIDTH and box[1] >= _TOP and box[3] <= HEIGHT - _BOTTOM


def _hit(box: Box, others: Sequence[Box]) -> bool:
    return any(box[0] < o[2] and o[0] < box[2] and box[1] < o[3] and o[1] < box[3] for o in others)


def _shades(shades: Sequence[Shade], x: Scale) -> list[Markup]:
    parts = []
    for k, shade in enumerate(shades):
        left, right = x(shade.start), x(shade.end)
        kind = "shade muted" if shade.muted else "shade even" if k % 2 else "shade"
        parts.append(Markup(
            '<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"></rect>'
        ).format(kind, left, _TOP, max(0.0, right - left), HEIGHT - _TOP - _BOTTOM))  # fmt: skip
        room = int((right - left) / 5.6)
        if room >= min(len(shade.name), 6):
            name = shade.name if len(shade.name) <= room else shade.name[: room - 1] + "…"
            parts.append(Markup('<text class=stage x="{:.1f}" y="{}">{}</text>').format(
                left + 1, _TOP - 4, name))  # fmt: skip
    return parts


def _rules(rules: Sequence[Rule], x: Scale, y: Scale) -> list[Markup]:
    parts = []
    for rule in rules:
        if rule.vertical:
            a = x(rule.value)
            crowded = any(r.vertical and 0 < x(r.value) - a < 34 for r in rules)
            ends = (a, a, float(_TOP), float(HEIGHT - _BOTTOM))
            leaves = a + 5.5 * len(rule.name) > WIDTH
            place, anchor = (a, _TOP - 4.0), "end" if crowded or leaves else "start"
        else:
            b = y(rule.value)
            ends = (float(_LEFT), float(WIDTH - _RIGHT), b, b)
            place, anchor = (WIDTH - _RIGHT - 3.0, b - 4), "end"
        parts.append(Markup(
            '<line class=rule x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"></line>'
            '<text class=rule x="{:.1f}" y="{:.1f}" text-anchor={}>{}</text>'
        ).format(*ends, *place, anchor, rule.name))  # fmt: skip
    return parts


def _corners(names: Sequence[str]) -> list[Markup]:
    left, right, top, bottom = _LEFT + 5, WIDTH - _RIGHT - 5, _TOP + 12, HEIGHT - _BOTTOM - 6
    places = ((left, top, "start"), (right, top, "end"),
              (left, bottom, "start"), (right, bottom, "end"))  # fmt: skip
    return [
        Markup('<text class=corner x="{}" y="{}" text-anchor={}>{}</text>').format(*place, name)
        for place, name in zip(places, names, strict=False)
    ]


def _legend(chart: Chart) -> Markup:
    named = [m for m in chart.marks if m.name]
    if len(named) < 2:
        return Markup("")
    kinds = {Line: "k-line", Band: "k-band", Bars: "k-bar", Points: "k-point"}
    items = [
        Markup('<li class="{} c{}">{}</li>').format(
            f"{kinds[type(m)]} {getattr(m, 'stroke', '')}".rstrip(), m.color, m.name)
        for m in named
    ]  # fmt: skip
    return Markup("<ul class=legend>{}</ul>").format(Markup("").join(items))


def _hover(chart: Chart, x: Scale) -> Markup:
    """What a pointer shows: places on paper, their labels, and the text of every series there."""
    data: dict[str, Any] = {"x": [], "t": [], "s": []}
    lines = [m for m in chart.marks if isinstance(m, Line) and m.name]
    bars = [m for m in chart.marks if isinstance(m, Bars)]
    if bars:
        edges = bars[0].edges
        data["x"] = [round((x(a) + x(b)) / 2, 1) for a, b in pairwise(edges)]
        ends = [show(a, chart.x.unit) for a in edges]
        data["t"] = [f"{a} to {b}" for a, b in pairwise(ends)]
        data["s"] = [[m.name, [show(h, chart.y.unit) for h in m.heights]] for m in bars]
    elif lines and all(len(m.x) == len(lines[0].x) <= _HOVER_POINTS for m in lines):
        percentile = chart.x.kind == "percentile"
        data["x"] = [round(x(a), 1) for a in lines[0].x]
        data["t"] = [f"p{a * 100:.6g}" if percentile else show(a, chart.x.unit) for a in lines[0].x]
        data["s"] = [[m.name, [show(b, chart.y.unit) for b in m.y]] for m in lines]
    return Markup(orjson.dumps(data).decode().replace("<", "\\u003c"))


__all__ = [
    "Axis", "Band", "Bars", "Chart", "Line", "Mark", "Points", "Rule", "Shade", "escape", "figure",
]  # fmt: skip
