"""Quantiles of resamples against resamples that are really built, one value after the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tokenswarm import resampling

SHARES = (0.01, 0.5, 0.9, 0.99)


def series(kind: str, n: int) -> Any:
    rng = np.random.default_rng(3)
    return {
        "independent": rng.lognormal(size=n),
        "a walk": np.cumsum(rng.normal(size=n)),
        "two values": rng.integers(0, 2, n).astype(float),
        "all the same": np.full(n, 7.0),
    }[kind]


def built(draws: resampling.Draws, values: Any, share: float) -> list[float]:
    """The quantile of each resample at rank ceil(share * size), the slow and obvious way."""
    found = []
    for weights in draws.weights:
        held = sorted(np.repeat(values, weights[draws.cell_of].astype(int)))
        found.append(held[max(0, math.ceil(share * len(held)) - 1)])
    return found


@pytest.mark.parametrize("kind", ["independent", "a walk", "two values", "all the same"])
@pytest.mark.parametrize("n", [25, 3000])
def test_quantiles_are_those_of_resamples_that_are_built(kind: str, n: int) -> None:
    values = series(kind, n)
    stage = (np.arange(n) * 3 // n).astype(np.int64)
    block = resampling.block_length(values, stage)
    draws = resampling.draw(stage, block, seed=1, resamples=30)
    found = resampling.quantiles(draws, draws.cell_of, values, SHARES)
    for share, quantiles in zip(SHARES, found, strict=True):
        assert list(quantiles) == built(draws, values, share)


def test_only_the_ranks_that_matter_are_looked_at() -> None:
    values = series("independent", 100_000)
    draws = resampling.draw(np.zeros(100_000, dtype=np.int64), 1, seed=1, resamples=200)
    order = np.argsort(values)
    wanted = 0.5 * draws.weights[:, draws.cell_of].sum(axis=1)
    low, high, _ = resampling._reach(draws, draws.cell_of[order], 0.5, wanted)
    assert low < 50_000 < high
    assert high - low < 5_000  # 4 standard errors of a rank either side are 1,265
