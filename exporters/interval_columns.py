"""Columns of requests.jsonl that 95 % intervals need, read back after the run.

It knows the file's columns and which of them count, and nothing of statistics. Gaps between tokens
are read where the run recorded them (`record.itl`), a request's together.

The one subtle rule: work and memory are bounded, whatever the size of the file. At most MOST
requests (or MOST_BYTES) are read, from stretches spread over the whole file, so that their order
in time is kept; of more than MOST_GAPS gaps those of every 2nd, 4th, ... request are kept.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import orjson

MOST = 500_000
MOST_BYTES = 1 << 29
MOST_GAPS = 500_000
_STRETCHES = 50
METRICS = ("ttft_s", "ttft_due_s", "tpot_s", "e2e_s", "e2e_due_s", "send_delay_s", "connect_s",
           "longest_gap_s", "output_tokens", "prompt_tokens")  # fmt: skip


class Gaps:
    """Gaps between tokens, one request's after the other's; `rows` are the requests' rows.

    every: gaps of every so many requests are kept. whole: no request's gaps are unknown.
    """

    def __init__(self) -> None:
        self.values = array("d")
        self.rows, self.sizes = array("q"), array("q")
        self.every = 1
        self.whole = True
        self._requests = 0

    def add(self, row: int, values: list[float] | None) -> None:
        """Take over the gaps of one more request that has some."""
        if not values:
            self.whole = False
            return
        if self._requests % self.every == 0:
            self.rows.append(row)
            self.sizes.append(len(values))
            self.values.extend(values)
        self._requests += 1
        if len(self.values) > MOST_GAPS:
            self._halve()

    def _halve(self) -> None:
        """Forget the gaps of every second request."""
        kept, at = array("d"), 0
        for k, size in enumerate(self.sizes):
            if k % 2 == 0:
                kept.extend(self.values[at : at + size])
            at += size
        self.values, self.rows, self.sizes = kept, self.rows[::2], self.sizes[::2]
        self.every *= 2


class Columns:
    """Values of measured requests, one array of floats a column, NaN where there is none.

    without: names of stages that do not count though their requests were not sent as warm-up.
    stages: name -> number in the column `stage`.
    """

    def __init__(self, without: Collection[str] = ()) -> None:
        names = (*METRICS, "sent", "decode_s", "gaps", "stage")
        self.by_name = {name: array("d") for name in names}
        self.gaps = Gaps()
        self.complete = True
        self.stages: dict[str, int] = {}
        self._without = without

    def __len__(self) -> int:
        return len(self.by_name["sent"])

    def add(self, row: dict[str, Any]) -> None:
        """Take over a row of requests.jsonl, unless it was warm-up or has no time of sending."""
        sent, stage = row.get("sent"), row.get("stage", "")
        if row.get("warmup") or sent is None or stage in self._without:
            return
        ok = row.get("outcome") == "ok"
        events = row.get("events", 0)
        decode_s = row["last_token"] - row["first_token"] if ok and events > 1 else 0.0
        if ok and events > 1:
            self.gaps.add(len(self), row.get("itl_s"))
        for name in METRICS:
            value = row.get(name) if ok or name == "send_delay_s" else None
            self.by_name[name].append(math.nan if value is None else value)
        self.by_name["sent"].append(sent)
        self.by_name["decode_s"].append(decode_s)
        self.by_name["gaps"].append(events - 1 if ok and events > 1 else 0)
        self.by_name["stage"].append(self.stages.setdefault(stage, len(self.stages)))


def _stretches(path: Path) -> Iterator[tuple[int, int]]:
    """Byte ranges of a file that hold at most MOST lines: all of it, or stretches all over it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(1 << 20)
    most = min(max(1.0, len(head) / max(1, head.count(b"\n"))) * MOST, MOST_BYTES)
    if size <= most:
        yield 0, size
        return
    length = int(most / _STRETCHES)
    for k in range(_STRETCHES):
        start = (size - length) * k // (_STRETCHES - 1)
        yield start, start + length


def columns(path: Path, without: Collection[str] = ()) -> Columns:
    """The columns that intervals need. Raises OSError; lines that cannot be read are skipped."""
    out = Columns(without)
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
