"""The report of a study: several runs as a table, curves, prices and the price-speed chart.

`build` makes one self-contained page from run folders. It knows nothing about how the runs were
made. The one subtle rule: a curve stands in the price-speed chart with one point, the highest
load that meets its SLOs, since a price without a promised speed is no price.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from exporters import roofline
from exporters.charts import Chart, Line, Mark, Points, Rule, figure
from exporters.html_report import page
from exporters.quantities import NONE, number, percent, show, usd
from exporters.scales import Axis
from exporters.study_points import Curve, Point, curves, read
from tokenswarm import economics

_COLORS = 7  # the eighth is grey, for what is not a configuration


def build(
    folders: Sequence[Path],
    labels: Mapping[str, str] | None = None,
    baseline: str | None = None,
    split: tuple[float, float] | None = None,
    answer_tokens: int = 512,
    answer_limit_s: float | None = None,
) -> str:
    """The page for these runs.

    labels: folder name -> configuration. baseline: the configuration that others are measured
    against (the first one otherwise). split: price and speed where the quadrants meet (the
    medians otherwise). answer_limit_s: an answer of answer_tokens must take less, as one SLO more.
    Raises BadInput when a folder holds no run.
    """
    points = read(folders, labels, answer_tokens)
    found = curves(points, answer_limit_s)
    labels_ = list(dict.fromkeys(c.label for c in found))
    color = {label: k % _COLORS for k, label in enumerate(labels_)}
    parts = [
        _lengths(lengths, [c for c in found if c.lengths == lengths], color, baseline, split)
        for lengths in sorted({c.lengths for c in found})
    ]
    return page(
        "study.html.j2",
        title="tokenswarm study",
        count=len(points),
        configurations=len(labels_),
        limit=f"An answer of {answer_tokens} tokens (TTFT + TPOT x {answer_tokens - 1}) under "
        f"{show(answer_limit_s, 's')}" if answer_limit_s is not None else "",
        parts=parts,
        rooflines=_rooflines(found, color),
        invalid=[p.folder for p in points if not p.valid],
        notes=[],
    )  # fmt: skip


def _lengths(
    lengths: tuple[int, int], found: list[Curve], color: Mapping[str, int],
    baseline: str | None, split: tuple[float, float] | None,
) -> dict[str, Any]:  # fmt: skip
    """Everything about one pair of lengths."""
    base = next((c for c in found if baseline in (c.label, c.label.split("@")[0])), found[0])
    name = f"{lengths[0]}-{lengths[1]}"
    pictures = [
        _over_load(name, "throughput", "Output tokens per second", found, color,
                   lambda p: p.output_rate, Axis("tokens/s", "")),
        _over_load(name, "ttft", "TTFT p50", found, color, lambda p: p.ttft_p50,
                   Axis("TTFT", "s", "log")),
        _over_load(name, "speed", "Speed of one user", found, color, lambda p: p.user_speed,
                   Axis("tokens/s", "")),
        _latency_against_throughput(name, found, color),
        _over_load(name, "price", "Dollars a million tokens (input and output)", found, color,
                   lambda p: p.prices.get("total"), Axis("$ per 1M tokens", "usd", "log")),
        _quadrants(name, found, color, split),
    ]  # fmt: skip
    return {
        "title": f"{lengths[0]:,} input tokens, {lengths[1]:,} output tokens",
        "rows": [_row(p, c, base) for c in found for p in c.points],
        "summary": [_summary_row(c, base, found, split) for c in found],
        "pictures": [p for p in pictures if p],
        "baseline": base.label,
    }


def _row(p: Point, curve: Curve, base: Curve) -> dict[str, Any]:
    marks = [m for m, q in (("capacity", curve.capacity), ("knee", curve.knee)) if q is p]
    state = "PASS" if p.slo_passed else "FAIL" if p.slo_passed is False else NONE
    return {
        "label": p.label,
        "load": f"{number(p.load)} {p.load_kind}",
        "marks": ", ".join(marks),
        "slo": state,
        "kind": {"PASS": "good", "FAIL": "bad"}.get(state, "plain"),
        "values": [
            show(p.output_rate, ""), show(p.total_rate, ""), show(p.user_speed, ""),
            show(p.ttft_p50, "s"), show(p.ttft_p99, "s"), show(p.tpot_p50, "s"),
            show(p.answer_s, "s"), usd(p.prices.get("input")), usd(p.prices.get("output")),
            usd(p.prices.get("total")), percent(p.mbu), percent(p.mfu),
        ],
    }  # fmt: skip


def _summary_row(
    curve: Curve, base: Curve, found: Sequence[Curve], split: tuple[float, float] | None
) -> dict[str, Any]:
    """The answer for one configuration: its capacity, and what that is worth."""
    p = curve.capacity
    if p is None:
        return {"label": curve.label, "values": ["no load meets the SLOs", *[NONE] * 7]}
    reference = base.capacity.output_rate if base.capacity else None
    relative = p.output_rate / reference if p.output_rate and reference else None
    place = _placed(curve)
    borders = split or _split(found)
    return {
        "label": curve.label,
        "values": [
            f"{number(p.load)} {p.load_kind}",
            f"{number(curve.knee.load)} {curve.knee.load_kind}" if curve.knee else NONE,
            show(p.output_rate, ""),
            percent(relative),
            show(p.user_speed, ""),
            usd(p.prices.get("total")),
            number(economics.value_for_money(*place)) if place else NONE,
            economics.quadrant(*place, borders) if place and borders else NONE,
        ],
    }


def _placed(curve: Curve) -> tuple[float, float] | None:
    """Where a curve is in the price-speed chart."""
    p = curve.capacity
    price = p.prices.get("total") if p else None
    if p is None or price is None or p.user_speed is None:
        return None
    return price, p.user_speed


def _split(found: Sequence[Curve]) -> tuple[float, float] | None:
    places = [place for c in found if (place := _placed(c))]
    if not places:
        return None
    return economics.split_of([p for p, _ in places], [s for _, s in places])


def _over_load(
    name: str, ident: str, title: str, found: Sequence[Curve], color: Mapping[str, int],
    value: Callable[[Point], float | None], axis: Axis,
) -> Markup | str:  # fmt: skip
    marks: list[Mark] = []
    for curve in found:
        x = [p.load for p in curve.points]
        y = [value(p) for p in curve.points]
        if any(v is not None for v in y):
            marks.append(Line(curve.label, x, y, color[curve.label], dots=True))
    marks += _capacities(found, color, lambda p: p.load, value)
    if not marks:
        return ""
    kind = found[0].points[0].load_kind
    loads = [p.load for c in found for p in c.points if p.load > 0]
    log = bool(loads) and max(loads) / min(loads) > 8
    return figure(Chart(f"{ident}-{name}", title, Axis(kind, "", "log" if log else "linear"),
        axis, marks, note="Large dot: the highest load that meets the SLOs."))  # fmt: skip


def _capacities(
    found: Sequence[Curve], color: Mapping[str, int], x: Callable[[Point], float | None],
    y: Callable[[Point], float | None],
) -> list[Mark]:  # fmt: skip
    """A large dot at each curve's capacity."""
    dots: list[Mark] = []
    for curve in found:
        p = curve.capacity
        if p is not None and (a := x(p)) is not None and (b := y(p)) is not None:
            dots.append(Points("", [a], [b], color[curve.label], large=True))
    return dots


def _latency_against_throughput(
    name: str, found: Sequence[Curve], color: Mapping[str, int]
) -> Markup | str:
    marks: list[Mark] = []
    for curve in found:
        known = [p for p in curve.points if p.output_rate is not None and p.e2e_p50 is not None]
        if known:
            x, y = [p.output_rate or 0.0 for p in known], [p.e2e_p50 for p in known]
            marks.append(Line(curve.label, x, y, color[curve.label], dots=True))
    marks += _capacities(found, color, lambda p: p.output_rate, lambda p: p.e2e_p50)
    if not marks:
        return ""
    note = "Along a curve the load grows. Large dot: the highest load that meets the SLOs."
    return figure(Chart(f"latency-{name}", "E2E p50 against throughput",
        Axis("output tokens/s", "", low=0), Axis("E2E", "s"), marks, note=note))  # fmt: skip


def _quadrants(
    name: str, found: Sequence[Curve], color: Mapping[str, int],
    split: tuple[float, float] | None,
) -> Markup | str:  # fmt: skip
    """Price against the speed of one user, with four quadrants and the best slope."""
    places = [(c, place) for c in found if (place := _placed(c))]
    borders = split or _split(found)
    if not places or borders is None:
        return ""
    right = max(*[1.12 * p for _, (p, _) in places], 2 * borders[0])
    top = max(*[1.12 * s for _, (_, s) in places], 2 * borders[1])
    best = max(economics.value_for_money(p, s) for _, (p, s) in places)
    reach = min(right, top / best)
    marks: list[Mark] = [Line("", [0, reach], [0, best * reach], 7, stroke="dashed")]
    for curve, (price, speed) in places:
        marks.append(Points(curve.label, [price], [speed], color[curve.label], [curve.label],
                            large=True))  # fmt: skip
    where = "given" if split else "the medians"
    return figure(Chart(f"quadrants-{name}", "Price and speed",
        Axis("$ per 1M tokens", "usd", low=0, high=right),
        Axis("tokens/s of one user", "", low=0, high=top), marks,
        rules=(Rule(borders[0], "", True), Rule(borders[1], "")),
        note=f"At the highest load that meets the SLOs. Borders ({where}): {usd(borders[0])} and "
        f"{number(borders[1])} tokens/s. Dashed: the best speed for the money, "
        f"{number(best)} tokens/s for $1 a million tokens.",
        corners=("LEADERS", "CHALLENGERS", "FOLLOWERS", "LAGGARDS"), legend=False))  # fmt: skip


def _rooflines(found: Sequence[Curve], color: Mapping[str, int]) -> list[Markup]:
    """Tokens a second against the batch, under the two roofs, for each configuration."""
    drawn = []
    for number_, curve in enumerate(found):
        points = [p for p in curve.points if p.roof and p.batch and p.output_rate]
        roof = points[-1].roof if points else None
        if roof is None:
            continue
        places = [(p.batch or 0.0, (p.output_rate or 0.0) / roof[0].replicas) for p in points]
        title = f"{curve.label}, {curve.lengths[0]:,}/{curve.lengths[1]:,}"
        drawn.append(
            roofline.picture(f"roofline-{number_}", title, *roof, places, color[curve.label])
        )
    return drawn
