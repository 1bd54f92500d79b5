"""Automatic steady state: how much of the beginning of a stage must not be counted.

With `load.steady_state: true` the first measured stage is cut into SLICES equal slices, stages
like any other ones. After the run, MSER (White 1997; batch means as in MSER-5) looks at output
tokens a second and mean E2E of each slice, and the slices before the steady state become warm-up.
It knows a Run and nothing of files.

    MSER: the truncation d that minimises  variance(y[d:]) / (n - d),  d at most n / 2

The one subtle rule: where what is left still has a trend there is no steady state. Then nothing
is discarded and that is said: half of a drift is no better than all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenswarm.measure import NS
from tokenswarm.run import Run

SLICES = 20
LOOKED_AT = ("output_tokens_per_s", "e2e_mean_s")
_SLACK = 1.15
_T_99 = 3.3  # Student's t, 10 degrees of freedom and more, two-sided 1 %


@dataclass(frozen=True, slots=True)
class Found:
    """What was discarded: slices[:discarded] of run.stages; None where there is no steady state."""

    stage: str
    names: tuple[str, ...]
    discarded: int | None
    seconds: float
    by: dict[str, int | None]

    def to_json(self) -> dict[str, Any]:
        """For summary.json."""
        return {
            "stage": self.stage,
            "found": self.discarded is not None,
            "discarded_s": self.seconds,
            "slices": len(self.names),
            "discarded_slices": self.discarded or 0,
            "method": "MSER over slice means",
            "by": self.by,
        }


def truncation(values: Sequence[float]) -> int | None:
    """How many values to leave out at the beginning; None when the rest still has a trend.

    Of truncations that are about as good (_SLACK) the smallest is taken: in noise the minimum is
    anywhere.
    """
    n = len(values)
    scores = []
    for d in range(n // 2 + 1):
        rest = values[d:]
        mean = sum(rest) / len(rest)
        scores.append(sum((v - mean) ** 2 for v in rest) / len(rest) ** 2)
    limit = _SLACK * min(scores)
    cut = next(d for d, score in enumerate(scores) if score <= limit)
    return None if _has_trend(values[cut:]) else cut


def _has_trend(values: Sequence[float]) -> bool:
    """The slope of a regression over the values differs from 0, at about the 1 % level."""
    n = len(values)
    middle, mean = (n - 1) / 2, sum(values) / n
    spread = sum((i - middle) ** 2 for i in range(n))
    slope = sum((i - middle) * (v - mean) for i, v in enumerate(values)) / spread
    rest = sum((v - mean - slope * (i - middle)) ** 2 for i, v in enumerate(values))
    return abs(slope) > _T_99 * math.sqrt(rest / (n - 2) / spread) + 1e-12 * abs(mean)


def slice_name(stage: str, number: int) -> str:
    """main, 3 -> main.03."""
    return f"{stage[:57]}.{number:02d}"


def detect(run: Run, stage: str) -> Found | None:
    """Make warm-up of the slices before the steady state, and say what was done.

    None when the slices are not there, or not all of them took place.
    """
    names = [slice_name(stage, k + 1) for k in range(SLICES)]
    slices = [i for i, window in enumerate(run.stages) if window.name in names]
    if len(slices) != SLICES:
        return None
    columns = _columns(run, slices)
    if columns is None:
        return None
    by = {name: truncation(column) for name, column in zip(LOOKED_AT, columns, strict=True)}
    cuts = [cut for cut in by.values() if cut is not None]
    if len(cuts) < len(by):
        return Found(stage, tuple(names), None, 0.0, by)
    cut = max(cuts)
    for i in slices[:cut]:
        run.stages[i].warmup = True
    first, kept = run.stages[slices[0]], run.stages[slices[cut]]
    assert first.start_s is not None
    assert kept.start_s is not None
    return Found(stage, tuple(names), cut, kept.start_s - first.start_s, by)


def _columns(run: Run, slices: Sequence[int]) -> tuple[list[float], list[float]] | None:
    """LOOKED_AT of all slices; None when the last ones did not take place."""
    rates: list[float] = []
    means: list[float | None] = []
    for index in slices:
        window = run.stages[index]
        if window.start_s is None or window.end_s is None or window.end_s <= window.start_s:
            return None
        tokens = run.merged.series.between("tokens", window.start_s, window.end_s)
        rates.append(tokens / (window.end_s - window.start_s))
        e2e = run.merged.total([index]).histograms.get("e2e_s")
        means.append(e2e.mean / NS if e2e is not None and e2e.mean is not None else None)
    known = [mean for mean in means if mean is not None]
    if means[-1] is None:
        return None
    # A closed loop asks nothing while the server stands still: as slow as the slowest.
    return rates, [max(known) if mean is None else mean for mean in means]
