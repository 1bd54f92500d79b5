"""What a comparison resamples: values of requests in time order, tokens of seconds, failures.

It takes columns of a request log apart into series and asks resampling.py how much a figure of
them, or the ratio of two, scatters. It knows nothing about verdicts.

The one subtle rule: a series keeps the place (`index`) of each of its requests in the plan, so
that two runs of the same plan can be compared request by request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenswarm.resampling import Draws, Floats, Ints, block_length, draw, means, quantiles
from tokenswarm.run_files import Requests

_SEED = 20_261_101
_LEAST_INTERVALS, _MOST_INTERVALS = 40, 2000


@dataclass(frozen=True, slots=True)
class Series:
    """Pieces in time order, each with a sum over a count; values (of piece `owner`) or None.

    stratum: the stage of each piece, a number.
    """

    index: Floats
    sums: Floats
    counts: Floats
    values: Floats | None
    owner: Ints
    stratum: Ints

    def __len__(self) -> int:
        return len(self.sums)

    def take(self, positions: Ints) -> Series:
        """Some of the pieces, in this order."""
        values, owner = None, np.arange(len(positions))
        if self.values is not None:
            starts = np.searchsorted(self.owner, positions, side="left")
            sizes = np.searchsorted(self.owner, positions, side="right") - starts
            owner = np.repeat(np.arange(len(positions)), sizes)
            within = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            values = self.values[np.repeat(starts, sizes) + within]
        return Series(
            self.index[positions], self.sums[positions], self.counts[positions], values, owner,
            self.stratum[positions],
        )  # fmt: skip


def of_metric(requests: Requests | None, metric: str) -> Series | None:
    """A metric of the measured requests, by when they were due; None without a log."""
    if requests is None:
        return None
    if metric == "itl_s":
        return _of_gaps(requests)
    known = np.flatnonzero(requests.measured & ~np.isnan(requests[metric]))
    known = known[np.argsort(requests["due"][known], kind="stable")]
    values = requests[metric][known]
    ones = np.ones(len(known))
    return Series(
        requests["index"][known], values, ones, values, np.arange(len(known)),
        requests.texts["stage"][1][known],
    )  # fmt: skip


def _of_gaps(requests: Requests) -> Series:
    """ITL: a request's gaps sum to last - first token; the gaps themselves where recorded."""
    sums = requests["last_token"] - requests["first_token"]
    gaps = requests["events"] - 1
    known = np.flatnonzero(requests.measured & ~np.isnan(sums) & (gaps > 0))
    values, owner = None, np.arange(len(requests))
    if requests.itl is not None and requests.itl_ends is not None:
        sizes = np.diff(requests.itl_ends, prepend=0)
        values, owner = requests.itl, np.repeat(np.arange(len(requests)), sizes)
    every = Series(requests["index"], sums, gaps, values, owner, requests.texts["stage"][1])
    return every.take(known[np.argsort(requests["due"][known], kind="stable")])


def of_rate(requests: Requests | None, window: Mapping[str, Any], rate: str) -> Series | None:
    """What came in each second (or fortieth) of the measured window; None when not known."""
    start, end = window.get("start"), window.get("end")
    if not requests or start is None or end is None or end <= start:  # no log, or an empty one
        return None
    pieces = int(min(_MOST_INTERVALS, max(_LEAST_INTERVALS, end - start)))
    edges = np.linspace(start, end, pieces + 1)
    if rate == "requests_per_s":
        sums = np.histogram(requests["last_token"][requests.ok], edges)[0].astype(np.float64)
    else:
        column = "output_chars" if rate == "output_chars_per_s" else "output_tokens"
        sums = _spread_evenly(requests, column, edges)
    stages = _stage_at(requests, edges[:-1])
    return Series(edges[:-1], sums, np.ones(pieces), None, np.arange(pieces), stages)


def _stage_at(requests: Requests, instants: Floats) -> Ints:
    """The stage at each instant: that of the request which was due last."""
    order = np.argsort(requests["due"], kind="stable")
    last = np.searchsorted(requests["due"][order], instants, side="right") - 1
    return requests.texts["stage"][1][order][np.maximum(last, 0)]


def _spread_evenly(requests: Requests, column: str, edges: Floats) -> Floats:
    """Sum of a column in each interval; a request's part is spread from first to last token."""
    first, last, amount = requests["first_token"], requests["last_token"], requests[column]
    known = ~np.isnan(first) & ~np.isnan(last) & ~np.isnan(amount)
    first, last, amount = first[known], last[known], amount[known]
    took = np.maximum(last - first, 1e-9)
    until = [float((amount * np.clip((e - first) / took, 0, 1)).sum()) for e in edges]
    return np.diff(np.array(until))


def of_failures(requests: Requests | None) -> Series | None:
    """1 for each measured request that failed, 0 for one that was ok, by when it was due."""
    if requests is None:
        return None
    judged = ~requests.warmup & ~requests.is_text("outcome", "cancelled")
    known = np.flatnonzero(judged)
    known = known[np.argsort(requests["due"][known], kind="stable")]
    failed = (~requests.ok[known]).astype(np.float64)
    ones, stages = np.ones(len(known)), requests.texts["stage"][1][known]
    return Series(requests["index"][known], failed, ones, None, np.arange(len(known)), stages)


def overlap(a: Requests, b: Requests) -> float:
    """Share of the measured requests that both runs made: same place in the plan, same length."""
    one, two = (np.flatnonzero(r.measured) for r in (a, b))
    if not len(one) or not len(two):
        return 0.0
    _, mine, theirs = np.intersect1d(a["index"][one], b["index"][two], return_indices=True)
    alike = a["prompt_tokens"][one[mine]] == b["prompt_tokens"][two[theirs]]
    return float(alike.sum()) / max(len(one), len(two))


def common(a: Series, b: Series) -> tuple[Series, Series]:
    """The requests that are in both, in the order of the plan."""
    _, mine, theirs = np.intersect1d(a.index, b.index, return_indices=True)
    return a.take(mine), b.take(theirs)


def spread_of_ratio(
    a: Series, b: Series, shares: Mapping[str, float], paired: bool, fixed: bool = False
) -> tuple[dict[str, float], int]:
    """Standard error of log(b's figure / a's figure), for the mean and quantiles; blocks used.

    paired: both are resampled alike, so that what the same requests have in common (their
    lengths, the bursts of the plan) cancels out. fixed: how much of a series is in which stage
    is not chance: true of seconds, not of requests.
    """
    blocks = [block_length(s.sums / s.counts, s.stratum) for s in (a, b)]
    if paired:
        draws = [draw(a.stratum, max(blocks), _SEED)] * 2
    else:
        draws = [
            draw(series.stratum, block, _SEED + i, fixed)
            for i, (series, block) in enumerate(zip((a, b), blocks, strict=True))
        ]
    figures = [_figures(s, d, shares) for s, d in zip((a, b), draws, strict=True)]
    found = {}
    for name in figures[0].keys() & figures[1].keys():
        old, new = (f[name] for f in figures)
        both = min(len(old), len(new))  # a longer series has fewer resamples of quantiles
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.log(new[:both] / old[:both])
        ratios = ratios[np.isfinite(ratios)]
        if len(ratios) > 1:
            found[name] = float(ratios.std(ddof=1))
    return found, min(d.blocks for d in draws)


def _figures(series: Series, draws: Draws, shares: Mapping[str, float]) -> dict[str, Floats]:
    found = {"mean": means(draws, series.sums, series.counts)}
    if series.values is not None and len(series.values) and shares:
        cell_of = draws.cell_of[series.owner]
        columns = quantiles(draws, cell_of, series.values, [*shares.values()])
        found.update(zip(shares, columns, strict=True))
    return found


def difference_of_shares(a: Series, b: Series) -> tuple[float, float]:
    """95 % interval of share(b) - share(a).

    Newcombe's hybrid score interval (1998, method 10), each run counted as fewer requests when
    its failures come in bursts (variance of block resamples over that of independent ones).
    """
    (p, p_low, p_high), (q, q_low, q_high) = (_score_interval(s) for s in (a, b))
    low = q - p - math.hypot(q - q_low, p_high - p)
    high = q - p + math.hypot(q_high - q, p - p_low)
    return low, high


def _score_interval(series: Series) -> tuple[float, float, float]:
    """(share, low, high) after Wilson, for as many independent requests as there really are."""
    n, share = float(len(series)), float(series.sums.mean())
    if 0 < share < 1:
        draws = draw(series.stratum, block_length(series.sums, series.stratum), _SEED)
        seen = float(means(draws, series.sums, series.counts).var())
        n = n / max(1.0, seen / (share * (1 - share) / n))
    z = 1.96
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return share, min(share, middle - half), max(share, middle + half)
