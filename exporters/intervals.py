"""95 % intervals of a run's figures, from requests.jsonl, after the run.

It knows the file's columns and which of them count; how a bootstrap respects that requests near
each other depend on each other is resampling.py's business. Inter-token latencies enter as one
sum and one count a request, so that a request's tokens stay together: only their mean has an
interval.

The one subtle rule: work is bounded, whatever the size of the file. At most MOST requests are
read, from stretches spread over the whole file, so that their order in time is kept.
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
    Ints = NDArray[np.int64]

LEAST = 20  # fewer requests give no interval
MOST = 500_000
RESAMPLES = 200
SEED = 20240711
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_STRETCHES = 50
_FROM_FILE = ("ttft_s", "ttft_due_s", "tpot_s", "e2e_s", "e2e_due_s", "send_delay_s", "connect_s",
              "longest_gap_s", "output_tokens", "prompt_tokens")  # fmt: skip

Interval = dict[str, list[float] | None]


class Columns:
    """Values of measured requests, one array of floats a column, NaN where there is none."""

    def __init__(self) -> None:
        names = (*_FROM_FILE, "sent", "decode_s", "gaps", "stage")
        self.by_name = {name: array("d") for name in names}
        self.complete = True
        self._stages: dict[str, int] = {}

    def add(self, row: dict[str, Any]) -> None:
        """Take over a row of requests.jsonl, unless it was warm-up or has no time of sending."""
        sent = row.get("sent")
        if row.get("warmup") or sent is None:
            return
        ok = row.get("outcome") == "ok"
        events = row.get("events", 0)
        decode_s = row["last_token"] - row["first_token"] if ok and events > 1 else 0.0
        for name in _FROM_FILE:
            value = row.get(name) if ok or name == "send_delay_s" else None
            self.by_name[name].append(math.nan if value is None else value)
        self.by_name["sent"].append(sent)
        self.by_name["decode_s"].append(decode_s)
        self.by_name["gaps"].append(events - 1 if ok and events > 1 else 0)
        stage = self._stages.setdefault(row.get("stage", ""), len(self._stages))
        self.by_name["stage"].append(stage)


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
        enough = n * (1000 - round(q * 1000)) >= 1000
        out[name] = _limits(samples) if enough else None
    return out


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


def intervals(found: Columns) -> dict[str, Interval | None]:
    """ci95 of every metric that the columns hold."""
    import numpy as np

    order = np.argsort(np.frombuffer(found.by_name["sent"], dtype=np.float64), kind="stable")
    by_name = {
        name: np.frombuffer(values, dtype=np.float64)[order]
        for name, values in found.by_name.items()
    }
    stage = by_name["stage"].astype(np.int64)
    out = {}
    for name in _FROM_FILE:
        known = ~np.isnan(by_name[name])
        out[name] = interval(by_name[name][known], stage[known])
    tpot = by_name["tpot_s"]
    out["tokens_per_s_per_user"] = interval(1 / tpot[tpot > 0], stage[tpot > 0])
    out["itl_s"] = ratio_interval(by_name["decode_s"], by_name["gaps"], stage)
    return out
