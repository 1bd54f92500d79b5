"""95 % intervals of a run's figures, from requests.jsonl, after the run.

Requests near each other in time wait in the same queue, so they are not independent: a
moving-block bootstrap draws whole stretches of requests in time order (Kuensch 1989), with the
block length of Politis and White (2004, corrected 2009). Inter-token latencies enter as one sum
and one count a request, so that a request's tokens stay together; only their mean has an interval.

The one subtle rule: work is bounded, whatever the size of the file. At most MOST requests are
read, from stretches spread over the whole file, and values are ranked into a few thousand bins
once, so that a resample is a row of a matrix product and not a sort.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEAST = 20  # fewer requests give no interval
MOST = 500_000
RESAMPLES = 200
SEED = 20240711
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_BINS = 4096
_STRETCHES = 50
_MOST_BLOCKS = 250
_FROM_FILE = ("ttft_s", "ttft_due_s", "tpot_s", "e2e_s", "e2e_due_s", "send_delay_s", "connect_s",
              "longest_gap_s", "output_tokens", "prompt_tokens")  # fmt: skip


class Columns:
    """Values of measured requests, one array of floats a column, NaN where there is none."""

    def __init__(self) -> None:
        self.by_name = {name: array("d") for name in (*_FROM_FILE, "sent", "decode_s", "gaps")}
        self.complete = True

    def add(self, row: dict[str, Any]) -> None:
        """Take over a row of requests.jsonl, unless it was warm-up or has no time of sending."""
        sent = row.get("sent")
        if row.get("warmup") or sent is None:
            return
        ok = row.get("outcome") == "ok"
        for name in _FROM_FILE:
            value = row.get(name) if ok or name == "send_delay_s" else None
            self.by_name[name].append(math.nan if value is None else value)
        self.by_name["sent"].append(sent)
        decode = ok and row.get("events", 0) > 1
        self.by_name["decode_s"].append(row["last_token"] - row["first_token"] if decode else 0.0)
        self.by_name["gaps"].append(row["events"] - 1 if decode else 0)


def _stretches(path: Path) -> Iterator[tuple[int, int]]:
    """Byte ranges of a file that hold at most MOST lines: all of it, or stretches all over it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(1 << 20)
    line = max(1.0, len(head) / max(1, head.count(b"\n")))
    if size <= line * MOST:
        yield 0, size
        return
    length = int(line * MOST / _STRETCHES)
    for k in range(_STRETCHES):
        start = (size - length) * k // (_STRETCHES - 1)
        yield start, start + length


def columns(path: Path) -> Columns:
    """The columns that intervals need. Raises OSError; lines that cannot be read are skipped."""
    out = Columns()
    with path.open("rb") as file:
        for start, end in _stretches(path):
            file.seek(start)
            at = start
            if start:
                at += len(file.readline())  # the rest of a line that began before
            while at < end and (raw := file.readline()):
                at += len(raw)
                try:
                    out.add(orjson.loads(raw))
                except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
                    continue
            out.complete = out.complete and (start, end) == (0, os.fstat(file.fileno()).st_size)
    return out


def block_length(values: Floats) -> int:
    """Length of blocks, in values, for a series in time order.

    Source: Politis and White, Automatic block-length selection for the dependent bootstrap
    (2004), with the correction by Patton, Politis and White (2009); circular blocks, flat-top
    window.
    """
    import numpy as np

    n = len(values)
    centred = values - values.mean()
    padded = 1 << (2 * n - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(centred, padded)) ** 2
    most_lags = min(n - 1, math.ceil(math.sqrt(n)) + 100)
    cov = np.fft.irfft(spectrum, padded)[: most_lags + 1] / n
    if cov[0] <= 0:
        return max(1, round(n ** (1 / 3)))
    noise = 2 * math.sqrt(math.log10(n) / n)
    quiet_for = max(5, math.ceil(math.sqrt(math.log10(n))))
    loud = np.flatnonzero(np.abs(cov[1:] / cov[0]) >= noise) + 1
    last_loud = 0
    for lag in loud:  # the first lag after which `quiet_for` lags in a row are only noise
        if lag - last_loud > quiet_for:
            break
        last_loud = int(lag)
    window = min(2 * max(1, last_loud), most_lags)
    lags = np.arange(1, window + 1)
    taper = np.where(lags <= window / 2, 1.0, 2 * (1 - lags / window))
    long_run = cov[0] + 2 * float((taper * cov[lags]).sum())
    slope = 2 * float((taper * lags * cov[lags]).sum())
    longest: int = math.ceil(min(3 * math.sqrt(n), n / 3))
    if long_run <= 0:
        return longest
    best: float = (2 * slope**2 / (4 / 3 * long_run**2)) ** (1 / 3) * n ** (1 / 3)
    return min(max(math.ceil(best), 1), longest)


def _weights(n_half_blocks: int, rng: np.random.Generator) -> Floats:
    """How often each resample holds each half block: circular blocks of two halves in a row."""
    import numpy as np

    n = n_half_blocks
    draws = rng.integers(0, n, size=(RESAMPLES, max(1, n // 2)))
    rows = np.repeat(np.arange(RESAMPLES), draws.shape[1])
    starts = np.bincount(rows * n + draws.ravel(), minlength=RESAMPLES * n)
    counts = starts.reshape(RESAMPLES, n).astype(np.float64)
    drawn: Floats = counts + np.roll(counts, 1, axis=1) if n > 1 else counts
    return drawn


def _half_blocks(n: int, length: int) -> tuple[Any, int]:
    """Number of its half block for each of n values in time order, and how many there are."""
    import numpy as np

    length = max(length, math.ceil(n / _MOST_BLOCKS))
    half = max(1, (length + 1) // 2)
    count = math.ceil(n / half)
    return np.arange(n) // half, count


def _limits(samples: Any) -> list[float]:
    """Middle 95 % of the resamples."""
    import numpy as np

    low, high = np.percentile(samples, [2.5, 97.5])
    return [float(low), float(high)]


def _edges(ordered: Floats) -> Floats:
    """Values at up to _BINS ranks, half of them in the top 4 %, where the tail percentiles are."""
    import numpy as np

    n = len(ordered)
    if n <= _BINS:
        return ordered
    all_over = np.linspace(0, n - 1, _BINS // 2)
    tail = np.linspace(0.96 * (n - 1), n - 1, _BINS // 2)
    ranks = np.unique(np.concatenate([all_over, tail]).astype(np.int64))
    return ordered[ranks]


def interval(values: Floats) -> dict[str, list[float] | None] | None:
    """ci95 of mean, p50, p90 and p99 of values in time order; None when there are too few.

    A percentile with fewer than one value beyond it has no interval either.
    """
    import numpy as np

    n = len(values)
    if n < LEAST:
        return None
    rng = np.random.default_rng(SEED)
    block, count = _half_blocks(n, block_length(values))
    weights = _weights(count, rng)
    sizes = weights @ np.bincount(block, minlength=count)
    means = (weights @ np.bincount(block, weights=values, minlength=count)) / sizes
    edges = np.unique(_edges(np.sort(values)))
    bins = np.searchsorted(edges, values, side="left")
    flat = np.bincount(block * len(edges) + bins, minlength=count * len(edges))
    table = flat.reshape(count, len(edges)).astype(np.float32)
    cumulative = np.cumsum(weights.astype(np.float32) @ table, axis=1, dtype=np.float64)
    out: dict[str, list[float] | None] = {"mean": _limits(means)}
    for name, q in QUANTILES.items():
        ranks = np.ceil(q * cumulative[:, -1] - 1e-9)
        at = (cumulative < ranks[:, None]).sum(axis=1)
        enough = n * (1000 - round(q * 1000)) >= 1000
        out[name] = _limits(edges[at]) if enough else None
    return out


def ratio_interval(sums: Floats, counts: Floats) -> dict[str, list[float] | None] | None:
    """ci95 of a pooled mean, sum over count, drawn by whole requests in time order."""
    import numpy as np

    used = counts > 0
    sums, counts = sums[used], counts[used]
    if len(sums) < LEAST:
        return None
    block, count = _half_blocks(len(sums), block_length(sums / counts))
    weights = _weights(count, np.random.default_rng(SEED))
    total = weights @ np.bincount(block, weights=sums, minlength=count)
    number = weights @ np.bincount(block, weights=counts, minlength=count)
    return {"mean": _limits(total / number), **dict.fromkeys(QUANTILES)}


def intervals(found: Columns) -> dict[str, dict[str, list[float] | None] | None]:
    """ci95 of every metric that the columns hold."""
    import numpy as np

    order = np.argsort(np.frombuffer(found.by_name["sent"], dtype=np.float64), kind="stable")
    columns_ = {
        name: np.frombuffer(values, dtype=np.float64)[order]
        for name, values in found.by_name.items()
    }
    out = {}
    for name in _FROM_FILE:
        values = columns_[name]
        out[name] = interval(values[~np.isnan(values)])
    tpot = columns_["tpot_s"]
    out["tokens_per_s_per_user"] = interval(1 / tpot[tpot > 0])
    out["itl_s"] = ratio_interval(columns_["decode_s"], columns_["gaps"])
    return out
