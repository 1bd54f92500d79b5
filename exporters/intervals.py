"""95 % intervals of a run's figures, from the columns of requests.jsonl, after the run.

Of the whole run and of each measured stage. It knows which metrics there are; how a bootstrap
respects that requests near each other depend on each other is resampling.py's business.
Inter-token latencies enter by request, so that a request's tokens stay together: their mean as one
sum and one count a request, their percentiles where every gap was recorded.

The one subtle rule: work is bounded, whatever the size of the run. interval_columns.py bounds the
requests and gaps, and a run of more than MOST_STAGES stages has none for each.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from exporters.interval_columns import METRICS, Columns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

LEAST = 20  # fewer requests give no interval
MOST_STAGES = 25  # more give none for each: one takes about 0.1 s, however few its requests
RESAMPLES = 200
SEED = 20240711
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

Interval = dict[str, list[float] | None]
OfMetrics = dict[str, Interval | None]


@dataclass(frozen=True, slots=True)
class _Table:
    """Requests in time order; gaps are those that were kept, gap_owner the position of each's
    request."""

    by_name: dict[str, Floats]
    stage: Ints
    gaps: Floats
    gap_owner: Ints

    def take(self, positions: Ints) -> _Table:
        """Some of the requests."""
        import numpy as np

        new = np.full(len(self.stage), -1)
        new[positions] = np.arange(len(positions))
        owner = new[self.gap_owner]
        by_name = {name: values[positions] for name, values in self.by_name.items()}
        return _Table(by_name, self.stage[positions], self.gaps[owner >= 0], owner[owner >= 0])


def _limits(samples: Floats) -> list[float]:
    """Middle 95 % of the resamples."""
    import numpy as np

    low, high = np.nanpercentile(samples, [2.5, 97.5])
    return [float(low), float(high)]


def interval(values: Floats, stage: Ints) -> Interval | None:
    """ci95 of mean, p50, p90 and p99 of values in time order; None when there are too few.

    stage is the number of each value's stage: a stage's share of the requests was planned and is
    not left to chance. A percentile with fewer than one value beyond it has no interval either.
    """
    import numpy as np

    from tokenswarm import resampling

    n = len(values)
    if n < LEAST:
        return None
    draws = resampling.draw(
        stage, resampling.block_length(values, stage), SEED, resamples=RESAMPLES
    )
    found = resampling.quantiles(draws, draws.cell_of, values, list(QUANTILES.values()))
    out: Interval = {"mean": _limits(resampling.means(draws, values, np.ones(n)))}
    for (name, q), samples in zip(QUANTILES.items(), found, strict=True):
        out[name] = _limits(samples) if _is_enough(n, q) else None
    return out


def _is_enough(n: int, q: float) -> bool:
    """Whether at least one of n values is expected beyond quantile q."""
    return n * (1000 - round(q * 1000)) >= 1000


def ratio_interval(sums: Floats, counts: Floats, stage: Ints) -> Interval | None:
    """ci95 of a pooled mean, sum over count, drawn by whole requests in time order."""
    from tokenswarm import resampling

    used = counts > 0
    sums, counts, stage = sums[used], counts[used], stage[used]
    if len(sums) < LEAST:
        return None
    block = resampling.block_length(sums / counts, stage)
    draws = resampling.draw(stage, block, SEED, resamples=RESAMPLES)
    return {"mean": _limits(resampling.means(draws, sums, counts)), **dict.fromkeys(QUANTILES)}


def gap_intervals(gaps: Floats, owner: Ints, stage: Ints) -> Interval:
    """ci95 of percentiles of gaps between tokens, drawn by whole requests in time order.

    owner: the request of each gap, a position in stage. Without gaps, or with those of too few
    requests, all are None.
    """
    import numpy as np

    from tokenswarm import resampling

    known, owner = np.unique(owner, return_inverse=True)
    if len(known) < LEAST:
        return dict.fromkeys(QUANTILES)
    stage = stage[known]
    means = np.bincount(owner, weights=gaps) / np.bincount(owner)
    draws = resampling.draw(stage, resampling.block_length(means, stage), SEED, resamples=RESAMPLES)
    found = resampling.quantiles(draws, draws.cell_of[owner], gaps, list(QUANTILES.values()))
    return {
        name: _limits(samples) if _is_enough(len(gaps), q) else None
        for (name, q), samples in zip(QUANTILES.items(), found, strict=True)
    }


def intervals(found: Columns) -> OfMetrics:
    """ci95 of every metric that the columns hold."""
    return _of_table(_table(found))


def of_stages(found: Columns, names: Collection[str]) -> dict[str, OfMetrics]:
    """The same for each of these stages alone."""
    import numpy as np

    table = _table(found)
    known = {name: found.stages[name] for name in names if name in found.stages}
    return {
        name: _of_table(table.take(np.flatnonzero(table.stage == k))) for name, k in known.items()
    }


def _table(found: Columns) -> _Table:
    import numpy as np

    order = np.argsort(np.frombuffer(found.by_name["sent"], dtype=np.float64), kind="stable")
    by_name = {
        name: np.frombuffer(values, dtype=np.float64)[order]
        for name, values in found.by_name.items()
    }
    stage = by_name["stage"].astype(np.int64)
    kept = found.gaps
    if not kept.whole or not kept.values:
        return _Table(by_name, stage, np.empty(0), np.empty(0, np.int64))
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    owner = np.repeat(position[np.array(kept.rows)], np.array(kept.sizes))
    return _Table(by_name, stage, np.array(kept.values), owner)


def _of_table(table: _Table) -> OfMetrics:
    import numpy as np

    by_name, stage = table.by_name, table.stage
    out: OfMetrics = {}
    for name in METRICS:
        known = ~np.isnan(by_name[name])
        out[name] = interval(by_name[name][known], stage[known])
    tpot = by_name["tpot_s"]
    out["tokens_per_s_per_user"] = interval(1 / tpot[tpot > 0], stage[tpot > 0])
    itl = ratio_interval(by_name["decode_s"], by_name["gaps"], stage)
    if itl is not None:
        itl |= gap_intervals(table.gaps, table.gap_owner, stage)
    out["itl_s"] = itl
    return out
