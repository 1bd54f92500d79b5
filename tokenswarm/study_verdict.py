"""What a probe says: is it long enough, do its SLOs hold for sure, does the server keep up?

It reads summaries and records of finished runs and knows nothing of searching.

The one subtle rule: in open loop a server that is slower than the plan answers later and later:
the delay grows by R/C - 1 a second for a rate R and a capacity C. So the slope of
latency-from-due over due time says both that a short probe was above the capacity, whatever its
SLOs, and what the capacity is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenswarm import slo
from tokenswarm.figures import PERMILLE

_LEAST_REQUESTS = 20
_BLOCKS = 10
_T_95 = 2.306  # Student's t, 8 degrees of freedom, two-sided 5 %


def needed(objectives: Sequence[slo.Objective], beyond: int) -> float:
    """Requests until every percentile of the SLOs has so many values beyond it."""
    most = float(_LEAST_REQUESTS)
    for objective in objectives:
        permille = PERMILLE.get(objective.function or "")
        # a request has many inter-token latencies, but they depend on each other
        if permille is not None and objective.metric != "itl_s":
            most = max(most, 1000.0 * beyond / min(permille, 1000 - permille))
    return most


def judged(summary: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Which SLOs failed, and whether all verdicts lie outside of their 95 % intervals."""
    failed, sure = [], True
    for check in (summary.get("slo") or {}).get("checks", ()):
        if check["passed"] is not True:
            failed.append(f"{check['text']}: {check['detail']}")
        name = check["key"].partition("(")[0].strip().lower()
        figure = (summary.get("metrics") or {}).get(check["metric"]) or {}
        ends = (figure.get("ci95") or {}).get(name) if check["stage"] is None else None
        if ends and check["bound"] is not None and ends[0] <= check["bound"] <= ends[1]:
            sure = False
    return failed, sure


def growth(points: Sequence[tuple[float, float]]) -> tuple[float, bool]:
    """(slope, certain) of latency from due over due time, by means of ten blocks.

    Neighbouring requests share their fate, so that a regression over single ones would be far too
    sure; of ten means the 95 % interval is honest. certain: the interval is above 0.
    """
    if len(points) < 2 * _BLOCKS:
        return 0.0, False
    ordered = sorted(points)
    cuts = [len(ordered) * k // _BLOCKS for k in range(_BLOCKS + 1)]
    blocks = [ordered[a:b] for a, b in itertools.pairwise(cuts)]
    x = [sum(t for t, _ in block) / len(block) for block in blocks]
    y = [sum(d for _, d in block) / len(block) for block in blocks]
    mean_x, mean_y = sum(x) / _BLOCKS, sum(y) / _BLOCKS
    spread = sum((v - mean_x) ** 2 for v in x)
    if not spread:
        return 0.0, False
    slope = sum((v - mean_x) * (w - mean_y) for v, w in zip(x, y, strict=True)) / spread
    rest = sum((w - mean_y - slope * (v - mean_x)) ** 2 for v, w in zip(x, y, strict=True))
    error = math.sqrt(rest / (_BLOCKS - 2) / spread)
    return slope, slope - _T_95 * error > 0


def delays(path: Path) -> list[tuple[float, float]]:
    """(due, latency from due) of the measured requests that ended well."""
    return [
        (row["due_offset_s"], row["e2e_due_s"])
        for row in _rows(path)
        if row.get("e2e_due_s") is not None and not row.get("warmup")
    ]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    import orjson

    try:
        with path.open("rb") as lines:
            for line in lines:
                yield orjson.loads(line)
    except FileNotFoundError:
        return
