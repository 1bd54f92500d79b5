"""A log-linear integer histogram: record, merge, quantile.

It knows nothing of what it counts. A value below 2048 has a bucket of its own; above, each
power of two is cut into 1024 buckets, so a bucket is at most 1/1024 of its value wide and its
midpoint at most 1/2048 away from anything in it. Counts and sums are exact integers; merging
adds them, so the order of merging cannot matter. Buckets are sparse: memory and wire grow with
the spread of the values, not with their number.

The one subtle rule: bucket numbers are continuous and ordered, so sorted keys are sorted values.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

SUB_BITS = 10
_LINEAR_BITS = SUB_BITS + 1
_MANY = 8  # from so many values on, counting them together is faster


class EmptyHistogram(ValueError):  # noqa: N818 - a state, not a failure
    """A quantile was asked of a histogram without values."""


def bucket_of(value: int) -> int:
    """Bucket number of a value >= 0; monotonic in the value."""
    shift = value.bit_length() - _LINEAR_BITS
    return value if shift <= 0 else (shift << SUB_BITS) + (value >> shift)


def bucket_range(bucket: int) -> tuple[int, int]:
    """Lowest and highest integer of a bucket, both inside it."""
    if bucket < 1 << _LINEAR_BITS:
        return bucket, bucket
    shift = (bucket >> SUB_BITS) - 1
    low = (bucket - (shift << SUB_BITS)) << shift
    return low, low + (1 << shift) - 1


class Histogram:
    """Counts of integers >= 0, with exact count, sum, min and max.

    bounds are optional upper bounds (inclusive, sorted) whose cumulative counts must be exact
    too: Prometheus buckets are counted when a value is recorded, never read back from the
    log-linear buckets.
    """

    __slots__ = ("bounds", "counts", "exact", "max", "min", "n", "sum")

    def __init__(self, bounds: Sequence[int] = ()) -> None:
        if any(a >= b for a, b in pairwise(bounds)):
            raise ValueError(f"bounds must rise strictly, got {list(bounds)}")
        self.bounds = bounds
        self.counts: Counter[int] = Counter()
        self.exact = [0] * (len(bounds) + 1) if bounds else []
        self.n = 0
        self.sum = 0
        self.min: int | None = None
        self.max: int | None = None

    def record(self, value: int, times: int = 1) -> None:
        """Count a value. Raises ValueError below 0: an impossible state must not be stored."""
        if value < 0:
            raise ValueError(f"a histogram counts values of at least 0, got {value}")
        shift = value.bit_length() - _LINEAR_BITS
        bucket = value if shift <= 0 else (shift << SUB_BITS) + (value >> shift)
        self.counts[bucket] = self.counts.get(bucket, 0) + times
        if self.exact:
            self.exact[bisect_left(self.bounds, value)] += times
        self.n += times
        self.sum += value * times
        if self.min is None or value < self.min:
            self.min = value
        if self.max is None or value > self.max:
            self.max = value

    def record_all(self, values: Sequence[int]) -> None:
        """Count many values. Raises ValueError, and counts none, when one is below 0."""
        if len(values) < _MANY:
            for value in values:
                self.record(value)
            return
        # Sorted, values of one power of two stand together: they share a shift, and those under
        # one bound are a slice. Five times faster than one by one, and done once a request.
        ordered = sorted(values)
        low, high, n = ordered[0], ordered[-1], len(ordered)
        if low < 0:
            raise ValueError(f"a histogram counts values of at least 0, got {low}")
        at = 0
        buckets: list[int] = []
        while at < n:
            bits = max(ordered[at].bit_length(), _LINEAR_BITS)
            end = n if bits >= high.bit_length() else bisect_left(ordered, 1 << bits, at)
            shift = bits - _LINEAR_BITS
            first = shift << SUB_BITS
            buckets += [first + (value >> shift) for value in ordered[at:end]]
            at = end
        self.counts.update(buckets)
        if self.exact:
            at = 0
            while at < n:
                k = bisect_left(self.bounds, ordered[at])
                end = n if k == len(self.bounds) else bisect_right(ordered, self.bounds[k], at)
                self.exact[k] += end - at
                at = end
        self.n += n
        self.sum += sum(ordered)
        self.min = low if self.min is None else min(self.min, low)
        self.max = high if self.max is None else max(self.max, high)

    def merge(self, other: Histogram) -> None:
        """Add another histogram's counts to this one. Raises ValueError when bounds differ."""
        if not other.n:
            return
        if not self.n and tuple(self.bounds) == tuple(other.bounds):
            self.counts, self.exact = other.counts.copy(), other.exact.copy()
            self.n, self.sum, self.min, self.max = other.n, other.sum, other.min, other.max
            return
        if self.exact and tuple(self.bounds) != tuple(other.bounds):
            raise ValueError("histograms with different bounds cannot be merged")
        counts = self.counts
        for bucket, count in other.counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
        if self.exact:
            self.exact = [a + b for a, b in zip(self.exact, other.exact, strict=True)]
        self.n += other.n
        self.sum += other.sum
        assert other.min is not None
        assert other.max is not None
        self.min = other.min if self.min is None else min(self.min, other.min)
        self.max = other.max if self.max is None else max(self.max, other.max)

    def minus(self, earlier: Histogram) -> Histogram:
        """What was recorded since an earlier state of this histogram.

        min and max are those of the buckets left over: the exact ones are not known any more.
        """
        later = Histogram(self.bounds)
        for bucket, count in self.counts.items():
            left = count - earlier.counts.get(bucket, 0)
            if left > 0:
                later.counts[bucket] = left
        if self.exact:
            later.exact = [a - b for a, b in zip(self.exact, earlier.exact, strict=True)]
        later.n = self.n - earlier.n
        later.sum = self.sum - earlier.sum
        if later.counts:
            later.min = bucket_range(min(later.counts))[0]
            later.max = bucket_range(max(later.counts))[1]
        return later

    def quantile(self, q: float) -> float:
        """Value at quantile q in [0, 1].

        The midpoint of the bucket that holds rank ceil(q * n), clamped to min and max: at most
        1/2048 away from the true value, exact below 2048. Raises EmptyHistogram without values.
        Source: the nearest-rank definition; bucket layout in the module docstring.
        """
        return self.quantiles([q])[0]

    def quantiles(self, qs: Sequence[float]) -> list[float]:
        """Values at several quantiles, for one pass over the buckets; see quantile()."""
        if not self.n:
            raise EmptyHistogram("no values were recorded")
        assert self.min is not None
        assert self.max is not None
        # ceil of the float product can be one too high: 0.07 * 100 is 7.000000000000001
        ranks = [min(self.n, max(1, math.ceil(q * self.n - 1e-9))) for q in qs]
        order = sorted(range(len(qs)), key=ranks.__getitem__)
        out = [0.0] * len(qs)
        seen = 0
        buckets = iter(sorted(self.counts))
        bucket = -1
        for at in order:
            while seen < ranks[at]:
                bucket = next(buckets)
                seen += self.counts[bucket]
            low, high = bucket_range(bucket)
            out[at] = min(max((low + high) / 2, self.min), self.max)
        return out

    @property
    def mean(self) -> float | None:
        """Exact mean, None without values."""
        return self.sum / self.n if self.n else None

    def share_at_most(self, value: int) -> float | None:
        """Share of values <= value; exact for values below 2048 and for bounds."""
        if not self.n:
            return None
        if value in self.bounds:
            return sum(self.exact[: bisect_left(self.bounds, value) + 1]) / self.n
        top = bucket_of(value)
        return sum(c for b, c in self.counts.items() if b <= top) / self.n

    def copy(self) -> Histogram:
        """An independent copy."""
        twin = Histogram(self.bounds)
        twin.merge(self)
        return twin

    def to_wire(self) -> list[Any]:
        """Plain numbers for msgpack or JSON; read back by from_wire with the same bounds."""
        buckets = sorted(self.counts)
        # differences are small numbers, which msgpack packs into one to three bytes
        steps = [b - a for a, b in zip([0, *buckets], buckets, strict=False)]
        return [
            self.n, str(self.sum), self.min, self.max, steps,
            [self.counts[b] for b in buckets], self.exact,
        ]  # fmt: skip

    @classmethod
    def from_wire(cls, wire: Sequence[Any], bounds: Sequence[int] = ()) -> Histogram:
        """A histogram from to_wire(). Raises ValueError when it was made with other bounds."""
        n, total, low, high, steps, counts, exact = wire
        made = cls(bounds)
        if len(exact) != len(made.exact):
            raise ValueError(f"expected {len(made.exact)} bucket counts, got {len(exact)}")
        made.n, made.sum, made.min, made.max = n, int(total), low, high
        made.exact = list(exact)
        bucket = 0
        for step, count in zip(steps, counts, strict=True):
            bucket += step
            made.counts[bucket] = count
        return made
