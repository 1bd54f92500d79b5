"""A comparison as Markdown for a pull request and as a page of its own.

It prints what compare.py found and judges nothing. The one subtle rule: the first line is the
answer, so that somebody who reads no further has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exporters.html_report import page
from exporters.quantities import NONE, number, percent, show
from tokenswarm.compare import (
    DIFFERENT,
    LEVEL,
    SMALLEST,
    Comparison,
    Pair,
    Row,
)

_UNITS = {"error_ratio": "share"}


def answer(comparison: Comparison) -> str:
    """The one line: is something worse, is anything different, or was it not compared?"""
    refused = [p for p in comparison.pairs if p.refused and not p.rows]
    if refused:
        return f"Not compared: {refused[0].refused[0]}"
    worse = [(p, r) for p in comparison.pairs for r in p.regressions]
    if worse:
        return f"Regression: {_names(comparison, worse)}"
    shown = [(p, r) for p in comparison.pairs for r in p.rows if r.verdict == DIFFERENT]
    if shown:
        return f"No regression; really different: {_names(comparison, shown)}"
    return "No difference shown"


def _names(comparison: Comparison, rows: Sequence[tuple[Pair, Row]]) -> str:
    """The first few figures with their changes, and in which run where there are several."""
    several = len(comparison.pairs) > 1
    names = [
        f"{row.key} {change(row)}{f' in {pair.new.name}' if several else ''}"
        for pair, row in rows[:3]
    ]
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    return ", ".join(names) + more


def markdown(comparison: Comparison) -> str:
    """The comparison as GitHub-flavoured Markdown."""
    lines = [f"**{_plain(answer(comparison))}**", "", f"Base: `{_plain(comparison.base.folder)}`"]
    for pair in comparison.pairs:
        lines += ["", f"### `{_plain(pair.new.name)}` against `{_plain(comparison.base.name)}`", ""]
        lines += [f"- **refused**: {_plain(text)}" for text in pair.refused]
        lines += [f"- {_plain(text)}" for text in pair.warnings]
        if pair.rows:
            lines += [
                "",
                "| figure | base | new | change | 95 % interval | verdict | method |",
                "|---|---:|---:|---:|---|---|---|",
            ]
        for row in pair.rows:
            cells = (f"`{row.key}`", *values(row), change(row), interval(row), _verdict(row),
                     row.method)  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *explanation(comparison), ""])


def html(comparison: Comparison) -> str:
    """The comparison as a self-contained page."""
    text = answer(comparison)
    kind = "good" if comparison.exit_code == 0 else "bad"
    return page(
        "compare.html.j2",
        title=f"{comparison.base.name}: tokenswarm comparison",
        answer=text,
        kind=kind,
        base=comparison.base.folder,
        pairs=[_pair(p) for p in comparison.pairs],
        explanation=explanation(comparison),
        notes=[],
    )


def explanation(comparison: Comparison) -> Sequence[str]:
    """How to read the table, in sentences."""
    tolerance = comparison.tolerances.get("*", 0.05)
    return (
        f"Really different: the change is shown to be more than {percent(SMALLEST)} either way "
        f"({number(SMALLEST * 10)} points for the error ratio), at the {percent(LEVEL)} level for "
        "all figures of a pair together (Holm). The interval is of each figure by itself.",
        f"Regression: really different, and worse by more than its tolerance (by default "
        f"{percent(tolerance)}).",
        "Intervals come from drawing runs again from their own requests, in blocks of requests "
        "that follow one another, because neighbours wait in the same queue; the tokens of a "
        "request stay together. Paired: request k is the same in both runs, so both are drawn "
        "alike.",
        "Not shown does not mean equal: the interval says what is still possible. One run of each "
        "says nothing of how runs differ from one another.",
    )


def values(row: Row) -> tuple[str, str]:
    """Base and new in the figure's unit."""
    unit = "s" if row.metric.endswith("_s") and not row.metric.endswith("_per_s") else ""
    unit = _UNITS.get(row.metric, unit)
    return show(row.base, unit), show(row.new, unit)


def change(row: Row) -> str:
    """The change with its sign; shares change in percentage points."""
    return _signed(row.change, row)


def interval(row: Row) -> str:
    """The interval of the change."""
    if row.low is None or row.high is None:
        return NONE
    return f"{_signed(row.low, row)} to {_signed(row.high, row)}"


def _signed(value: float | None, row: Row) -> str:
    if value is None:
        return NONE
    sign = "+" if value > 0 else ""
    unit = "points" if row.metric == "error_ratio" else "%"
    return f"{sign}{number(round(value * 100, 2))} {unit}"


def _verdict(row: Row) -> str:
    if row.regression:
        return "regression"
    if row.verdict == DIFFERENT:
        return f"{DIFFERENT}, {'worse' if row.worse else 'better'}"
    return row.verdict


def _pair(pair: Pair) -> dict[str, Any]:
    rows = []
    for row in pair.rows:
        verdict = _verdict(row)
        kind = "bad" if row.regression else "good" if verdict.endswith("better") else "plain"
        rows.append({
            "key": row.key, "values": values(row), "change": change(row),
            "interval": interval(row), "verdict": verdict, "kind": kind, "method": row.method,
            "bar": _bar(row),
        })  # fmt: skip
    return {"name": pair.new.folder, "rows": rows, "warnings": pair.warnings,
            "refused": pair.refused}  # fmt: skip


def _bar(row: Row) -> dict[str, float] | None:
    """Place of the interval on a strip from -50 % to +50 %, in percent of its width."""
    if row.low is None or row.high is None or row.change is None:
        return None
    low, middle, high = (
        min(100.0, max(0.0, 50 + 100 * v)) for v in (row.low, row.change, row.high)
    )
    return {"low": round(low, 2), "width": round(max(high - low, 0.4), 2), "at": round(middle, 2)}


def _plain(text: str) -> str:
    """Text that Markdown leaves alone."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("`", "'").replace("\n", " ")
