"""The 95 % intervals of a summary, put beside its figures: of the run and of measured stages.

It knows where a summary's figures are and when requests.jsonl is good enough for intervals, and
nothing of how they are found.

The one subtle rule: figures are not changed in place, since the verdict was made from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from exporters import interval_columns, intervals
from exporters.interval_columns import Columns
from tokenswarm.run import Run

REQUESTS = "requests.jsonl"
_ENOUGH_WRITTEN = 0.99  # intervals from a part of the requests would be those of something else


def add(run: Run, found: dict[str, Any], warnings: list[str]) -> dict[str, Any]:
    """Figures with ci95 filled in where the run's requests were written to disk, all of them."""
    path = run.out / REQUESTS if run.out is not None else None
    if path is None or not path.is_file():
        return found
    # A steady state is found when all is over: its requests were not written as warm-up.
    without = {stage.name for stage in run.stages if stage.warmup}
    try:
        columns = interval_columns.columns(path, without)
    except OSError as error:
        warnings.append(f"no 95 % intervals: cannot read {path}: {error.strerror}")
        return found
    sent, written = found["requests"]["sent"], len(columns)
    if columns.complete and written < _ENOUGH_WRITTEN * sent:
        warnings.append(f"no 95 % intervals: {path} holds {written} of {sent} measured requests")
        return found
    if not columns.complete:
        warnings.append(f"95 % intervals are from {written} requests spread over the run")
    if columns.gaps.whole and columns.gaps.every > 1:
        warnings.append("95 % intervals of the percentiles of itl_s are from the gaps of every "
                        f"{columns.gaps.every}th request")  # fmt: skip
    whole = intervals.intervals(columns)
    stages = _stages(found["stages"], columns, whole, warnings)
    return {**found, "metrics": _filled(found["metrics"], whole), "stages": stages}


def _stages(
    stages: list[dict[str, Any]], columns: Columns, whole: intervals.OfMetrics, warnings: list[str]
) -> list[dict[str, Any]]:
    """Stages with ci95 filled in for the measured ones whose requests were all written."""
    measured = [stage for stage in stages if not stage["warmup"]]
    if len(measured) == 1:  # the same requests: nothing to find out twice
        limits = {measured[0]["name"]: whole}
    elif len(measured) > intervals.MOST_STAGES:
        warnings.append(f"no 95 % intervals for single stages: there are {len(measured)}, more "
                        f"than {intervals.MOST_STAGES}")  # fmt: skip
        return stages
    else:
        written = Counter(columns.by_name["stage"])
        limits = intervals.of_stages(columns, [
            s["name"] for s in measured
            if not columns.complete
            or written[columns.stages.get(s["name"], -1)]
            >= _ENOUGH_WRITTEN * s["requests"]["sent"]
        ])  # fmt: skip
    return [
        stage if stage["warmup"]
        else {**stage, "metrics": _filled(stage["metrics"], limits.get(stage["name"], {}))}
        for stage in stages
    ]  # fmt: skip


def _filled(
    metrics: dict[str, dict[str, Any]], limits: Mapping[str, intervals.Interval | None]
) -> dict[str, dict[str, Any]]:
    return {name: {**figure, "ci95": limits.get(name)} for name, figure in metrics.items()}
